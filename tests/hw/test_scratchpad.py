from __future__ import annotations

import random
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.hw.scratchpad import Scratchpad, geometry
from amaranth_vta.sim.testbench.amaranth import simulate


@pytest.mark.parametrize(
    ("write_elements", "lanes", "read_elements", "depth"),
    [
        (1, 1, (1,), 16),
        (2, 1, (1, 2), 16),
        (4, 2, (2, 1, 4), 32),
        (1, 4, (8,), 16),
        (8, 1, (1,), 4),
        (8, 1, (1,), 2),
        (16, 1, (16, 1), 4),
        (1, 2, (8, 1), 2),
    ],
)
def test_reads_give_what_was_written_at_any_alignment(
    write_elements: int, lanes: int, read_elements: tuple[int, ...], depth: int
) -> None:
    dut = Scratchpad(
        element_bits=16,
        depth=depth,
        write_elements=write_elements,
        lanes=lanes,
        read_elements=read_elements,
    )
    generator = random.Random(1)
    lane_bits = 16 // lanes
    contents: list[int | None] = [None] * depth

    async def check(ctx: Any) -> None:
        expected: list[list[int | None]] = [[None] * elements for elements in read_elements]
        for _ in range(2000):
            index = generator.randrange(1 - write_elements, depth)
            values = [generator.getrandbits(16) for _ in range(write_elements)]
            lane_mask = generator.getrandbits(lanes)
            enable = 0
            for j in range(write_elements):
                if 0 <= index + j < depth and generator.random() < 0.7:
                    enable |= 1 << j
            ctx.set(dut.write.enable, enable)
            ctx.set(dut.write.lanes, lane_mask)
            ctx.set(dut.write.index, index)
            ctx.set(dut.write.data, values)
            before = list(contents)
            for j, value in enumerate(values):
                if enable >> j & 1:
                    bits = sum(
                        ((1 << lane_bits) - 1) << lane * lane_bits
                        for lane in range(lanes)
                        if lane_mask >> lane & 1
                    )
                    old = contents[index + j]
                    if old is not None or lane_mask == (1 << lanes) - 1:
                        contents[index + j] = ((old or 0) & ~bits) | (value & bits)
            for number, elements in enumerate(read_elements):
                port = getattr(dut, f"read{number}")
                start = generator.randrange(1 - elements, depth)
                read = generator.random() < 0.8
                ctx.set(port.index, start)
                ctx.set(port.enable, read)
                if read:
                    expected[number] = [
                        before[start + k] if 0 <= start + k < depth else None
                        for k in range(elements)
                    ]
            await ctx.tick()
            for number, elements in enumerate(read_elements):
                data = ctx.get(getattr(dut, f"read{number}").data)
                for k in range(elements):
                    if expected[number][k] is not None:
                        assert data[k] == expected[number][k], (number, k)

    simulate(dut, check)
    assert None not in contents


def test_geometry_follows_the_bus() -> None:
    pynq = PRESETS["pynq"]
    uop, inp, wgt, acc = (
        geometry(pynq, memory) for memory in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    )
    assert (uop.elements, uop.beats, uop.lanes) == (2, 1, 1)
    assert (inp.elements, inp.beats, inp.lanes) == (1, 2, 1)
    assert (wgt.elements, wgt.beats, wgt.lanes) == (1, 32, 8)
    assert (acc.elements, acc.beats, acc.lanes) == (1, 8, 2)
    # A beat of half as wide scalars is two beats of accumulators.
    assert geometry(Config(log_out_width=4), Memory.ACC).lane_beats == 2
    wide = geometry(Config(log_bus_width=9), Memory.INP)
    assert (wide.elements, wide.beats, wide.lanes) == (4, 1, 1)


def test_lanes_divide_an_element() -> None:
    with pytest.raises(ValueError, match="3 lanes do not divide an element of 16 bits"):
        Scratchpad(element_bits=16, depth=4, lanes=3)
