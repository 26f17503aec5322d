"""Accumulators with one bank and with two: a read returns the last write of either unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.accumulators import Accumulators
from amaranth_vta.sim.testbench.amaranth import shared, simulate


@pytest.mark.parametrize("name", ["tiny", "tiny-extended"])
def test_units_read_what_was_written_last_in_any_bank(name: str) -> None:
    """GEMM uses one half, the ALU the other, and they swap every 50 cycles. The ALU does not read
    what GEMM writes in the same cycle.
    """
    config = PRESETS[name]
    dut = shared(Accumulators, config)
    rng = np.random.default_rng(1)
    depth = config.acc.depth
    bits = config.acc.element_bits
    contents = [0] * depth
    scalars = config.acc.rows * config.acc.columns

    def narrow(value: int) -> int:
        """The low bits of each scalar."""
        mask = (1 << config.out_width) - 1
        return sum(
            (value >> scalar * config.acc_width & mask) << scalar * config.out_width
            for scalar in range(scalars)
        )

    async def fill(ctx: Any) -> None:
        lanes = len(dut.load_write.lanes)
        for index in range(depth):
            value = int.from_bytes(rng.bytes(bits // 8), "little")
            ctx.set(dut.load_write.enable, 1)
            ctx.set(dut.load_write.lanes, (1 << lanes) - 1)
            ctx.set(dut.load_write.index, index)
            ctx.set(dut.load_write.data, [value])
            await ctx.tick()
            contents[index] = value
        ctx.set(dut.load_write.enable, 0)
        ctx.set(dut.load_write.data, [0] * len(dut.load_write.data))

    # Few elements, so that reads often collide with writes of the same cycle. With two banks,
    # sources are among the last accumulators, which have a copy.
    near = [*range(4)], [*range(depth - 4, depth)]
    sources = near[1] if config.overlap else [*near[0], *near[1]]

    async def check(ctx: Any) -> None:
        await fill(ctx)
        # GEMM's previous read (index, value): its data is valid a cycle later, including writes in
        # between.
        late: tuple[int, int] | None = None
        for cycle in range(300):
            gemm_half = cycle // 50 % 2
            # With one bank, the units take turns as well.
            units = ["gemm", "alu"] if config.overlap else [["gemm", "alu"][gemm_half]]
            expected: list[tuple[Any, int]] = []
            zeros = []
            for port, clear in ((dut.gemm_read, dut.gemm_clear), (dut.alu_src, dut.alu_src_clear)):
                reads_zero = int(rng.integers(2))
                ctx.set(clear, reads_zero)
                zeros += [port] * reads_zero
            for port in (dut.gemm_read, dut.alu_dst, dut.alu_src, dut.gemm_write, dut.alu_write):
                ctx.set(port.enable, 0)
            if not config.requantize:
                ctx.set(dut.alu_write.data, [0])
            written_by_gemm, read_before, late = None, late, None
            for unit in units:
                upper = gemm_half if unit == "gemm" else 1 - gemm_half
                place = int(rng.choice(near[upper]))
                read = dut.gemm_read if unit == "gemm" else dut.alu_dst
                write = dut.gemm_write if unit == "gemm" else dut.alu_write
                target = int(rng.choice(near[upper]))
                value = int.from_bytes(rng.bytes(bits // 8), "little")
                ctx.set(write.enable, 1)
                ctx.set(write.lanes, (1 << len(write.lanes)) - 1)
                ctx.set(write.index, target)
                ctx.set(write.data, [value])
                contents[target] = value
                written_by_gemm = target if unit == "gemm" else written_by_gemm
                if read_before is not None and unit == "gemm" and read_before[0] == target:
                    read_before = target, value
                ctx.set(read.enable, 1)
                ctx.set(read.index, place)
                expected.append((read, place))
            source = int(rng.choice([place for place in sources if place != written_by_gemm]))
            ctx.set(dut.alu_src.enable, 1)
            ctx.set(dut.alu_src.index, source)
            expected.append((dut.alu_src, source))
            await ctx.tick()
            for port, index in expected:
                cleared = any(port is other for other in zeros)
                if port is dut.gemm_read:
                    late = (depth, 0) if cleared else (index, contents[index])
                else:
                    want = 0 if cleared else contents[index]
                    assert ctx.get(port.data[0]) == want, (cycle, index)
            if read_before is not None:
                assert ctx.get(dut.gemm_read.data[0]) == read_before[1], (cycle, read_before)
        for port in (dut.gemm_write, dut.alu_write):
            ctx.set(port.enable, 0)
        ctx.set(dut.out_read.enable, 1)
        elements = len(dut.out_read.data)
        for index in range(depth - elements + 1):
            ctx.set(dut.out_read.index, index)
            await ctx.tick()
            for element in range(elements):
                got = ctx.get(dut.out_read.data[element])
                assert got == narrow(contents[index + element]), (index, element)

    simulate(dut, check)


def test_what_is_read_ahead_stays_as_long_as_it_is_kept() -> None:
    """Read-ahead takes two cycles and uses a bank that neither GEMM nor the ALU's destination
    reads; data that is not kept becomes 0.
    """
    config = PRESETS["tiny-extended"]
    dut = shared(Accumulators, config)
    rng = np.random.default_rng(2)
    depth, half = config.acc.depth, config.acc.depth // 2
    contents = [int.from_bytes(rng.bytes(config.acc.element_bytes), "little") for _ in range(depth)]

    async def check(ctx: Any) -> None:
        ctx.set(dut.load_write.enable, 1)
        ctx.set(dut.load_write.lanes, (1 << len(dut.load_write.lanes)) - 1)
        for index, value in enumerate(contents):
            ctx.set(dut.load_write.index, index)
            ctx.set(dut.load_write.data, [value])
            await ctx.tick()
        ctx.set(dut.load_write.enable, 0)
        # By bank, the element requested in a cycle, and the element kept.
        asked: list[int | None] = [None, None]
        kept = [0, 0]
        for cycle in range(300):
            bank = int(rng.integers(2))
            index = half * bank + int(rng.integers(half))
            reads = rng.random() < 0.5
            ctx.set(dut.alu_ahead.enable, int(reads))
            ctx.set(dut.alu_ahead.index, index)
            # Others use the other bank, or GEMM overwrites and needs no port.
            other = half * (1 - bank) + int(rng.integers(half))
            clears, used = int(rng.integers(2)), dut.gemm_read
            ctx.set(dut.gemm_clear, clears)
            for port in (dut.gemm_read, dut.alu_dst):
                ctx.set(port.enable, 0)
            if rng.random() < 0.5:
                used = dut.alu_dst
            ctx.set(used.enable, 1)
            ctx.set(used.index, index if used is dut.gemm_read and clears else other)
            keeps = int(rng.integers(4))
            ctx.set(dut.alu_ahead_keeps, keeps)
            await ctx.tick()
            for place in range(2):
                source = asked[place]
                if source is not None:
                    kept[place] = contents[source]
                elif not keeps >> place & 1:
                    kept[place] = 0
            asked = [None, None]
            if reads:
                asked[bank] = index
            assert ctx.get(dut.alu_ahead.data[0]) == kept[0] | kept[1], cycle

    simulate(dut, check)
