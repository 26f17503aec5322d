"""Single instructions on NumPy arrays against `ScalarMachine`, which computes scalar by scalar.

The scalar machine defines the instruction set and shares no code with the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, AluOp, Depthwise, Forward, Gemm, Load, Memory, Multiply, Store
from amaranth_vta.sim.model.arithmetic import Tiles
from amaranth_vta.sim.model.execution import ExecutionFault, Executor
from amaranth_vta.sim.model.scalar import ScalarMachine, as_signed

MEMORY_BYTES = 2048
# Few and small elements, so that indices coincide often.
SMALL = {
    "log_block_in": 2,
    "log_block_out": 2,
    "log_uop_buff_size": 6,
    "log_inp_buff_size": 6,
    "log_wgt_buff_size": 7,
    "log_acc_buff_size": 8,
}
CONFIGS = [
    Config(**SMALL),
    Config(**SMALL | {"log_batch": 1, "log_block_in": 3}),
    Config(**SMALL | {"log_inp_width": 2, "log_wgt_width": 2, "log_block_in": 3}),
    Config(**SMALL | {"log_inp_width": 2, "log_out_width": 3, "log_block_out": 3}),
    Config(**SMALL | {"log_acc_width": 4, "log_wgt_width": 2}),
    Config(**SMALL | {"log_acc_width": 4, "log_out_width": 4, "log_batch": 2}),
    Config(**SMALL | {"log_out_width": 5}),
    Config(**SMALL | {"log_out_width": 2}),
]

EXTENDED = [
    Config(**SMALL, overwrite=1, overlap=1, requantize=1),
    Config(**SMALL | {"log_batch": 1, "log_block_in": 3}, overwrite=1, requantize=1, round_twice=1),
    Config(**SMALL | {"log_inp_width": 2, "log_wgt_width": 2}, overwrite=1, requantize=1),
]
# Tables of 16 elements, of 1, of 32 in 16-bit accumulators, and of half an element.
TABLES = [
    Config(**SMALL | {"log_acc_buff_size": 9}, lookup=1),
    Config(**SMALL | {"log_batch": 2, "log_block_out": 4, "log_acc_buff_size": 10}, lookup=1),
    Config(**SMALL | {"log_acc_width": 4, "log_acc_buff_size": 9}, lookup=1),
    Config(**SMALL | {"log_batch": 3, "log_block_out": 4, "log_acc_buff_size": 11}, lookup=1),
]
MULTIPLYING = [
    Config(**SMALL, requantize=1, multiply_add=1),
    Config(**SMALL | {"log_batch": 1, "log_block_in": 3}, requantize=1, multiply_add=1),
]
FORWARDING = [
    Config(**SMALL, forward=1),
    Config(**SMALL | {"log_batch": 1, "log_inp_width": 2, "log_wgt_width": 2}, forward=1),
    # Input and output elements have equally many bits, but input elements have more scalars.
    Config(
        **SMALL | {"log_inp_width": 2, "log_out_width": 3, "log_block_in": 3, "log_acc_width": 4},
        forward=1,
    ),
]
PADDED = [
    Config(**SMALL, pad_value=1),
    Config(**SMALL | {"log_inp_width": 2, "log_out_width": 3, "log_block_out": 3}, pad_value=1),
    Config(**SMALL | {"log_acc_width": 4, "log_wgt_width": 2}, pad_value=1),
]


def scalar_machine(executor: Executor) -> ScalarMachine:
    """A `ScalarMachine` with the contents of ``executor``."""
    scratchpads = {
        name: [element.reshape(-1).tolist() for element in getattr(executor, name).tiles]
        for name in ("uop", "inp", "wgt", "acc")
    }
    return ScalarMachine(executor.config, bytearray(executor.memory.tobytes()), scratchpads)


def executor_of(config: Config, seed: int) -> Executor:
    memory = np.random.default_rng(seed).integers(256, size=MEMORY_BYTES, dtype=np.uint8)
    executor = Executor(config, memory, seed)
    # Some accumulators are shift amounts, zeros and extremes.
    chance = np.random.default_rng(seed + 1)
    small = chance.integers(-40, 40, executor.acc.tiles.shape)
    kind = chance.integers(4, size=small.shape)
    extremes = np.where(kind == 3, -1 << config.acc_width - 1, small)
    executor.acc.tiles[:] = np.where(kind > 0, extremes, executor.acc.tiles)
    return executor


def test_an_instruction_that_begins_after_the_deadline_is_a_timeout() -> None:
    executor = executor_of(CONFIGS[0], 0)
    executor.deadline = time.monotonic() - 0.5
    with pytest.raises(ExecutionFault) as found:
        executor.execute(0, Gemm(uop_end=1))
    assert found.value.cause is isa.Cause.TIMEOUT


def assert_same_effect(
    config: Config, seed: int, instruction: isa.Instruction, uop_words: Sequence[int] = ()
) -> None:
    executor = executor_of(config, seed)
    executor.uop.tiles[: len(uop_words), 0, 0] = uop_words
    machine = scalar_machine(executor)
    executor.execute(0, instruction)
    machine.execute(instruction)
    assert_same_contents(executor, machine)


def assert_same_contents(executor: Executor, machine: ScalarMachine) -> None:
    after = scalar_machine(executor)
    assert after.scratchpads == machine.scratchpads
    assert after.memory == machine.memory


configs = st.sampled_from(CONFIGS)
seeds = st.integers(0, 1000)


@st.composite
def transfers(draw: Any, config: Config, memory: Memory) -> dict[str, int]:
    padded = memory is not Memory.OUT
    depth = (config.acc if memory in (Memory.ACC_8BIT, Memory.OUT) else config.memory(memory)).depth
    pads = {}
    if padded and draw(st.booleans()):
        pads = {
            name: draw(st.integers(0, 3)) for name in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
        }
    x_size, y_size = draw(st.integers(0, 5)), draw(st.integers(0, 4))
    fields = {"x_size": x_size, "y_size": y_size, "x_stride": draw(st.integers(0, 7)), **pads}
    elements = Load(memory=memory, **fields).elements
    if elements > depth:
        fields |= {"x_size": 1, "y_size": 1, **dict.fromkeys(pads, 0)}
        elements = 1
    fields["sram_base"] = draw(st.integers(0, depth - elements))
    reach = max(fields["y_size"] - 1, 0) * fields["x_stride"] + fields["x_size"]
    most = MEMORY_BYTES // config.memory(memory).element_bytes - reach
    return {**fields, "dram_base": draw(st.integers(0, most))}


@settings(max_examples=300)
@given(st.data(), configs, seeds)
def test_loads_do_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    memory = data.draw(st.sampled_from([memory for memory in Memory if memory is not Memory.OUT]))
    load = Load(memory=memory, **data.draw(transfers(config, memory)))
    assert_same_effect(config, seed, load)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(PADDED), seeds)
def test_loads_pad_with_what_was_set(data: st.DataObject, config: Config, seed: int) -> None:
    executor = executor_of(config, seed)
    machine = scalar_machine(executor)
    for index in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            padding = data.draw(st.sampled_from(list(isa.Padding)))
            bits = data.draw(st.integers(0, (1 << 32) - 1))
            set_padding = isa.SetPadding(memory=padding, dram_base=bits)
            executor.execute(index, set_padding)
            machine.execute(set_padding)
        loaded = [memory for memory in Memory if memory is not Memory.OUT]
        memory = data.draw(st.sampled_from(loaded))
        load = Load(memory=memory, **data.draw(transfers(config, memory)))
        executor.execute(index, load)
        machine.execute(load)
    assert_same_contents(executor, machine)


@settings(max_examples=200)
@given(st.data(), configs, seeds)
def test_stores_do_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    assert_same_effect(config, seed, Store(**data.draw(transfers(config, Memory.OUT))))


@st.composite
def kernels(draw: Any, config: Config, depths: dict[str, int]) -> tuple[dict[str, int], list[int]]:
    """Loop fields, and micro-ops from number 0 up, with all indices within ``depths``."""
    count = draw(st.integers(0, 5))
    fields = {
        "uop_begin": 0,
        "uop_end": count,
        "iter_out": draw(st.integers(0, 4)),
        "iter_in": draw(st.integers(0, 4)),
    }
    words = [0] * count
    layout = isa.instruction_set(config).uop_layout
    for name, depth in depths.items():
        left = depth - 1
        for loop in ("out", "in"):
            steps = fields[f"iter_{loop}"] - 1
            most = depth - 1 if steps < 1 else left // steps
            factor = draw(st.integers(0, min(most, 2)))
            fields[f"{name}_factor_{loop}"] = factor
            left -= max(steps, 0) * factor
        for number in range(count):
            words[number] |= layout[name].insert(draw(st.integers(0, left)))
    return fields, words


@settings(max_examples=300)
@given(st.data(), configs, seeds)
def test_gemm_does_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    depths = {"dst": config.acc.depth, "src": config.inp.depth, "wgt": config.wgt.depth}
    fields, words = data.draw(kernels(config, depths))
    reset = data.draw(st.sampled_from((0, 0, 0, 1)))
    assert_same_effect(config, seed, Gemm(reset=reset, **fields), words)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(EXTENDED), seeds)
def test_multiply_keeps_the_last_product(data: st.DataObject, config: Config, seed: int) -> None:
    depths = {"dst": config.acc.depth, "src": config.inp.depth, "wgt": config.wgt.depth}
    fields, words = data.draw(kernels(config, depths))
    assert_same_effect(config, seed, Multiply(**fields), words)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(EXTENDED), seeds)
def test_depthwise_products_are_of_several_inputs(
    data: st.DataObject, config: Config, seed: int
) -> None:
    first_inputs = config.inp.depth - config.taps + 1
    depths = {"dst": config.acc.depth, "src": first_inputs, "wgt": config.wgt.depth}
    fields, words = data.draw(kernels(config, depths))
    overwrite = data.draw(st.integers(0, 1))
    assert_same_effect(config, seed, Depthwise(overwrite=overwrite, **fields), words)


@settings(max_examples=300)
@given(st.data(), st.sampled_from(FORWARDING), seeds)
def test_forwarded_results_are_inputs(data: st.DataObject, config: Config, seed: int) -> None:
    sizes = st.integers(0, 4)
    fields = {
        name: data.draw(st.integers(0, 2)) for name in ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
    }
    fields |= {name: data.draw(sizes) for name in ("x_size", "y_size", "x_stride")}
    first, padding = (
        data.draw(st.integers(0, config.acc.depth - 1)),
        data.draw(st.integers(-(1 << 15), (1 << 15) - 1)),
    )
    forward = Forward(
        sram_base=data.draw(st.integers(0, config.inp.depth - 1)),
        dram_base=isa.forward_base(first, padding),
        **fields,
    )
    assert (forward.source, forward.padding) == (first, padding)
    behind = forward.sram_base + forward.elements
    reads = forward.x_size > 0 and forward.y_size > 0
    if (forward.elements and behind > config.inp.depth) or (
        reads and forward.source_end > config.acc.depth
    ):
        executor = executor_of(config, seed)
        inputs = executor.inp.tiles.copy()
        with pytest.raises(ExecutionFault) as found:
            executor.execute(0, forward)
        assert found.value.cause is isa.Cause.INDEX_OUT_OF_RANGE
        assert np.array_equal(executor.inp.tiles, inputs)
        return
    assert_same_effect(config, seed, forward)


@settings(max_examples=400)
@given(st.data(), st.sampled_from(EXTENDED), seeds)
def test_requantize_does_what_numpy_floats_do(
    data: st.DataObject, config: Config, seed: int
) -> None:
    # Parameters are arbitrary, and may be results of an earlier micro-op.
    most = data.draw(st.sampled_from((5, config.acc.depth)))
    depths = {"dst": most, "src": most + 1 - isa.REQUANTIZE_PARAMETERS}
    fields, words = data.draw(kernels(config, depths))
    alu = Alu(alu_opcode=AluOp.REQUANTIZE, immediate=data.draw(st.integers(-3, 3)), **fields)
    assert_same_effect(config, seed, alu, words)


@settings(max_examples=200)
@given(st.data(), st.sampled_from(TABLES), seeds)
def test_lookups_do_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    # Tables are arbitrary, and may be results of an earlier micro-op.
    depths = {"dst": config.acc.depth, "src": config.acc.depth + 1 - config.table_elements}
    fields, words = data.draw(kernels(config, depths))
    alu = Alu(alu_opcode=AluOp.LOOKUP, immediate=data.draw(st.integers(-3, 3)), **fields)
    assert_same_effect(config, seed, alu, words)


@settings(max_examples=400)
@given(st.data(), st.sampled_from(MULTIPLYING), seeds)
def test_multiply_add_does_what_the_page_says(
    data: st.DataObject, config: Config, seed: int
) -> None:
    # Few accumulators, so that sources and sometimes the factor are results of earlier micro-ops.
    most = data.draw(st.sampled_from((2, 4, config.acc.depth)))
    fields, words = data.draw(kernels(config, {"dst": most, "src": most}))
    alu = multiply_add(data.draw(st.integers(0, most - 1)), **fields)
    assert_same_effect(config, seed, alu, words)


def multiply_add(factor: int, **fields: int) -> Alu:
    immediate = isa.factor_immediate(factor)
    return Alu(alu_opcode=AluOp.MULTIPLY_ADD, immediate=immediate, **fields)


def after_multiply_add(contents: Tiles, factor: int, uop: isa.Uop, **fields: int) -> Tiles:
    """The accumulators, of one row each, after one micro-op; ``contents`` are the initial ones from
    ACC[0] on.
    """
    config = MULTIPLYING[0]
    executor = executor_of(config, 1)
    executor.acc.tiles[: len(contents), 0] = contents
    executor.uop.tiles[0] = isa.instruction_set(config).encode_uop(uop)
    executor.execute(0, multiply_add(factor, uop_end=1, **fields))
    found: Tiles = executor.acc.tiles[: len(contents), 0]
    return found


def test_a_sum_that_is_multiplied_in_each_iteration_is_a_polynomial() -> None:
    """Horner's scheme in ACC[0], with coefficients from ACC[1] on and the argument of each lane in
    ACC[9].
    """
    contents = np.random.default_rng(1).integers(-1000, 1000, (10, 4)).astype(np.int32)
    contents[9] = [100, -100, 12345, -(1 << 31) + 1]
    found = after_multiply_add(contents, 9, isa.Uop(0, 1), iter_in=8, src_factor_in=1)
    for lane in range(4):
        exact = 0
        for coefficient in contents[:9, lane].tolist():
            exact = exact * int(contents[9, lane]) + coefficient
        assert abs(exact) > 1 << 31
        assert found[0, lane] == as_signed(exact, 32)
    assert np.array_equal(found[1:], contents[1:])


def test_a_product_is_added_to_the_next_result() -> None:
    """Each source is the previous iteration's destination."""
    contents = np.full((8, 4), 3, np.int32)
    contents[7] = [0, 1, 10, -2]
    steps = {"iter_in": 6, "dst_factor_in": 1, "src_factor_in": 1}
    found = after_multiply_add(contents, 7, isa.Uop(1, 0), **steps)
    at = np.arange(7)[:, np.newaxis]
    assert np.array_equal(found[:7], 3 + 3 * at * contents[7])


