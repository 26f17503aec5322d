"""Single instructions against an interpreter that does one scalar at a time.

The interpreter follows the page of the instruction set and shares no code with the model: Python
integers in lists, and a bytearray.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, AluOp, Gemm, Load, Memory, Multiply, Store
from amaranth_vta.sim.model.execution import ExecutionFault, Executor

MEMORY_BYTES = 2048
# Few and small elements, in which indices meet often.
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
    Config(**SMALL | {"log_batch": 1, "log_block_in": 3}, overwrite=1, requantize=1),
    Config(**SMALL | {"log_inp_width": 2, "log_wgt_width": 2}, overwrite=1, requantize=1),
]
PADDED = [
    Config(**SMALL, pad_value=1),
    Config(**SMALL | {"log_inp_width": 2, "log_out_width": 3, "log_block_out": 3}, pad_value=1),
    Config(**SMALL | {"log_acc_width": 4, "log_wgt_width": 2}, pad_value=1),
]


class Interpreter:
    def __init__(self, config: Config, executor: Executor) -> None:
        self.config = config
        self.memory = bytearray(executor.memory.tobytes())
        self.scratchpads = {
            name: [element.reshape(-1).tolist() for element in scratchpad.tiles]
            for name, scratchpad in vars(executor).items()
            if name in ("uop", "inp", "wgt", "acc")
        }
        # The bits that LOADs of memory ids 6 and 7 have set.
        self.pads = {6: 0, 7: 0}

    # LOAD and STORE.

    def scalar(self, address: int, number: int, width: int, signed: bool) -> int:
        """The ``number``-th scalar of the element at byte ``address``."""
        bit = number * width
        value = 0
        for position in range(width):
            at = bit + position
            value |= (self.memory[address + at // 8] >> at % 8 & 1) << position
        return value - (1 << width) if signed and value >> width - 1 else value

    def pad_scalar(self, memory: Memory) -> int:
        """Of micro-ops zero; else the low bits of what was set for the memory's module."""
        if memory is Memory.UOP:
            return 0
        inputs = memory in (Memory.INP, Memory.WGT)
        width = self.config.memory(memory).scalar_width if inputs else self.config.acc_width
        low = self.pads[6 if inputs else 7] % (1 << width)
        return low - (1 << width) if low >> width - 1 else low

    def load(self, load: Load) -> None:
        if load.x_size == 0:
            return
        names = {Memory.UOP: "uop", Memory.INP: "inp", Memory.WGT: "wgt"}
        target = self.scratchpads[names.get(Memory(load.memory), "acc")]
        source = self.config.memory(Memory(load.memory))
        scalars = source.rows * source.columns
        padding = [self.pad_scalar(Memory(load.memory))] * scalars
        at = load.sram_base
        for y in range(-load.y_pad_0, load.y_size + load.y_pad_1):
            for x in range(-load.x_pad_0, load.x_size + load.x_pad_1):
                if 0 <= y < load.y_size and 0 <= x < load.x_size:
                    address = (load.dram_base + y * load.x_stride + x) * source.element_bytes
                    target[at] = [
                        self.scalar(address, n, source.scalar_width, source.name != "UOP")
                        for n in range(scalars)
                    ]
                else:
                    target[at] = list(padding)
                at += 1

    def store(self, store: Store) -> None:
        width = self.config.out_width
        size = self.config.out.element_bytes
        at = store.sram_base
        for y in range(store.y_size):
            for x in range(store.x_size):
                bits = 0
                for number, value in enumerate(self.scratchpads["acc"][at]):
                    bits |= (value % (1 << width)) << number * width
                address = (store.dram_base + y * store.x_stride + x) * size
                self.memory[address : address + size] = bits.to_bytes(size, "little")
                at += 1

    # GEMM and ALU.

    def wrapped(self, value: int) -> int:
        width = self.config.acc_width
        value %= 1 << width
        return value - (1 << width) if value >> width - 1 else value

    def uop(self, number: int) -> tuple[int, int, int]:
        """The fields dst, src, wgt, from bit 0 up."""
        depths = [self.config.acc.depth, self.config.inp.depth, self.config.wgt.depth]
        a, i, w = ((depth - 1).bit_length() for depth in depths)
        word = self.scratchpads["uop"][number][0]
        src = word >> a & (1 << max(a, i)) - 1
        return word & (1 << a) - 1, src, word >> a + max(a, i) & (1 << w) - 1

    def gemm(self, gemm: Gemm) -> None:
        batch, k, n = self.config.batch, self.config.block_in, self.config.block_out
        acc, inp, wgt = (self.scratchpads[name] for name in ("acc", "inp", "wgt"))
        for o in range(gemm.iter_out):
            for i in range(gemm.iter_in):
                for u in range(gemm.uop_begin, gemm.uop_end):
                    dst, src, weight = self.uop(u)
                    dst += o * gemm.dst_factor_out + i * gemm.dst_factor_in
                    src += o * gemm.src_factor_out + i * gemm.src_factor_in
                    weight += o * gemm.wgt_factor_out + i * gemm.wgt_factor_in
                    for b in range(batch):
                        for c in range(n):
                            if gemm.reset:
                                acc[dst][b * n + c] = 0
                                continue
                            total = 0 if isinstance(gemm, Multiply) else acc[dst][b * n + c]
                            for r in range(k):
                                total += inp[src][b * k + r] * wgt[weight][c * k + r]
                            acc[dst][b * n + c] = self.wrapped(total)

    def alu(self, alu: Alu) -> None:
        acc = self.scratchpads["acc"]
        for o in range(alu.iter_out):
            for i in range(alu.iter_in):
                for u in range(alu.uop_begin, alu.uop_end):
                    dst, src, _ = self.uop(u)
                    dst += o * alu.dst_factor_out + i * alu.dst_factor_in
                    src += o * alu.src_factor_out + i * alu.src_factor_in
                    if alu.alu_opcode == AluOp.REQUANTIZE:
                        acc[dst] = [
                            requantized_scalar(*lane)
                            for lane in zip(
                                acc[dst], *acc[src : src + isa.REQUANTIZE_PARAMETERS], strict=True
                            )
                        ]
                        continue
                    second = [alu.immediate] * len(acc[dst])
                    if not alu.use_immediate:
                        second = list(acc[src])
                    acc[dst] = [
                        self.wrapped(self.operation(alu.alu_opcode, a, b))
                        for a, b in zip(acc[dst], second, strict=True)
                    ]

    def operation(self, opcode: int, a: int, b: int) -> int:
        match AluOp(opcode):
            case AluOp.MIN:
                return min(a, b)
            case AluOp.MAX:
                return max(a, b)
            case AluOp.ADD:
                return a + b
            case AluOp.MUL:
                return a * b
            case AluOp.SHR:
                if abs(b) >= self.config.acc_width:
                    return (-1 if a < 0 else 0) if b > 0 else 0
                return a >> b if b >= 0 else a << -b
            case AluOp.REQUANTIZE:
                raise AssertionError("requantized_scalar does it")


