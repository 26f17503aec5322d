from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.alu import AluUnit
from amaranth_vta.hw.datapath.alu_lane import AluLane
from amaranth_vta.hw.datapath.requantize import RequantizingLane
from amaranth_vta.hw.isa import BASE_ALU_OPS, IMMEDIATE_WIDTH, REQUANTIZE_PARAMETERS, AluOp
from amaranth_vta.hw.timing import TABLE_WORDS, copied_sources
from amaranth_vta.sim.model.arithmetic import requantized
from amaranth_vta.sim.testbench.amaranth import pauses, run_unit, shared, simulate

CONFIG, EXTENDED = PRESETS["tiny"], PRESETS["tiny-extended"]
# Two or four columns share a lane.
SHARED = [replace(EXTENDED, log_lane_columns=1), replace(EXTENDED, log_lane_columns=2)]


def wrap(value: int, width: int) -> int:
    return (value + (1 << width - 1)) % (1 << width) - (1 << width - 1)


def operate(operation: AluOp, a: int, b: int, width: int) -> int:
    """The arithmetic of the instruction set's page, on Python's integers."""
    match operation:
        case AluOp.MIN:
            return min(a, b)
        case AluOp.MAX:
            return max(a, b)
        case AluOp.ADD:
            return wrap(a + b, width)
        case AluOp.MUL:
            return wrap(a * b, width)
        case AluOp.SHR:
            if b >= 0:
                return a >> min(b, width)
            return wrap(a << min(-b, width), width)
        case _:
            raise AssertionError(operation)


