"""The forwarder: its writes to the inputs, its throughput, and its priority."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.forwarder import Forwarder
from amaranth_vta.hw.isa import Forward, forward_base
from amaranth_vta.sim.testbench.amaranth import (
    Pauses,
    never,
    pauses,
    put_all,
    shared,
    simulate,
    transfer_command,
)

CONFIGS = {name: replace(PRESETS[name], forward=1) for name in ("tiny", "int4", "pynq-extended")}
PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")


def random_forward(generator: random.Random, config: Config) -> Forward:
    while True:
        x_size = generator.choice([0, 1, 1, 2, 3, 5, 9])
        forward = Forward(
            sram_base=generator.randrange(config.inp.depth),
            dram_base=forward_base(
                generator.randrange(config.acc.depth), generator.randrange(-(1 << 15), 1 << 15)
            ),
            y_size=generator.choice([0, 1, 1, 2, 3, 4]),
            x_size=x_size,
            x_stride=generator.choice([0, 1, x_size, x_size, x_size + 1, 7]),
            **{pad: generator.choice([0, 0, 1, 3]) for pad in PADS},
        )
        reads = forward.source_end if forward.x_size and forward.y_size else 0
        if forward.sram_base + forward.elements <= config.inp.depth and reads <= config.acc.depth:
            return forward


def bits_of(index: int, config: Config) -> int:
    """The bits that a read of accumulator ``index`` returns."""
    return random.Random(index).getrandbits(config.out.element_bits)


def expected(forwards: Sequence[Forward], config: Config) -> list[tuple[int, int]]:
    """Index and bits of each element that is written, in order."""
    writes = []
    for forward in forwards:
        scalar = forward.padding % (1 << config.inp_width)
        padding = sum(scalar << at for at in range(0, config.inp.element_bits, config.inp_width))
        at = forward.sram_base
        rows = range(-forward.y_pad_0, forward.y_size + forward.y_pad_1)
        for y in rows if forward.x_size else ():
            for x in range(-forward.x_pad_0, forward.x_size + forward.x_pad_1):
                inside = 0 <= y < forward.y_size and 0 <= x < forward.x_size
                source = forward.source + y * forward.x_stride + x
                writes.append((at, bits_of(source, config) if inside else padding))
                at += 1
    return writes


def run(
    config: Config, forwards: Sequence[Forward], pause: Pauses = never
) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """The writes, the cycle of each, and the cycles of ``done``."""
    dut = shared(Forwarder, config)
    writes: list[tuple[int, int]] = []
    cycles: list[int] = []
    done: list[int] = []
    written: list[int] = []

    async def watch(ctx: Any) -> None:
        port = dut.inp
        writes_and_end = ctx.tick().sample(port.enable, port.index, port.data, dut.done)
        for cycle in range(40_000):
            held = pause()
            ctx.set(dut.hold, held)
            _, _, enable, index, elements, ended = await writes_and_end
            assert enable in (0, 1)
            if enable and not held:
                writes.append((index, elements[0]))
                cycles.append(cycle)
            if ended:
                written.append(len(writes))
                done.append(cycle)
            if len(done) == len(forwards):
                break
        await ctx.tick()
        assert ctx.get(dut.idle)

    async def scratchpad(ctx: Any) -> None:
        port = dut.scratchpad
        async for _, _, enable, index in ctx.tick().sample(port.enable, port.index):
            if enable:
                ctx.set(port.data, [bits_of(index + k, config) for k in range(len(port.data))])

    async def put(ctx: Any) -> None:
        await put_all(ctx, dut.command, [transfer_command(item) for item in forwards])

    simulate(dut, watch, background=[scratchpad, put])
    assert written == list(accumulate(forward.elements for forward in forwards))
    return writes, cycles, done


@pytest.mark.parametrize("probability", [0, 0.4, 0.9])
@pytest.mark.parametrize("name", CONFIGS)
def test_writes_rows_and_their_padding_in_order(name: str, probability: float) -> None:
    config = CONFIGS[name]
    generator = random.Random(name)
    forwards = [random_forward(generator, config) for _ in range(60)]
    writes, _, done = run(config, forwards, pauses(probability))
    assert writes == expected(forwards, config)
    assert len(done) == len(forwards)


def test_writes_an_element_per_cycle_and_is_done_with_the_last() -> None:
    config = CONFIGS["tiny"]
    forwards = [Forward(x_size=5, y_size=2, x_stride=5, x_pad_0=1), Forward(x_size=0), Forward()]
    _, cycles, done = run(config, forwards)
    assert np.diff(cycles[:12]).tolist() == [1] * 11
    # A command takes as many cycles as it has elements, and one.
    assert [at - cycles[11] for at in done] == [0, 2, 4]