def requantized_scalar(acc: int, bias: int, low_scale: int, high_scale: int, bounds: int) -> int:
    total = (acc + bias + (1 << 31)) % (1 << 32) - (1 << 31)
    if bounds >> 24 & 1:
        total = total >> 7 | (total % 128 > 0)
    scale = low_scale % (1 << 32) | high_scale % (1 << 17) << 32
    # Python rounds half to even, too.
    quotient = round(to_24_bits(Fraction(total * scale, 1 << 43)))
    if not -1 << 24 <= total < 1 << 24:
        quotient = 1000 if total > 0 else -1000
    zero_point, low, high = ((bounds >> shift & 255 ^ 128) - 128 for shift in (0, 8, 16))
    return min(max(quotient + zero_point, low), high)


def to_24_bits(value: Fraction) -> Fraction:
    """Rounded to a float of 24 bits and any exponent."""
    if not value:
        return value
    unit = Fraction(1)
    while abs(value) / unit >= 1 << 24:
        unit *= 2
    while abs(value) / unit < 1 << 23:
        unit /= 2
    return round(value / unit) * unit


def executor_of(config: Config, seed: int) -> Executor:
    memory = np.random.default_rng(seed).integers(256, size=MEMORY_BYTES, dtype=np.uint8)
    executor = Executor(config, memory, seed)
    # Amounts to shift by, zeros and extremes among the accumulators.
    chance = np.random.default_rng(seed + 1)
    small = chance.integers(-40, 40, executor.acc.tiles.shape)
    kind = chance.integers(4, size=small.shape)
    extremes = np.where(kind == 3, -1 << config.acc_width - 1, small)
    executor.acc.tiles[:] = np.where(kind > 0, extremes, executor.acc.tiles)
    return executor