def interesting(width: int) -> list[int]:
    low, high = -(1 << width - 1), (1 << width - 1) - 1
    amounts = [
        sign * (size + offset)
        for sign in (1, -1)
        for size in (width // 2, width)
        for offset in (-1, 0, 1)
    ]
    return [low, low + 1, high, 0, 1, -1, 5, -7, 1 << width - 2, *amounts, 1000, -1000]


LANES = {
    "16": lambda: AluLane(16, registered=True),
    "32": lambda: AluLane(32),
    "extended": RequantizingLane,
}


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("operation", BASE_ALU_OPS)
def test_lane_does_the_arithmetic_of_the_instruction_set(operation: AluOp, lane: str) -> None:
    dut = shared(LANES[lane])
    width = len(dut.a)

    async def check(ctx: Any) -> None:
        if isinstance(dut, RequantizingLane):
            # Bounds that would make a byte negative.
            ctx.set(dut.operation, AluOp.REQUANTIZE)
            ctx.set(dut.b, 0x808000)
            ctx.set(dut.parameter, 1 << 3)
            await ctx.tick()
            ctx.set(dut.parameter, 0)
        ctx.set(dut.operation, operation)
        ctx.set(dut.enable, 1)
        for a in interesting(width):
            for b in interesting(width):
                ctx.set(dut.a, a)
                ctx.set(dut.b, b)
                await ctx.tick().repeat(dut.latency)
                assert ctx.get(dut.result) == operate(operation, a, b, width), (a, b)

    simulate(dut, check)


@pytest.mark.parametrize("lane", ["16", "32"])
def test_a_lane_gives_zero_when_it_is_not_enabled(lane: str) -> None:
    dut = shared(LANES[lane])

    async def check(ctx: Any) -> None:
        ctx.set(dut.a, 5)
        ctx.set(dut.b, 3)
        for operation in BASE_ALU_OPS:
            ctx.set(dut.operation, operation)
            for enable in (1, 0):
                ctx.set(dut.enable, enable)
                await ctx.tick().repeat(dut.latency)
                want = operate(operation, 5, 3, len(dut.a)) if enable else 0
                assert ctx.get(dut.result) == want, operation

    simulate(dut, check)


def results(config: Config, items: list[dict], accumulators: np.ndarray) -> np.ndarray:
    """The ``accumulators`` after the items have run in sequence."""
    span = 1 << config.acc_width
    want = accumulators.copy()
    for item in items:
        if item["error"]:
            break
        if item["enable"]:
            context = item["context"]
            dst, src = item["indices"]["dst"], item["indices"]["src"]
            second = want[src].copy()
            if context["use_immediate"]:
                second[:] = context["immediate"]
            operation = AluOp(context["operation"])
            if operation is AluOp.MULTIPLY_ADD:
                sums = want[dst] * want[context["immediate"]] + second
                want[dst] = (sums + span // 2) % span - span // 2
                continue
            if operation is AluOp.LOOKUP:
                table = want[src : src + config.table_elements].astype("<i4").tobytes()
                want[dst] = np.frombuffer(table, np.int8)[want[dst] % 256]
                continue
            if operation is AluOp.REQUANTIZE:
                values = want[[dst, *range(src, src + REQUANTIZE_PARAMETERS)]].astype(np.int32)
                twice = bool(config.round_twice)
                want[dst] = requantized(*values, rounds_twice=twice)
                continue
            for row, column in np.ndindex(want[dst].shape):
                want[dst, row, column] = operate(
                    operation,
                    int(want[dst, row, column]),
                    int(second[row, column]),
                    config.acc_width,
                )
    return want


def run(config: Config, items: list[dict], gaps: float) -> tuple[np.ndarray, np.ndarray, list, int]:
    rng = np.random.default_rng(2)
    span = 1 << config.acc_width
    shape = (config.acc.depth, config.acc.rows, config.acc.columns)
    accumulators = rng.integers(-span // 2, span // 2, shape)
    want = results(config, items, accumulators)
    reads = {"dst_read": accumulators, "src_read": accumulators}
    dones, cycles = run_unit(
        shared(AluUnit, config), items, reads, {"write": accumulators}, pauses(gaps)
    )
    return accumulators, want, dones, cycles


def micro_op(
    dst: int,
    src: int = 0,
    *,
    operation: AluOp = AluOp.ADD,
    immediate: int | None = None,
    factor: int | None = None,
    last: int = 0,
    error: int = 0,
    enable: int = 1,
) -> dict:
    return {
        "indices": {"dst": dst, "src": src},
        "enable": enable,
        "last": last,
        "error": error,
        "context": {
            "operation": operation,
            "use_immediate": int(immediate is not None),
            "immediate": immediate or factor or 0,
        },
    }


@pytest.mark.parametrize("gaps", [0, 0.5])
@pytest.mark.parametrize("config", [CONFIG, PRESETS["batch2"], EXTENDED, *SHARED])
def test_alu_unit_works_as_if_one_micro_op_ran_after_the_other(config: Config, gaps: float) -> None:
    rng = np.random.default_rng(3)
    items = [
        micro_op(
            int(rng.integers(4)),
            int(rng.integers(4)),
            operation=AluOp(int(rng.integers(5))),
            immediate=int(rng.integers(-40, 40)) if rng.random() < 0.5 else None,
            last=int(rng.random() < 0.3),
            enable=int(rng.random() < 0.9),
        )
        for _ in range(150)
    ]
    got, want, dones, _ = run(config, items, gaps)
    assert np.array_equal(got, want)
    assert dones == [0] * sum(item["last"] for item in items)


def test_each_row_of_an_element_has_its_own_operands() -> None:
    """Each element is written once: long programs soon leave the same values in all rows."""
    items = [micro_op(n, 8 + n, operation=AluOp.ADD, last=int(n == 7)) for n in range(8)]
    got, want, _, _ = run(PRESETS["batch2"], items, 0)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("gaps", [0, 0.5])
@pytest.mark.parametrize("config", [EXTENDED, replace(CONFIG, lookup=1), *SHARED])
def test_alu_unit_looks_up_what_is_written_before_it(config: Config, gaps: float) -> None:
    """Overlapping tables, with operations in between that write to them."""
    rng = np.random.default_rng(4)
    size = config.table_elements
    items = []
    for _ in range(40):
        items += [
            micro_op(
                64 + int(rng.integers(4)), int(rng.choice([1, 2, 2, 2])), operation=AluOp.LOOKUP
            )
            for _ in range(int(rng.integers(6)))
        ]
        dst = int(rng.choice([1, 2, size, size + 1, size + 2, 64, 65]))
        items.append(micro_op(dst, 70, last=int(rng.random() < 0.5)))
    got, want, *_ = run(config, items, gaps)
    assert np.array_equal(got, want)


def test_alu_unit_reads_a_table_once() -> None:
    items = [
        micro_op(64 + n % 8, 2, operation=AluOp.LOOKUP, last=int(n % 10 == 9)) for n in range(60)
    ]
    # The item of an instruction without micro-ops writes nothing at any index.
    items[20] = micro_op(2, enable=0, last=1)
    *_, cycles = run(EXTENDED, items, 0)
    assert cycles == 60 + TABLE_WORDS + 1
    items[30] = micro_op(2 + EXTENDED.table_elements - 1, immediate=1)
    *_, cycles = run(EXTENDED, items, 0)
    # The table is read once more, after it has been written to.
    assert cycles == 60 + 2 * (TABLE_WORDS + 1) + RequantizingLane.latency + 1


def test_alu_unit_reads_a_table_again_for_the_micro_op_behind_a_write_to_it() -> None:
    element = EXTENDED.table_elements - 1
    entry = element * 256 // EXTENDED.table_elements
    items = [
        micro_op(65, 2, operation=AluOp.LOOKUP),
        micro_op(64, operation=AluOp.MIN, immediate=entry),
        micro_op(64, operation=AluOp.MAX, immediate=entry),
        # Nothing in flight that the lookup would wait for.
        *(micro_op(66 + n) for n in range(RequantizingLane.latency + 1)),
        micro_op(2 + element, immediate=1),
        micro_op(64, 2, operation=AluOp.LOOKUP),
        micro_op(66, last=1),
    ]
    got, want, *_ = run(EXTENDED, items, 0)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("config", [EXTENDED, *SHARED])
@pytest.mark.parametrize("instructions", [1, 5, 60])
def test_alu_unit_reads_parameters_once_for_each_instruction(
    instructions: int, config: Config
) -> None:
    """Even if GEMM or a load has overwritten them meanwhile."""
    each = 60 // instructions
    items = [
        micro_op(64 + n, 2, operation=AluOp.REQUANTIZE, last=int(n % each == each - 1))
        for n in range(60)
    ]
    items.append(micro_op(0, last=1))
    accumulators = np.zeros((config.acc.depth, config.acc.rows, config.acc.columns), int)
    ports = {"dst_read": accumulators, "src_read": accumulators}
    unit = shared(AluUnit, config)
    _, cycles = run_unit(unit, items, ports, {"write": accumulators}, pauses(0))
    # The parameters have no copy.
    columns = config.lane_columns
    parameters = instructions * (REQUANTIZE_PARAMETERS * columns + 1)
    # The last item waits in the stall register.
    assert cycles == 59 * columns + 2 + parameters


def test_lane_multiplies_by_its_factor_and_adds() -> None:
    dut = shared(RequantizingLane, multiplies_and_adds=True)
    width = len(dut.a)
    values = interesting(width)

    async def check(ctx: Any) -> None:
        for factor in (*values, 0x12345678):
            ctx.set(dut.operation, AluOp.MULTIPLY_ADD)
            ctx.set(dut.enable, 0)
            ctx.set(dut.b, factor)
            ctx.set(dut.parameter, 0b0110)
            await ctx.tick()
            ctx.set(dut.parameter, 0)
            ctx.set(dut.enable, 1)
            pairs = [(a, b) for a in values for b in values]
            for n, (a, b) in enumerate([*pairs, *[(0, 0)] * dut.latency]):
                ctx.set(dut.a, a)
                ctx.set(dut.b, b)
                if n >= dut.latency:
                    a, b = pairs[n - dut.latency]
                    assert ctx.get(dut.result) == wrap(a * factor + b, width), (a, factor, b)
                await ctx.tick()
            # Another operation brings its own second operand.
            ctx.set(dut.operation, AluOp.MUL)
            ctx.set(dut.a, 3)
            ctx.set(dut.b, 5)
            await ctx.tick().repeat(dut.latency)
            assert ctx.get(dut.result) == 15

    simulate(dut, check)


@pytest.mark.parametrize("gaps", [0, 0.5])
def test_alu_unit_reads_one_factor_for_each_instruction(gaps: float) -> None:
    rng = np.random.default_rng(5)
    items = []
    for _ in range(40):
        # Mostly an accumulator that an earlier instruction has just written.
        factor = int(rng.integers(8))
        others = [index for index in range(8) if index != factor]
        count = int(rng.integers(1, 6))
        items += [
            micro_op(
                int(rng.choice(others)),
                int(rng.integers(8)),
                operation=AluOp.MULTIPLY_ADD,
                factor=factor,
                last=int(n == count - 1),
            )
            for n in range(count)
        ]
        operation = AluOp(int(rng.integers(5)))
        items.append(
            micro_op(int(rng.integers(8)), int(rng.integers(8)), operation=operation, last=1)
        )
    # A last micro-op, which is accepted when all others are done.
    items.append(micro_op(0, last=1))
    got, want, dones, _ = run(EXTENDED, items, gaps)
    assert np.array_equal(got, want)
    assert dones == [0] * sum(item["last"] for item in items)


def test_alu_unit_stalls_two_cycles_for_a_factor() -> None:
    copied = EXTENDED.acc.depth - copied_sources(EXTENDED)
    items = [
        micro_op(n, copied + n, operation=AluOp.MULTIPLY_ADD, factor=copied + 20, last=int(n == 15))
        for n in range(16)
    ]
    *_, cycles = run(EXTENDED, items, 0)
    assert cycles == 16 + 2


# In the least immediate, only the top bit is set.
@pytest.mark.parametrize("beyond", [EXTENDED.acc.depth, -1, -(1 << IMMEDIATE_WIDTH - 1)])
def test_a_factor_past_the_depth_is_an_error(beyond: int) -> None:
    items = [
        micro_op(1, operation=AluOp.MULTIPLY_ADD, factor=EXTENDED.acc.depth - 1, last=1),
        micro_op(2, operation=AluOp.MULTIPLY_ADD, factor=beyond, last=1),
    ]
    accumulators = np.ones((EXTENDED.acc.depth, EXTENDED.acc.rows, EXTENDED.acc.columns), int)
    ports = {"dst_read": accumulators, "src_read": accumulators}
    dones, _ = run_unit(shared(AluUnit, EXTENDED), items, ports, {"write": accumulators}, pauses(0))
    assert dones == [0, 1]
    assert (accumulators[1] == 2).all()
    assert (accumulators[2] == 1).all()


def test_alu_unit_takes_one_independent_micro_op_per_cycle() -> None:
    items = [micro_op(n % 4, 8 + n % 4) for n in range(60)]
    *_, cycles = run(CONFIG, items, 0)
    assert cycles == 60


def test_alu_unit_waits_three_cycles_for_what_the_previous_micro_op_writes() -> None:
    items = [micro_op(0, 8) for _ in range(60)]
    *_, cycles = run(CONFIG, items, 0)
    assert cycles == 60 + 59 * 3


def test_alu_unit_writes_nothing_from_a_faulty_micro_op_on() -> None:
    items = [
        micro_op(1, last=1),
        micro_op(2),
        micro_op(3, error=1),
        micro_op(1),
        micro_op(2, last=1),
    ]
    got, want, dones, _ = run(CONFIG, items, 0)
    assert np.array_equal(got, want)
    assert dones == [0, 1]
