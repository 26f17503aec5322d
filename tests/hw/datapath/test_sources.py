"""Operand prefetch of the ALU: accumulators with and without a copy, while GEMM reads others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle
from random import Random
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib.wiring import connect

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.accumulators import Accumulators
from amaranth_vta.hw.datapath.alu import AluUnit
from amaranth_vta.hw.datapath.requantize import RequantizingLane
from amaranth_vta.hw.isa import BASE_ALU_OPS, REQUANTIZE_PARAMETERS, AluOp
from amaranth_vta.hw.timing import TABLE_WORDS, copied_sources
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, shared, simulate
from tests.hw.datapath.test_alu import micro_op, results

CONFIG = PRESETS["tiny-extended"]
DEPTH, TABLE = CONFIG.acc.depth, CONFIG.table_elements
HALF, COPIED = DEPTH // 2, DEPTH - copied_sources(CONFIG)
# Indices around the border between the banks, and around the first copied element.
NEAR = [0, 1, HALF - 1, HALF, COPIED - 2, COPIED - 1, COPIED, COPIED + 1]
# Cycles that a micro-op waits for its predecessor's write.
WAIT = RequantizingLane.latency
# LOOKUP without the long pipeline of REQUANTIZE, in a small machine, whose lanes have registers.
SMALL = replace(PRESETS["tiny"], overlap=1, lookup=1)
LARGE = replace(SMALL, log_block_in=4, log_block_out=4, log_wgt_buff_size=14, log_acc_buff_size=13)


class BesideGemm(Elaboratable):
    """An ALU and its accumulators, with GEMM's read port: the ALU's reads must not change GEMM's
    data in the same cycle.
    """

    def __init__(self, config: Config) -> None:
        self.alu, self.accumulators = AluUnit(config), Accumulators(config)
        self.denied = Signal()
        self._depth, self._bank_bit = config.acc.depth, config.acc.index_width - 1

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.alu, m.submodules.accumulators = self.alu, self.accumulators
        alu, accumulators = self.alu, self.accumulators
        gemm = accumulators.gemm_read
        connect(m, alu.dst_read, accumulators.alu_dst)
        connect(m, alu.src_read, accumulators.alu_src)
        connect(m, alu.ahead_read, accumulators.alu_ahead)
        connect(m, alu.write, accumulators.alu_write)
        reads = gemm.enable & ~accumulators.gemm_clear
        m.d.comb += [
            accumulators.alu_src_clear.eq(alu.src_read_clear),
            accumulators.alu_ahead_keeps.eq(alu.ahead_read_keeps),
            alu.busy_ports.eq(Mux(reads, 1 << gemm.index[self._bank_bit], 0)),
            alu.denied.eq(self.denied | alu.busy_ports.bit_select(alu.bank, 1)),
        ]
        return m

    async def load(self, ctx: Any, contents: np.ndarray) -> None:
        port = self.accumulators.load_write
        ctx.set(port.enable, 1)
        ctx.set(port.lanes, -1)
        for index, element in enumerate(contents):
            ctx.set(port.index, index)
            ctx.set(port.data[0], int.from_bytes(element.astype("<i4").tobytes(), "little"))
            await ctx.tick()
        ctx.set(port.enable, 0)
        ctx.set(port.data[0], 0)

    async def disturb(self, ctx: Any, share: float) -> None:
        """In a ``share`` of the cycles GEMM reads, and in as many the next micro-op is denied."""
        if not share:
            return
        rng, port = Random(1), self.accumulators.gemm_read
        sampled = ctx.tick().sample(self.alu.takes, self.alu.denied)
        while True:
            ctx.set(port.enable, rng.random() < share)
            ctx.set(port.index, rng.randrange(self._depth))
            ctx.set(self.accumulators.gemm_clear, rng.random() < 0.2)
            ctx.set(self.denied, rng.random() < share)
            _, _, takes, denied = await sampled
            assert not (takes and denied)


def run(
    config: Config,
    items: Iterable[dict],
    contents: np.ndarray,
    gaps: float = 0,
    share: float = 0,
    background: Iterable[Callable] = (),
    dut: BesideGemm | None = None,
) -> tuple[np.ndarray, int]:
    """Accumulators after the micro-ops, and the cycles until the last one enters the pipeline."""
    dut = dut or shared(BesideGemm, config)
    # The second one is accepted when all others have entered the pipeline.
    items = [*items, micro_op(0, enable=0), micro_op(0, enable=0)]
    got, cycles = contents.copy(), 0

    async def follow(ctx: Any) -> None:
        nonlocal cycles
        port = dut.alu.write
        sampled = ctx.tick().sample(port.enable, port.index, port.data[0])
        async for _, _, writes, index, value in sampled:
            cycles += 1
            if writes:
                raw = value.to_bytes(got[index].size * 4, "little")
                got[index] = np.frombuffer(raw, "<i4").reshape(got[index].shape)

    async def disturb(ctx: Any) -> None:
        await dut.disturb(ctx, share)

    async def drive(ctx: Any) -> None:
        nonlocal cycles
        await dut.load(ctx, contents)
        cycles = 0
        pause = pauses(gaps)
        for item in items:
            # The payload is visible before it is valid.
            ctx.set(dut.alu.i.payload, item)
            await put_all(ctx, dut.alu.i, [item], pause)
        cycles -= 2
        await ctx.tick().repeat(20)
        cycles -= 20

    simulate(dut, drive, background=[follow, disturb, *background])
    return got, cycles


def contents(config: Config, rng: np.random.Generator, bits: int | None = None) -> np.ndarray:
    span = 1 << (bits or config.acc_width)
    shape = (config.acc.depth, config.acc.rows, config.acc.columns)
    return rng.integers(-span // 2, span // 2, shape)


def sources(rng: np.random.Generator) -> tuple[list[dict], np.ndarray]:
    """Sources that stay or change, of micro-ops that may write to them."""
    items = []
    for _ in range(60):
        count, src = int(rng.integers(1, 7)), int(rng.choice(NEAR))
        operation = rng.choice([*BASE_ALU_OPS])
        immediate = int(rng.integers(-40, 40)) if rng.random() < 0.2 else None
        for n in range(count):
            src = src if rng.random() < 0.7 else int(rng.choice(NEAR))
            dst = int(rng.choice([*NEAR, 2, 3, HALF + 1]))
            items.append(
                micro_op(
                    dst,
                    src,
                    operation=AluOp(operation),
                    immediate=immediate,
                    last=int(n == count - 1),
                    enable=int(rng.random() < 0.95),
                )
            )
    return items, contents(CONFIG, rng)


def factors(rng: np.random.Generator) -> tuple[list[dict], np.ndarray]:
    items = []
    for _ in range(60):
        factor, src = int(rng.choice([*NEAR, DEPTH - 1])), int(rng.choice(NEAR))
        others = [index for index in [*NEAR, 2, 3] if index != factor]
        count = int(rng.integers(1, 6))
        for n in range(count):
            src = src if rng.random() < 0.7 else int(rng.choice(NEAR))
            items.append(
                micro_op(
                    int(rng.choice(others)),
                    src,
                    operation=AluOp.MULTIPLY_ADD,
                    factor=factor,
                    last=int(n == count - 1),
                )
            )
    return items, contents(CONFIG, rng)


def parameters(rng: np.random.Generator) -> tuple[list[dict], np.ndarray]:
    """Requantizations whose biases and scales are sometimes overwritten in between; most results
    are within their bounds.
    """
    accumulators = contents(CONFIG, rng, 18)
    sets = [20, HALF - 2, COPIED - 8, COPIED - 2, COPIED + 4]
    for first in sets:
        accumulators[first + 1] = rng.integers(-(1 << 31), 1 << 31, accumulators[0].shape)
        accumulators[first + 2] = rng.integers(2, size=accumulators[0].shape)
        accumulators[first + 3] = 0x7F8000 + rng.integers(256, size=accumulators[0].shape)
    items: list[dict] = []
    for _ in range(40):
        count, src = int(rng.integers(1, 5)), int(rng.choice(sets))
        for n in range(count):
            src = src if rng.random() < 0.7 else int(rng.choice(sets))
            dst = int(rng.choice([2, 3, HALF + 3, HALF + 4, COPIED - 3, COPIED + 3, DEPTH - 1]))
            items.append(micro_op(dst, src, operation=AluOp.REQUANTIZE, last=int(n == count - 1)))
        # Overwrite the byte that the requantization has stored.
        dst = items[-1]["indices"]["dst"]
        items.append(micro_op(dst, operation=AluOp.SHR, immediate=-9, last=1))
        if rng.random() < 0.5:
            dst, operation = int(rng.choice(sets)) + int(rng.integers(2)), AluOp.ADD
            items.append(micro_op(dst, operation=operation, immediate=-30000, last=1))
    return items, accumulators


def tables(rng: np.random.Generator, config: Config = CONFIG) -> tuple[list[dict], np.ndarray]:
    """Lookups, with writes to their tables in between."""
    half, count = config.acc.depth // 2, config.table_elements
    copied = config.acc.depth - copied_sources(config)
    firsts = [30, half - 3, copied - count, copied - 2, copied, config.acc.depth - count]
    items: list[dict] = []
    for first in [*firsts, *rng.permutation(firsts)]:
        for _ in range(int(rng.integers(1, 4))):
            # Each has its own destination, so that a wrong result is not overwritten.
            dst = len(items) % 30
            items.append(micro_op(dst, int(first), operation=AluOp.LOOKUP))
        dst = int(rng.choice(firsts)) + int(rng.integers(count))
        items[-1]["last"] = 1
        items.append(micro_op(dst, immediate=int(rng.integers(1, 1 << 14)), last=1))
    return items, contents(config, rng)


@pytest.mark.parametrize("log_columns", range(3))
@pytest.mark.parametrize(("gaps", "share"), [(0, 0), (0.5, 0.3), (0, 0.5)])
@pytest.mark.parametrize("kind", [sources, factors, parameters, tables])
def test_alu_reads_what_was_written_last_with_a_copy_and_without(
    kind: Callable, gaps: float, share: float, log_columns: int
) -> None:
    items, accumulators = kind(np.random.default_rng(6))
    config = replace(CONFIG, log_lane_columns=log_columns)
    got, _ = run(config, items, accumulators, gaps, share)
    assert np.array_equal(got, results(CONFIG, items, accumulators))


@pytest.mark.parametrize(("source", "others"), [(20, HALF), (20, 30), (COPIED, 0)])
def test_a_source_is_right_however_long_ago_it_was_written(source: int, others: int) -> None:
    """Enough micro-ops in between that no micro-op waits for a write in flight."""
    items, numbers = [], cycle(range(10))
    for distance in range(WAIT + 4):
        items += [
            micro_op(source, COPIED + 10),
            *(micro_op(others + next(numbers), COPIED + 11) for _ in range(distance)),
            micro_op(others + 10 + distance, source),
        ]
    accumulators = contents(CONFIG, np.random.default_rng(11))
    got, _ = run(CONFIG, items, accumulators)
    assert np.array_equal(got, results(CONFIG, items, accumulators))


@pytest.mark.parametrize("number", range(REQUANTIZE_PARAMETERS))
@pytest.mark.parametrize("first", [20, COPIED - 2, COPIED])
@pytest.mark.parametrize("operation", [AluOp.ADD, AluOp.REQUANTIZE])
def test_a_parameter_is_right_however_long_ago_it_was_written(
    operation: AluOp, first: int, number: int
) -> None:
    """Written by another instruction or, by REQUANTIZE, in the same one; between write and use
    there are requantizations with other parameters, whose bounds must not change before their last
    stage.
    """
    accumulators = contents(CONFIG, np.random.default_rng(12), 18)
    others = HALF + 4
    for parameters in (first, others):
        accumulators[parameters + 1] = 1 << 30
        accumulators[parameters + 2] = 0
        accumulators[parameters + 3] = 0x7F8000 + parameters
    # The byte written has to differ from the parameter in the bits that the result depends on.
    accumulators[first + number] += 77
    items: list[dict] = []
    for distance in range(WAIT + 4):
        source = -1 - distance if operation is AluOp.ADD else None
        ends = int(operation is AluOp.ADD)
        items += [
            micro_op(first + number, others, operation=operation, immediate=source, last=ends),
            *(micro_op(n, others, operation=AluOp.REQUANTIZE) for n in range(distance)),
            micro_op(HALF + 16 + distance, first, operation=AluOp.REQUANTIZE, last=1),
        ]
    got, _ = run(CONFIG, items, accumulators)
    assert np.array_equal(got, results(CONFIG, items, accumulators))


@pytest.mark.parametrize("share", [0, 0.3])
@pytest.mark.parametrize("config", [SMALL, LARGE], ids=["small", "large"])
def test_short_pipelines_look_up_tables_with_a_copy_and_without(
    config: Config, share: float
) -> None:
    items, accumulators = tables(np.random.default_rng(7), config)
    got, _ = run(config, items, accumulators, 0, share)
    assert np.array_equal(got, results(config, items, accumulators))


def test_a_table_is_right_though_the_one_before_it_is_written_to() -> None:
    """Writes to the first table come in any cycle while the second one is copied."""
    before, first = COPIED - 2 * TABLE, COPIED - 2
    items = [micro_op(n, [before, first][n % 2], operation=AluOp.LOOKUP, last=1) for n in range(40)]
    dut, rng = BesideGemm(CONFIG), Random(2)

    async def write(ctx: Any) -> None:
        while True:
            ctx.set(dut.alu.written[0], {"enable": rng.random() < 0.2, "index": before})
            await ctx.tick()

    accumulators = contents(CONFIG, np.random.default_rng(8))
    got, _ = run(CONFIG, items, accumulators, background=[write], dut=dut)
    assert np.array_equal(got, results(CONFIG, items, accumulators))


def stalls(items: list[dict]) -> int:
    """Cycles beyond one for each micro-op."""
    return run(CONFIG, items, contents(CONFIG, np.random.default_rng(9)))[1] - len(items)


# (destination, source) of each micro-op: sources are offsets from the first source, which has no
# copy, as are destinations that are read later; negative destinations are other elements. Then the
# stall cycles with these other elements in the sources' bank, and in the other bank.
READS = {
    "each another one": ([(n - 16, n) for n in range(16)], (16, 1)),
    "all the same one": ([(n - 16, 0) for n in range(16)], (1, 1)),
    "two in turn": ([(n - 16, n % 2) for n in range(16)], (16, 1)),
    "each one twice": ([(n - 16, n // 2) for n in range(16)], (8, 1)),
    # Writes are not forwarded, so reading takes two cycles.
    "written by the one that reads it": ([(0, 0), (-1, 0), (-2, 0)], (3 + WAIT, 3 + WAIT)),
    "written by the one before": ([(1, 0), (-1, 1), (-2, 1)], (3 + WAIT, 3 + WAIT)),
    "written by the one before that": ([(2, 0), (-1, 1), (-2, 2)], (3 + WAIT - 1, 3 + WAIT - 1)),
}


@pytest.mark.parametrize("case", READS)
def test_a_source_takes_a_cycle_unless_it_is_kept_or_in_the_other_bank(case: str) -> None:
    pairs, cycles = READS[case]
    for others, expected in zip((60, HALF + 60), cycles, strict=True):
        items = [
            micro_op(dst + (others if dst < 0 else 20), 20 + src, last=int(n == len(pairs) - 1))
            for n, (dst, src) in enumerate(pairs)
        ]
        assert stalls(items) == expected, others


@pytest.mark.parametrize(("first", "stalled"), [(0, 0), (COPIED + 1, WAIT)])
def test_a_source_with_a_copy_takes_none(first: int, stalled: int) -> None:
    """The ``first`` destination, if it is a source, is forwarded."""
    items = [micro_op(first, COPIED), *(micro_op(1 + n, COPIED + 1 + n) for n in range(8))]
    assert stalls(items) == stalled


@pytest.mark.parametrize(("first", "cycles"), [(20, 4), (COPIED, 0)])
def test_a_source_is_kept_within_an_instruction(first: int, cycles: int) -> None:
    items = [micro_op(40 + n, first, last=int(n % 4 == 3)) for n in range(16)]
    assert stalls(items) == cycles


@pytest.mark.parametrize("first", [20, COPIED - 1, COPIED])
def test_what_is_read_before_a_source_takes_a_cycle_per_element(first: int) -> None:
    """Parameters, a factor, a table; the sources have a copy. All but copied parameters arrive one
    cycle later.
    """
    for operation, src, cycles in (
        (AluOp.REQUANTIZE, first, REQUANTIZE_PARAMETERS + (first < COPIED)),
        (AluOp.MULTIPLY_ADD, COPIED + 1, 2),
        (AluOp.LOOKUP, first, TABLE_WORDS + 1),
    ):
        factor = first if operation is AluOp.MULTIPLY_ADD else None
        items = [micro_op(n, src, operation=operation, factor=factor) for n in range(8)]
        assert stalls(items) == cycles, operation


# A micro-op, the index that GEMM reads for 30 cycles from the micro-op's arrival on, whether the
# micro-op is denied in these cycles, and its stall cycles.
GEMM_READS = {
    "its bank": (micro_op(HALF + 20, 20), 1, 0, 31),
    "the bank of the destination": (micro_op(HALF + 20, 20), HALF, 0, 30),
    "nothing": (micro_op(HALF + 20, 20), None, 1, 30),
    "the bank of a source with a copy": (micro_op(20, COPIED), HALF, 0, 0),
    "the bank of a factor": (
        micro_op(20, COPIED, operation=AluOp.MULTIPLY_ADD, factor=HALF),
        *(HALF, 0, 32),
    ),
    "the bank of a factor with a copy": (
        micro_op(20, COPIED, operation=AluOp.MULTIPLY_ADD, factor=COPIED + 1),
        *(HALF, 0, 2),
    ),
}


@pytest.mark.parametrize("case", GEMM_READS)
def test_a_read_ahead_waits_while_gemm_reads(case: str) -> None:
    item, read, denied, cycles = GEMM_READS[case]
    dut = shared(BesideGemm, CONFIG)

    async def hold(ctx: Any) -> None:
        port = dut.accumulators.gemm_read
        await ctx.tick().until(dut.alu.i.valid)
        ctx.set(port.enable, read is not None)
        ctx.set(port.index, read or 0)
        ctx.set(dut.denied, denied)
        for _ in range(30):
            await ctx.tick()
        ctx.set(port.enable, 0)
        ctx.set(dut.denied, 0)

    accumulators = contents(CONFIG, np.random.default_rng(10))
    got, taken = run(CONFIG, [item], accumulators, background=[hold], dut=dut)
    assert np.array_equal(got, results(CONFIG, [item], accumulators))
    assert taken - 1 == cycles
