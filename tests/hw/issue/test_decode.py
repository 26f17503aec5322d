"""Decoded instructions: none is lost, and each has the properties of its own bits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.interfaces import CheckedEntry
from amaranth_vta.hw.isa import Load, Memory
from amaranth_vta.hw.issue.decode import DecodedEntry, Decoder
from amaranth_vta.sim.testbench.amaranth import (
    checked_entry,
    get_all,
    pauses,
    put_all,
    shared,
    simulate,
)
from tests.support.clocked import Clocked

UNITS = 3


class Decoding(wiring.Component):
    """The lowest bits of an instruction's index select its unit; the next bit marks it illegal."""

    def __init__(self, config: Config) -> None:
        self._decoder = Decoder(config, UNITS)
        super().__init__(
            {
                "i": In(stream.Signature(CheckedEntry)),
                "o": Out(stream.Signature(DecodedEntry(UNITS))),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.decoder = decoder = self._decoder
        connect(m, flipped(self.i), decoder.insn)
        connect(m, decoder.decoded, flipped(self.o))
        index = self.i.payload.entry.index
        m.d.comb += [decoder.unit.eq(index[:2]), decoder.illegal.eq(index[2])]
        return m


def decoding(config: str) -> Clocked:
    return Clocked(Decoding(PRESETS[config]))


@pytest.mark.parametrize("config", ["tiny", "pynq"])
@pytest.mark.parametrize(("gaps", "stalls"), [(0, 0), (0.5, 0.3)])
def test_each_instruction_comes_with_what_its_bits_say(
    config: str, gaps: float, stalls: float
) -> None:
    generator = random.Random(1)
    loads = [
        Load(memory=Memory.INP, y_size=generator.randrange(3), x_size=generator.randrange(3))
        for _ in range(60)
    ]
    entries = [checked_entry(PRESETS[config], load, n) for n, load in enumerate(loads)]
    dut = shared(decoding, config)
    decoded: list[Any] = []

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.i, entries, pauses(gaps, 1))

    async def get(ctx: Any) -> None:
        decoded.extend(await get_all(ctx, dut.o, len(entries), pauses(stalls, 2)))

    simulate(dut, put, get)
    found = [(item.checked.entry.index, item.unit, item.illegal, item.has_data) for item in decoded]
    assert found == [
        (n, n % 4, n >> 2 & 1, load.x_size != 0 and load.y_size != 0)
        for n, load in enumerate(loads)
    ]