def assert_same_effect(
    config: Config, seed: int, instruction: isa.Instruction, uop_words: Sequence[int] = ()
) -> None:
    executor = executor_of(config, seed)
    executor.uop.tiles[: len(uop_words), 0, 0] = uop_words
    interpreter = Interpreter(config, executor)
    executor.execute(0, instruction)
    match instruction:
        case Load():
            interpreter.load(instruction)
        case Store():
            interpreter.store(instruction)
        case Gemm():
            interpreter.gemm(instruction)
        case Alu():
            interpreter.alu(instruction)
    after = Interpreter(config, executor)
    assert after.scratchpads == interpreter.scratchpads
    assert bytes(after.memory) == bytes(interpreter.memory)


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


@settings(max_examples=300, deadline=None)
@given(st.data(), configs, seeds)
def test_loads_do_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    memory = data.draw(st.sampled_from([memory for memory in Memory if memory is not Memory.OUT]))
    load = Load(memory=memory, **data.draw(transfers(config, memory)))
    assert_same_effect(config, seed, load)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(PADDED), seeds)
def test_loads_pad_with_what_was_set(data: st.DataObject, config: Config, seed: int) -> None:
    executor = executor_of(config, seed)
    interpreter = Interpreter(config, executor)
    for index in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            padding = data.draw(st.sampled_from(list(isa.Padding)))
            bits = data.draw(st.integers(0, (1 << 32) - 1))
            executor.execute(index, isa.SetPadding(memory=padding, dram_base=bits))
            interpreter.pads[int(padding)] = bits
        loaded = [memory for memory in Memory if memory is not Memory.OUT]
        memory = data.draw(st.sampled_from(loaded))
        load = Load(memory=memory, **data.draw(transfers(config, memory)))
        executor.execute(index, load)
        interpreter.load(load)
    assert Interpreter(config, executor).scratchpads == interpreter.scratchpads


@settings(max_examples=200, deadline=None)
@given(st.data(), configs, seeds)
def test_stores_do_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    assert_same_effect(config, seed, Store(**data.draw(transfers(config, Memory.OUT))))


@st.composite
def kernels(draw: Any, config: Config, depths: dict[str, int]) -> tuple[dict[str, int], list[int]]:
    """Loop fields, and micro-ops from number 0 up, whose indices are all within ``depths``."""
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


@settings(max_examples=300, deadline=None)
@given(st.data(), configs, seeds)
def test_gemm_does_what_the_page_says(data: st.DataObject, config: Config, seed: int) -> None:
    depths = {"dst": config.acc.depth, "src": config.inp.depth, "wgt": config.wgt.depth}
    fields, words = data.draw(kernels(config, depths))
    reset = data.draw(st.sampled_from((0, 0, 0, 1)))
    assert_same_effect(config, seed, Gemm(reset=reset, **fields), words)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(EXTENDED), seeds)
def test_multiply_keeps_the_last_product(data: st.DataObject, config: Config, seed: int) -> None:
    depths = {"dst": config.acc.depth, "src": config.inp.depth, "wgt": config.wgt.depth}
    fields, words = data.draw(kernels(config, depths))
    assert_same_effect(config, seed, Multiply(**fields), words)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.sampled_from(EXTENDED), seeds)
def test_requantize_does_what_numpy_floats_do(
    data: st.DataObject, config: Config, seed: int
) -> None:
    # Parameters are whatever there is, and may be what an earlier micro-op made.
    most = data.draw(st.sampled_from((5, config.acc.depth)))
    depths = {"dst": most, "src": most + 1 - isa.REQUANTIZE_PARAMETERS}
    fields, words = data.draw(kernels(config, depths))
    alu = Alu(alu_opcode=AluOp.REQUANTIZE, immediate=data.draw(st.integers(-3, 3)), **fields)
    assert_same_effect(config, seed, alu, words)


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


@settings(max_examples=600, deadline=None)
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
                interpreter = Interpreter(config, executor)
                alu = Alu(
                    alu_opcode=operation,
                    uop_end=1,
                    use_immediate=use_immediate,
                    immediate=immediate,
                )
                executor.execute(0, alu)
                interpreter.alu(alu)
                assert Interpreter(config, executor).scratchpads == interpreter.scratchpads


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