def test_multiply_add_reads_its_factor_within_the_depth() -> None:
    config = MULTIPLYING[0]
    depth = config.acc.depth
    for factor, uops, fits in (
        (depth - 1, 1, True),
        (depth, 1, False),
        ((1 << 16) - 1, 1, False),
        (depth, 0, True),
    ):
        executor = executor_of(config, 1)
        executor.uop.tiles[0] = 0
        before = executor.acc.tiles.copy()
        if fits:
            executor.execute(0, multiply_add(factor, uop_end=uops))
        else:
            with pytest.raises(ExecutionFault, match="index_out_of_range"):
                executor.execute(0, multiply_add(factor, uop_end=uops))
            assert np.array_equal(executor.acc.tiles, before)


def test_requantize_reads_its_parameters_within_the_depth() -> None:
    config = EXTENDED[0]
    depth = config.acc.depth
    last = depth - isa.REQUANTIZE_PARAMETERS
    for src, fits in ((last, True), (last + 1, False), (depth - 1, False)):
        executor = executor_of(config, 1)
        executor.uop.tiles[0] = isa.instruction_set(config).encode_uop(isa.Uop(0, src))
        alu = Alu(alu_opcode=AluOp.REQUANTIZE, uop_end=1)
        if fits:
            executor.execute(0, alu)
        else:
            with pytest.raises(ExecutionFault, match="index_out_of_range"):
                executor.execute(0, alu)


@settings(max_examples=600)
@given(st.data(), configs, seeds)
def test_alu_does_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    # Few accumulators, so that micro-ops use each other's results in all ways.
    most = data.draw(st.sampled_from((2, 4, config.acc.depth)))
    depths = {"dst": min(most, config.acc.depth), "src": min(most, config.acc.depth)}
    fields, words = data.draw(kernels(config, depths))
    alu = Alu(
        alu_opcode=data.draw(st.sampled_from(isa.BASE_ALU_OPS)),
        use_immediate=data.draw(st.integers(0, 1)),
        immediate=data.draw(st.integers(-40, 40) | st.integers(-(1 << 15), (1 << 15) - 1)),
        **fields,
    )
    assert_same_effect(config, seed, alu, words)


@pytest.mark.parametrize("width", [4, 5])
@pytest.mark.parametrize("operation", isa.BASE_ALU_OPS)
def test_alu_results_at_the_extremes(operation: AluOp, width: int) -> None:
    config = Config(**SMALL | {"log_acc_width": width})
    bits = config.acc_width
    values = [0, 1, -1, 2, 7, bits - 1, bits, bits + 1, -bits + 1, -bits, -bits - 1]
    values += [(1 << bits - 1) - 1, -1 << bits - 1, 12345, -12345]
    for immediate in [value for value in values if -(1 << 15) <= value < 1 << 15]:
        for source in values:
            for use_immediate in (0, 1):
                executor = executor_of(config, 1)
                executor.acc.tiles[0] = np.resize(values, (1, 4))
                executor.acc.tiles[1] = source
                executor.uop.tiles[0] = isa.instruction_set(config).encode_uop(isa.Uop(0, 1))
                machine = scalar_machine(executor)
                alu = Alu(
                    alu_opcode=operation,
                    uop_end=1,
                    use_immediate=use_immediate,
                    immediate=immediate,
                )
                executor.execute(0, alu)
                machine.execute(alu)
                assert_same_contents(executor, machine)


def test_more_micro_ops_than_a_chunk_holds_are_all_done() -> None:
    config = CONFIGS[0]
    executor = executor_of(config, 1)
    executor.acc.tiles[:] = 0
    executor.uop.tiles[0] = 0
    alu = Alu(
        alu_opcode=AluOp.ADD, use_immediate=1, immediate=3, uop_end=1, iter_out=300, iter_in=299
    )
    executor.execute(0, alu)
    assert (executor.acc.tiles[0] == 3 * 300 * 299).all()
    executor.inp.tiles[0] = -128
    executor.wgt.tiles[0] = -128
    gemm = Gemm(
        uop_end=1,
        iter_out=300,
        iter_in=299,
    )
    executor.acc.tiles[0] = 0
    executor.execute(1, gemm)
    total = 4 * 128 * 128 * 300 * 299
    assert (executor.acc.tiles[0] == (total + (1 << 31)) % (1 << 32) - (1 << 31)).all()
