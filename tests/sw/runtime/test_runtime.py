from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.kernels import CommandError, UopMode
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault

MakeDevice = Callable[..., Any]
TINY = PRESETS["tiny"]
# 16,384 accumulators: one more than the iterations that an instruction counts.
DEEP = Config(
    log_block_in=2,
    log_block_out=2,
    log_uop_buff_size=8,
    log_inp_buff_size=9,
    log_wgt_buff_size=6,
    log_acc_buff_size=18,
)
# 65,536 inputs and micro-ops: more than the elements that an instruction counts.
WIDE = replace(TINY, log_inp_buff_size=18)
MANY_UOPS = replace(TINY, log_uop_buff_size=18)
UOPS64 = replace(TINY, log_uop_buff_size=8)
LIMITS = [None, 2, 3, 7]


def runtime_of(config: Config, stream_limit: int | None = None, order: str = "program") -> Runtime:
    device = FunctionalDevice(config, 1 << 22, order)
    return Runtime(device) if stream_limit is None else Runtime(device, stream_limit)


def array_buffer(runtime: Runtime, array: npt.NDArray[Any], name: str = "data") -> Buffer:
    buffer = runtime.allocate(array.nbytes, name)
    buffer.write(array)
    return buffer


def load(
    runtime: Runtime, buffer: Buffer, x_size: int, sram_index: int = 0, memory: Memory = Memory.ACC
) -> None:
    runtime.load_buffer_2d(buffer, 0, x_size, 1, x_size, 0, 0, 0, 0, sram_index, memory)


def add_immediate(runtime: Runtime, immediate: int, count: int, begin: int = 0) -> None:
    def body() -> None:
        runtime.uop_loop_begin(count, 1, 1, 0)
        runtime.uop_push(1, 0, begin, begin, 0, AluOp.ADD, 1, immediate)
        runtime.uop_loop_end()

    runtime.push_alu(body, ("add", immediate, count, begin))


def stored(runtime: Runtime, sram_index: int, count: int) -> npt.NDArray[np.int8]:
    """Low bytes of accumulators, after everything that is queued."""
    buffer = runtime.allocate(count * runtime.config.out.element_bytes, "stored")
    runtime.dep_push(Module.COMPUTE, Module.STORE)
    runtime.dep_pop(Module.COMPUTE, Module.STORE)
    runtime.store_buffer_2d(sram_index, buffer, 0, count, 1, count)
    runtime.synchronize()
    shape = (count, runtime.config.out.rows * runtime.config.out.columns)
    return buffer.read(np.int8, shape)


# Data.


def test_one_call_is_one_instruction_where_it_fits(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    runtime.allocate(640)
    buffer = runtime.allocate(1024)
    runtime.load_buffer_2d(buffer, 5, 4, 3, 9, 1, 2, 3, 1, 7, Memory.INP)
    runtime.store_buffer_2d(11, buffer, 6, 4, 3, 8)
    runtime.synchronize()
    first, second, _ = device.runs[0]
    assert first == isa.Load(
        memory=Memory.INP,
        sram_base=7,
        dram_base=buffer.address // 4 + 5,
        y_size=3,
        x_size=4,
        x_stride=9,
        y_pad_0=2,
        y_pad_1=1,
        x_pad_0=1,
        x_pad_1=3,
    )
    assert second == isa.Store(
        sram_base=11, dram_base=buffer.address // 4 + 6, y_size=3, x_size=4, x_stride=8
    )


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride", "pads"),
    [
        (5, 4, 7, (1, 2, 3, 0)),
        (5, 4, 7, (20, 0, 1, 3)),  # pads in the order x before, y before, x after, y after
        (5, 4, 7, (0, 17, 2, 16)),
        (3, 2, 70_000, (2, 1, 0, 1)),
        (3, 2, 70_000, (0, 0, 0, 40)),
        (16_384, 1, 0, (0, 0, 0, 0)),
        (2, 3, 0, (1, 0, 0, 0)),
        (0, 3, 0, (1, 1, 1, 0)),
        (4, 0, 0, (1, 1, 1, 2)),
        (0, 0, 5, (0, 0, 0, 0)),
    ],
)
def test_loads_of_any_size_stride_and_padding_give_what_they_say(
    x_size: int, y_size: int, stride: int, pads: tuple[int, int, int, int]
) -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 23))
    data = np.arange(200_000 * 4, dtype=np.int32).reshape(-1, 4) % 251 - 125
    buffer = array_buffer(runtime, data)
    x_before, y_before, x_after, y_after = pads
    rows = y_before + y_size + y_after
    width = x_before + x_size + x_after
    expected = np.zeros((rows, width, 4), np.int32)
    for y in range(y_size):
        expected[y_before + y, x_before : x_before + x_size] = data[9 + y * stride :][:x_size]
    count = rows * width
    first = DEEP.acc.depth - count  # up to the last element
    runtime.load_buffer_2d(
        buffer, 9, x_size, y_size, stride, x_before, y_before, x_after, y_after, first, Memory.ACC
    )
    if count:
        assert (stored(runtime, first, count) == expected.reshape(-1, 4)).all()
    else:
        assert runtime.dump() == ""


@pytest.mark.parametrize("stream_limit", [None, 2, 3])
def test_padding_has_the_value_that_is_asked_for(stream_limit: int | None) -> None:
    """Also where the loads of one call are spread over several runs."""
    config = replace(DEEP, pad_value=1)
    runtime = runtime_of(config, stream_limit)
    data = np.arange(64, dtype=np.int32).reshape(-1, 4)
    buffer = array_buffer(runtime, data)
    expected: list[npt.NDArray[Any]] = []
    for value, pads in ((-7, 2), (0, 1), (5, 17), (5, 0), (-7, 18)):
        begin = sum(len(image) for image in expected)
        runtime.load_buffer_2d(buffer, 3, 2, 2, 5, pads, 1, 0, pads, begin, Memory.ACC, value)
        image = np.full((1 + 2 + pads, pads + 2, 4), value)
        for y in range(2):
            image[1 + y, pads:] = data[3 + 5 * y :][:2]
        expected.append(image.reshape(-1, 4))
    everything = np.concatenate(expected)
    assert (stored(runtime, 0, len(everything)) == everything).all()


def test_a_padding_value_is_set_only_where_it_changes(fake_device: MakeDevice) -> None:
    device = fake_device(PRESETS["tiny-extended"])
    runtime = Runtime(device)
    buffer = runtime.allocate(1024)

    def load_padded(memory: Memory, value: int, pad: int = 1) -> None:
        runtime.load_buffer_2d(buffer, 0, 2, 1, 2, pad, 0, 0, 0, 0, memory, value)

    for _ in range(2):
        load_padded(Memory.INP, 0)
        load_padded(Memory.INP, -128)
        load_padded(Memory.WGT, -128)
        load_padded(Memory.INP, 9, pad=0)
        load_padded(Memory.ACC, -128)
        load_padded(Memory.UOP, 0)
        load_padded(Memory.ACC_8BIT, -128)
        runtime.synchronize()
    values = [isa.set_padding(padding, -128) for padding in isa.Padding]
    for run in device.runs:
        assert [item for item in run if isinstance(item, isa.SetPadding)] == values
        assert len(run) == 7 + 2 + 1


def test_padding_that_the_machine_cannot_do_is_refused(fake_device: MakeDevice) -> None:
    for config, memory, value, message in (
        (TINY, Memory.INP, 1, "INP padded with 1: those of a machine without PAD_VALUE are padded"),
        (PRESETS["tiny-extended"], Memory.UOP, 1, "UOP padded with 1: those are padded with 0"),
        (PRESETS["tiny-extended"], Memory.INP, 128, "padded with 128, which is not within int8"),
        (PRESETS["tiny-extended"], Memory.WGT, -129, "padded with -129, which is not within int8"),
        (PRESETS["tiny-extended"], Memory.ACC_8BIT, 1 << 31, "which is not within int32"),
    ):
        runtime = Runtime(fake_device(config))
        buffer = runtime.allocate(1024)
        with pytest.raises(CommandError, match=message):
            runtime.load_buffer_2d(buffer, 0, 2, 1, 2, 1, 0, 0, 0, 0, memory, value)
        assert runtime.dump() == ""


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride", "x_before", "x_after"),
    [
        (65_536, 1, 0, 0, 0),
        (65_530, 1, 0, 2, 4),
        (65_500, 1, 0, 20, 16),
        (1, 65_536, 1, 0, 0),
        (1, 16_384, 3, 2, 1),
    ],
)
def test_loads_beyond_the_fields_of_an_instruction_are_split(
    fake_device: MakeDevice, x_size: int, y_size: int, stride: int, x_before: int, x_after: int
) -> None:
    device = fake_device(WIDE)
    runtime = Runtime(device)
    runtime.allocate(64)
    buffer = runtime.allocate(300_000)
    runtime.load_buffer_2d(
        buffer, 5, x_size, y_size, stride, x_before, 0, x_after, 0, 0, Memory.INP
    )
    runtime.synchronize()
    loaded = np.full(WIDE.inp.depth, -1)
    for item in device.runs[0][:-1]:
        rows = np.full((item.y_pad_0 + item.y_size + item.y_pad_1, item.row_elements), -2)
        for y in range(item.y_size):
            at = item.dram_base + y * item.x_stride
            rows[item.y_pad_0 + y, item.x_pad_0 :][: item.x_size] = range(at, at + item.x_size)
        loaded[item.sram_base : item.sram_base + rows.size] = rows.ravel()
    expected = np.full((y_size, x_before + x_size + x_after), -2)
    first = buffer.address // WIDE.inp.element_bytes + 5
    starts = first + stride * np.arange(y_size)
    expected[:, x_before : x_before + x_size] = starts[:, None] + np.arange(x_size)
    assert (loaded == expected.ravel()).all()


@pytest.mark.parametrize(
    ("x_size", "y_size", "stride"), [(4, 3, 9), (2, 2, 70_000), (16_384, 1, 0)]
)
def test_stores_of_any_size_and_stride_give_what_they_say(
    x_size: int, y_size: int, stride: int
) -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 23))
    data = np.arange(16_384 * 4, dtype=np.int32).reshape(-1, 4)
    load(runtime, array_buffer(runtime, data), 16_384)
    target = runtime.allocate((10 + (y_size - 1) * stride + x_size) * 4)
    target.write(np.zeros(target.size, np.uint8))
    runtime.dep_push(Module.COMPUTE, Module.STORE)
    runtime.dep_pop(Module.COMPUTE, Module.STORE)
    first = 16_384 - x_size * y_size
    runtime.store_buffer_2d(first, target, 10, x_size, y_size, stride)
    runtime.synchronize()
    expected = np.zeros((target.size // 4, 4), np.int8)
    for y in range(y_size):
        at = 10 + y * stride
        expected[at : at + x_size] = data[first + y * x_size :][:x_size].astype(np.int8)
    assert (target.read(np.int8, expected.shape) == expected).all()


def test_nothing_to_transfer_is_no_instruction(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(64)
    runtime.load_buffer_2d(buffer, 0, 0, 1, 0, 0, 0, 0, 0, 0, Memory.WGT)
    runtime.store_buffer_2d(0, buffer, 0, 4, 0, 4)
    assert runtime.dump() == ""
    assert runtime.synchronize().cycles is None
    assert runtime.device.runs == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 9, 1, 9, 0, 0, 0, 0, 0), "elements 0 to 8 of data, which has 8 INP elements"),
        ((0, 2, 3, 4, 0, 0, 0, 0, 0), "elements 0 to 9 of data"),
        ((-1, 2, 1, 4, 0, 0, 0, 0, 0), "elements -1 to 0 of data"),
        ((0, 4, 1, 4, 0, 0, 0, 0, 125), "a load reaches INP 125 to 128; the scratchpad has 0"),
        ((0, 4, 1, 4, 0, 0, 0, 0, -1), "a load reaches INP -1 to 2"),
        ((0, 4, -1, 4, 0, 0, 0, 0, 0), "-1 rows of 4 elements, 4 apart: none can be negative"),
        ((0, 4, 1, 4, -1, 0, 0, 0, 0), "no padding can be negative"),
    ],
)
def test_loads_outside_memory_are_refused(
    fake_device: MakeDevice, arguments: tuple[int, ...], message: str
) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(8 * TINY.inp.element_bytes, "data")
    with pytest.raises(CommandError, match=message):
        runtime.load_buffer_2d(buffer, *arguments, Memory.INP)  # type: ignore[arg-type]
    assert runtime.dump() == ""


def test_stores_outside_memory_are_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(8 * TINY.out.element_bytes, "data")
    with pytest.raises(CommandError, match="a store reaches OUT 127 to 128; the scratchpad has 0"):
        runtime.store_buffer_2d(127, buffer, 0, 2, 1, 2)
    with pytest.raises(CommandError, match="elements 7 to 8 of data, which has 8 OUT elements"):
        runtime.store_buffer_2d(0, buffer, 7, 2, 1, 2)


def test_buffers_of_others_and_freed_ones_are_refused(fake_device: MakeDevice) -> None:
    runtime, other = Runtime(fake_device()), Runtime(fake_device())
    foreign, freed = other.allocate(64, "foreign"), runtime.allocate(64, "late")
    freed.free()
    with pytest.raises(CommandError, match="foreign is freed, or is in the memory of another"):
        load(runtime, foreign, 1)
    with pytest.raises(CommandError, match="late is freed, or is in the memory of another"):
        load(runtime, freed, 1)


def test_a_buffer_beyond_the_reach_of_an_instruction_is_refused(fake_device: MakeDevice) -> None:
    device = fake_device()
    device.memory_bytes = 1 << 40
    runtime = Runtime(device)
    runtime.allocate(1 << 34)
    buffer = runtime.allocate(64, "far")
    with pytest.raises(CommandError, match="far lies at 0x400000000, out of reach"):
        load(runtime, buffer, 1, memory=Memory.INP)


def test_a_queued_buffer_is_not_freed(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    buffer = runtime.allocate(64, "data")
    load(runtime, buffer, 1)
    with pytest.raises(CommandError, match="queued instructions"):
        runtime.free(buffer)
    runtime.synchronize()
    runtime.free(buffer)


# Micro-op kernels.


def test_a_kernel_is_made_once_a_key_and_loaded_once(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    calls = 0

    def body() -> None:
        nonlocal calls
        calls += 1
        runtime.uop_loop_begin(3, 4, 5, 6)
        runtime.uop_loop_begin(2, 1, 2, 3)
        runtime.uop_push(0, 0, 7, 8, 9)
        runtime.uop_push(0, 0, np.array([1, 2]), np.array([3, 4]), 5)
        runtime.uop_loop_end()
        runtime.uop_loop_end()

    for _ in range(3):
        runtime.push_gemm(body, key="kernel")
    runtime.synchronize()
    runtime.push_gemm(body, key="kernel")
    runtime.synchronize()
    assert calls == 1
    load, first, second, third, _ = device.runs[0]
    assert load.memory == Memory.UOP
    assert first == second == third
    assert device.runs[1][0] == first  # still there in the next run
    assert first == isa.Gemm(
        uop_begin=0,
        uop_end=3,
        iter_out=3,
        iter_in=2,
        dst_factor_out=4,
        dst_factor_in=1,
        src_factor_out=5,
        src_factor_in=2,
        wgt_factor_out=6,
        wgt_factor_in=3,
    )
    decode = isa.instruction_set(TINY).decode_uop
    words = device.read(4 * load.dram_base, 12).view(np.uint32)
    uops = [decode(int(bits)) for bits in words]
    assert uops == [isa.Uop(7, 8, 9), isa.Uop(1, 3, 5), isa.Uop(2, 4, 5)]


def test_kernels_of_the_same_micro_ops_share_them(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    for extent in (2, 3):

        def body(extent: int = extent) -> None:
            runtime.uop_loop_begin(extent, 1, 0, 0)
            runtime.uop_push(0, 0, 0, 0, 0)
            runtime.uop_loop_end()

        runtime.push_gemm(body)
    add_immediate(runtime, 5, 4)
    runtime.synchronize()
    opcodes = [instruction.opcode.name for instruction in device.runs[0]]
    assert opcodes == ["LOAD", "GEMM", "GEMM", "ALU", "FINISH"]


def test_what_a_kernel_does_not_read_makes_no_difference(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)

    def reset() -> None:
        runtime.uop_loop_begin(4, 1, 1 << 20, 3)
        runtime.uop_push(0, 1, 0, 1 << 20, 99)
        runtime.uop_loop_end()

    runtime.push_gemm(reset)
    runtime.synchronize()
    assert device.runs[0][1] == isa.Gemm(
        reset=1, uop_begin=0, uop_end=1, iter_in=4, dst_factor_in=1
    )


@pytest.mark.parametrize("limit", LIMITS)
def test_a_small_micro_op_buffer_evicts_and_still_computes_the_same(limit: int | None) -> None:
    generator = random.Random(3)
    runtime = runtime_of(UOPS64, limit)
    assert runtime.config.uop.depth == 64
    data = np.arange(100 * 4, dtype=np.int32).reshape(100, 4) % 50
    load(runtime, array_buffer(runtime, data), 100)
    expected = data.astype(np.int64)
    for _ in range(150):
        # Twelve kernels of up to 30 micro-ops: together far more than 64.
        number = generator.randrange(12)
        count = 3 + 7 * number % 28

        def body(number: int = number, count: int = count) -> None:
            for at in range(count):
                runtime.uop_push(1, 0, 2 * number + at * 2, 0, 0, AluOp.ADD, 1, number - 4)

        runtime.push_alu(body, key=number)
        expected[2 * number : 2 * number + 2 * count : 2] += number - 4
    assert (stored(runtime, 0, 100) == expected.astype(np.int8)).all()


def test_the_kernel_used_longest_ago_is_evicted(fake_device: MakeDevice) -> None:
    device = fake_device(UOPS64)
    runtime = Runtime(device)

    def push(number: int) -> None:
        def body() -> None:
            for at in range(16):
                runtime.uop_push(0, 1, number + at, 0, 0)

        runtime.push_gemm(body, key=number)

    for number in (0, 1, 2, 3, 0, 1, 4, 0, 1, 3, 4, 2):
        push(number)
    runtime.synchronize()
    loads = [isinstance(instruction, isa.Load) for instruction in device.runs[0]]
    #     0     1     2     3    0  1  4 for 2  0  1  3  4  2 for 0
    assert "".join("LG"[not item] for item in loads[:-1]) == "LGLGLGLGGGLGGGGGLG"
    places = [item.sram_base for item in device.runs[0] if isinstance(item, isa.Load)]
    assert places == [0, 16, 32, 48, 32, 0]


@pytest.mark.parametrize("limit", LIMITS)
def test_kernels_larger_than_the_micro_op_buffer_are_split(limit: int | None) -> None:
    generator = np.random.default_rng(5)
    runtime = runtime_of(replace(TINY, log_uop_buff_size=4), limit)
    assert runtime.config.uop.depth == 4
    inp = generator.integers(-9, 9, (128, 4)).astype(np.int8)
    wgt = generator.integers(-9, 9, (64, 4, 4)).astype(np.int8)
    acc = generator.integers(-99, 99, (128, 4)).astype(np.int32)
    load(runtime, array_buffer(runtime, acc), 128)
    load(runtime, array_buffer(runtime, inp), 128, memory=Memory.INP)
    load(runtime, array_buffer(runtime, wgt), 64, memory=Memory.WGT)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    runtime.dep_pop(Module.LOAD, Module.COMPUTE)
    dst, src, weight = (generator.integers(0, 40, 11) for _ in range(3))

    def gemm() -> None:
        runtime.uop_loop_begin(3, 20, 7, 1)
        runtime.uop_loop_begin(2, 5, 30, 4)
        runtime.uop_push(0, 0, dst, src, weight)
        runtime.uop_loop_end()
        runtime.uop_loop_end()

    def subtract_chain() -> None:  # each micro-op uses what the one before it wrote
        runtime.uop_loop_begin(3, 2, 1, 0)
        runtime.uop_push(1, 0, np.arange(1, 12), np.arange(0, 11), 0, AluOp.MUL)
        runtime.uop_loop_end()

    runtime.push_gemm(gemm)
    runtime.push_alu(subtract_chain)
    for o in range(3):
        for i in range(2):
            for d, s, w in zip(dst, src, weight, strict=True):
                product = inp[s + 7 * o + 30 * i].astype(np.int32) @ wgt[w + o + 4 * i].T
                acc[d + 20 * o + 5 * i] += product
    for o in range(3):
        for at in range(11):
            acc[1 + at + 2 * o] *= acc[at + o]
    assert (stored(runtime, 0, 128) == acc.astype(np.int8)).all()


def test_micro_ops_beyond_one_load_are_split(fake_device: MakeDevice) -> None:
    device = fake_device(MANY_UOPS)
    runtime = Runtime(device)
    zeros = np.zeros(65_536, np.int64)
    runtime.push_gemm(_push(runtime, 0, 0, zeros, zeros, zeros))
    runtime.synchronize()
    loads = [item.x_size for item in device.runs[0] if isinstance(item, isa.Load)]
    gemms = [item.uops for item in device.runs[0] if isinstance(item, isa.Gemm)]
    assert (loads, gemms) == ([65_535, 1], [65_535, 1])


@pytest.mark.parametrize("use_immediate", [0, 1])
@pytest.mark.parametrize("extents", [(16_384, 1), (1, 16_384), (2, 16_384), (16_384, 2)])
def test_loops_beyond_the_fields_of_an_instruction_are_split(
    extents: tuple[int, int], use_immediate: int
) -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 23))
    data = np.arange(16_384 * 4, dtype=np.int32).reshape(-1, 4)
    load(runtime, array_buffer(runtime, data), 16_384)
    outer, inner = extents
    steps = (0, 1) if inner > 2 else (1, 0)

    def body() -> None:
        for extent, step in zip(extents, steps, strict=True):
            runtime.uop_loop_begin(extent, step, 0, 0)
        runtime.uop_push(1, 0, 0, 3, 0, AluOp.ADD, use_immediate, 11)
        runtime.uop_loop_end()
        runtime.uop_loop_end()

    runtime.push_alu(body)
    expected = data.copy()
    indices = np.arange(outer)[:, None] * steps[0] + np.arange(inner) * steps[1]
    for index in indices.ravel().tolist():
        expected[index] += 11 if use_immediate else expected[3]
    assert (stored(runtime, 0, 16_384) == expected.astype(np.int8)).all()


def _push(runtime: Runtime, *arguments: Any) -> Callable[[], None]:
    return lambda: runtime.uop_push(*arguments)


def test_impossible_kernels_are_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    begin, end = runtime.uop_loop_begin, runtime.uop_loop_end
    gemm, add = _push(runtime, 0, 0, 0, 0, 0), _push(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 3)

    def calls(*functions: Callable[[], None]) -> Callable[[], None]:
        def body() -> None:
            for function in functions:
                function()

        return body

    def loop(extent: int = 2, *factors: int) -> Callable[[], None]:
        return lambda: begin(extent, *(factors or (1, 1, 1)))

    push_gemm, push_alu = runtime.push_gemm, runtime.push_alu
    for push, body, message in [
        (push_gemm, calls(loop(), loop(), loop()), "at most two loops; unroll the others"),
        (push_gemm, calls(gemm, loop()), "stand around all its micro-ops"),
        (push_gemm, calls(loop(), end, loop()), "stand around all its micro-ops"),
        (push_gemm, calls(loop(), gemm, end, gemm), "a micro-op after the end of a loop"),
        (push_gemm, calls(loop(), gemm), "1 uop_loop_begin without uop_loop_end"),
        (push_gemm, end, "uop_loop_end without uop_loop_begin"),
        (push_gemm, loop(-1), "a loop of -1 iterations with factors 1, 1, 1: none"),
        (push_gemm, loop(2, 1, -1, 0), "with factors 1, -1, 0: none can be negative"),
        (push_gemm, add, "uop_push of mode ALU in a kernel of push_gemm"),
        (push_alu, gemm, "uop_push of mode GEMM in a kernel of push_alu"),
        (
            push_alu,
            _push(runtime, 2, 0, 0, 0, 0),
            "mode 2: it is 0 for GEMM or 1 for ALU",
        ),
        (push_alu, calls(add, _push(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 4)), "two operations"),
        (push_alu, _push(runtime, 1, 0, 0, 0, 0, 5), "5 is not an ALU opcode"),
        (
            push_alu,
            _push(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 32_768),
            "immediate 32768 is not within -32768 to 32767, the 16 bits",
        ),
        (push_gemm, _push(runtime, 0, 0, 128, 0, 0), "reaches ACC 128 to 128; .* 0 to 127"),
        (push_gemm, _push(runtime, 0, 0, -1, 0, 0), "reaches ACC -1 to -1"),
        (push_gemm, _push(runtime, 0, 0, 0, 128, 0), "reaches INP 128 to 128"),
        (push_alu, _push(runtime, 1, 0, 0, 128, 0, 0), "reaches ACC 128 to 128"),
        (push_gemm, calls(loop(65, 0, 0, 1), gemm, end), "reaches WGT 0 to 64; .* 0 to 63"),
        (push_gemm, lambda: push_gemm(gemm), "pushes micro-ops, not kernels"),
    ]:
        with pytest.raises(CommandError, match=message):
            push(body)
    with pytest.raises(CommandError, match="by the body of push_gemm or push_alu"):
        gemm()
    assert runtime.dump() == ""


def test_kernels_use_the_extensions_that_the_machine_has(fake_device: MakeDevice) -> None:
    device = fake_device(PRESETS["tiny-extended"])
    runtime = Runtime(device)
    requantize = AluOp.REQUANTIZE
    runtime.push_gemm(lambda: runtime.uop_push(0, 0, 1, 2, 3, overwrite=1))
    runtime.push_gemm(lambda: runtime.uop_push(0, 0, 1, 2, 3, independent=1))
    runtime.push_alu(lambda: runtime.uop_push(1, 0, 9, 124, 0, requantize, independent=1))
    for arguments, message in (
        ((0, 1, 0, 0, 0, 0, 0, 0, 1), "overwrite is for GEMM micro-ops without reset"),
        ((1, 0, 0, 0, 0, requantize, 1, 5), "REQUANTIZE has no immediate"),
        ((1, 0, 0, 125, 0, requantize), "reaches ACC 125 to 128"),
    ):
        with pytest.raises(CommandError, match=message):
            (runtime.push_alu if arguments[0] else runtime.push_gemm)(_push(runtime, *arguments))
    runtime.synchronize()
    first, second, third = (item for item in device.runs[0] if isinstance(item, isa.Gemm | isa.Alu))
    assert isinstance(first, isa.Multiply)
    assert (first.independent, second.independent, third.independent) == (0, 1, 1)
    assert isinstance(third, isa.Alu)
    assert third.alu_opcode == requantize
    base = Runtime(fake_device())
    for push, body, message in (
        (base.push_gemm, lambda: base.uop_push(0, 0, 0, 0, 0, overwrite=1), "extension overwrite"),
        (base.push_gemm, lambda: base.uop_push(0, 0, 0, 0, 0, independent=1), "extension overlap"),
        (base.push_alu, _push(base, 1, 0, 0, 0, 0, requantize), "is not an ALU opcode"),
    ):
        with pytest.raises(CommandError, match=message):
            push(body)


def test_kernels_that_overwrite_keep_their_order_when_they_are_split() -> None:
    # The last micro-op of each accumulator wins, and an instruction holds few of them.
    config = replace(PRESETS["tiny-extended"], log_uop_buff_size=3)
    runtime = Runtime(FunctionalDevice(config, 1 << 20))
    one = np.eye(4, dtype=np.int8)
    inputs = np.arange(40, dtype=np.int8).reshape(10, 4)
    load(runtime, array_buffer(runtime, inputs), 10, memory=isa.Memory.INP)
    load(runtime, array_buffer(runtime, one), 1, memory=isa.Memory.WGT)
    runtime.dep_push(isa.Module.LOAD, isa.Module.COMPUTE)
    runtime.dep_pop(isa.Module.LOAD, isa.Module.COMPUTE)

    def body() -> None:
        runtime.uop_loop_begin(2, 0, 5, 0)
        runtime.uop_push(
            0, 0, np.array([0, 1, 0, 1, 0]), np.arange(5), np.zeros(5, int), overwrite=1
        )
        runtime.uop_loop_end()

    runtime.push_gemm(body)
    assert (stored(runtime, 0, 2) == inputs[[9, 8]]).all()


def test_kernels_that_are_announced_are_loaded_at_once(fake_device: MakeDevice) -> None:
    device = fake_device(TINY)
    runtime = Runtime(device)
    kernels = [
        (UopMode.GEMM, _push(runtime, 0, 0, np.arange(3) + start, 0, 0), ("gemm", start))
        for start in range(5)
    ]
    runtime.load_kernels(kernels)
    for _, body, key in kernels:
        runtime.push_gemm(body, key)
    runtime.load_kernels(kernels)
    runtime.synchronize()
    loads = [item for item in device.runs[0] if isinstance(item, isa.Load)]
    assert [(item.sram_base, item.x_size) for item in loads] == [(0, 15)]
    gemms = [item for item in device.runs[0] if isinstance(item, isa.Gemm)]
    assert [item.uop_begin for item in gemms] == [0, 3, 6, 9, 12]


def test_kernels_that_do_not_fit_together_are_loaded_one_by_one(fake_device: MakeDevice) -> None:
    device = fake_device(UOPS64)
    runtime = Runtime(device)
    bodies = [_push(runtime, 0, 0, np.arange(33) + start, 0, 0) for start in range(2)]
    runtime.load_kernels([(UopMode.GEMM, body, start) for start, body in enumerate(bodies)])
    assert runtime.dump() == ""
    for start, body in enumerate(bodies):
        runtime.push_gemm(body, start)
    runtime.synchronize()
    assert sum(isinstance(item, isa.Load) for item in device.runs[0]) == 2


def test_gemm_can_wait_for_the_alu(fake_device: MakeDevice) -> None:
    device = fake_device(PRESETS["tiny-extended"])
    runtime = Runtime(device)
    runtime.wait_for_alu()
    runtime.synchronize()
    (wait, _) = device.runs[0]
    assert isinstance(wait, isa.Gemm)
    assert (wait.uops, wait.independent) == (0, 0)


def test_kernels_without_work_are_no_instruction(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())

    def idle() -> None:
        runtime.uop_loop_begin(0, 1, 1, 1)
        runtime.uop_push(0, 0, 0, 0, 0)
        runtime.uop_loop_end()

    runtime.push_gemm(idle)
    runtime.push_gemm(lambda: None)
    assert runtime.dump() == ""


# Tokens and streams.


def test_micro_ops_are_loaded_without_waiting_for_the_tokens_of_their_kernel(
    fake_device: MakeDevice,
) -> None:
    device = fake_device()
    runtime = Runtime(device)
    buffer = runtime.allocate(64)
    load(runtime, buffer, 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    runtime.dep_pop(Module.LOAD, Module.COMPUTE)
    runtime.push_gemm(_push(runtime, 0, 0, 0, 0, 0))
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    runtime.dep_pop(Module.COMPUTE, Module.LOAD)
    runtime.synchronize()
    first, uops, gemm, last, _ = device.runs[0]
    assert (first.push_next, uops.pop_prev, gemm.pop_prev, gemm.push_prev) == (1, 0, 1, 1)
    assert isinstance(last, isa.Load)  # nothing followed the last pop
    assert (last.pop_next, last.x_size, last.memory) == (1, 0, Memory.INP)


def pipeline(runtime: Runtime, blocks: int) -> npt.NDArray[np.int8]:
    """Two halves of every scratchpad in use in turn, with tokens for free and full halves."""
    generator = np.random.default_rng(2)
    inp = generator.integers(-20, 20, (blocks * 8, 4)).astype(np.int8)
    wgt = generator.integers(-20, 20, (4, 4)).astype(np.int8)
    x, w = array_buffer(runtime, inp), array_buffer(runtime, wgt)
    y = runtime.allocate(blocks * 8 * 4)
    load, compute, store = Module.LOAD, Module.COMPUTE, Module.STORE
    runtime.load_buffer_2d(w, 0, 1, 1, 1, 0, 0, 0, 0, 0, Memory.WGT)
    for _ in range(2):
        runtime.dep_push(compute, load)
        runtime.dep_push(store, compute)
    for block in range(blocks):
        half = block % 2 * 8
        runtime.dep_pop(compute, load)
        runtime.load_buffer_2d(x, block * 8, 8, 1, 8, 0, 0, 0, 0, half, Memory.INP)
        runtime.dep_push(load, compute)
        runtime.dep_pop(load, compute)
        runtime.dep_pop(store, compute)
        for reset in (1, 0):

            def body(reset: int = reset, half: int = half) -> None:
                runtime.uop_loop_begin(8, 1, 1, 0)
                runtime.uop_push(0, reset, half, half, 0)
                runtime.uop_loop_end()

            runtime.push_gemm(body, (reset, half))
        runtime.dep_push(compute, load)
        add_immediate(runtime, 1, 8, half)
        runtime.dep_push(compute, store)
        runtime.dep_pop(compute, store)
        runtime.store_buffer_2d(half, y, block * 8, 8, 1, 8)
        runtime.dep_push(store, compute)
    for _ in range(2):
        runtime.dep_pop(compute, load)
        runtime.dep_pop(store, compute)
    runtime.synchronize()
    expected = (inp.astype(np.int32) @ wgt.T.astype(np.int32) + 1).astype(np.int8)
    result = y.read(np.int8, expected.shape)
    assert (result == expected).all()
    return result


@pytest.mark.parametrize("order", ["program", "reverse", "random:1", "random:2"])
@pytest.mark.parametrize("limit", [None, 2, 3, 5, 8, 16, 31])
def test_streams_split_at_any_length_without_a_difference(limit: int | None, order: str) -> None:
    runtime = runtime_of(TINY, limit, order)
    pipeline(runtime, 9)


@pytest.mark.parametrize("limit", [None, 2, 5])
def test_split_streams_do_the_same_on_the_rtl(limit: int | None) -> None:
    device = open_device("rtl", TINY, 1 << 20)
    pipeline(Runtime(device) if limit is None else Runtime(device, limit), 9)


def test_a_split_stream_runs_in_pieces_of_the_limit(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, stream_limit=8)
    buffer = runtime.allocate(64)
    for _ in range(20):
        load(runtime, buffer, 1)
    total = runtime.synchronize()
    assert [len(run) for run in device.runs] == [8, 8, 7]
    assert all(isinstance(run[-1], isa.Finish) for run in device.runs)
    assert (total.cycles, total.seconds, total.counters) == (300, 1.5, {"instructions": 23})


def test_a_stream_grows_while_a_pop_in_it_waits_for_a_later_push(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, stream_limit=4)
    buffer = runtime.allocate(64)
    runtime.dep_pop(Module.LOAD, Module.COMPUTE)
    for _ in range(6):
        load(runtime, buffer, 1)
    assert device.runs == []
    load(runtime, buffer, 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    load(runtime, buffer, 1)
    assert [len(run) for run in device.runs] == [8]


def test_a_barrier_orders_everything_through_device_memory() -> None:
    for order in ("program", "reverse", "random:1", "random:2", "random:3"):
        runtime = runtime_of(TINY, order=order)
        data = np.arange(16, dtype=np.int8).reshape(4, 4)
        x, wgt = array_buffer(runtime, data), array_buffer(runtime, np.eye(4, dtype=np.int8))
        y, z = runtime.allocate(16), runtime.allocate(16)
        for source, target in ((x, y), (y, z)):
            load(runtime, source, 4, memory=Memory.INP)
            load(runtime, wgt, 1, memory=Memory.WGT)
            runtime.barrier()
            for reset in (1, 0):
                runtime.push_gemm(_push(runtime, 0, reset, np.arange(4), np.arange(4), 0), reset)
            add_immediate(runtime, 1, 4)
            runtime.barrier()
            runtime.store_buffer_2d(0, target, 0, 4, 1, 4)
            runtime.barrier()
        runtime.synchronize()
        assert (z.read(np.int8, (4, 4)) == data + 2).all()


def test_a_barrier_among_outstanding_tokens_ends_the_run(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    load(runtime, runtime.allocate(64), 1, memory=Memory.INP)
    runtime.dep_push(Module.LOAD, Module.COMPUTE)
    runtime.barrier()
    assert len(device.runs) == 1
    load(runtime, runtime.allocate(64), 1)
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    runtime.dep_pop(Module.STORE, Module.COMPUTE)
    load(runtime, runtime.allocate(64), 1)
    with pytest.raises(CommandError, match="a barrier between a dep_pop and the dep_push that"):
        runtime.barrier()


def test_a_stream_limit_without_room_is_refused(fake_device: MakeDevice) -> None:
    with pytest.raises(ValueError, match="at most 1 instructions holds no work"):
        Runtime(fake_device(), stream_limit=1)


# Faults.


def test_a_fault_names_module_instruction_and_cause(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    buffer = runtime.allocate(64)
    load(runtime, buffer, 2)
    load(runtime, buffer, 3, sram_index=4)
    device.fault = Fault("compute", 1, "bus_error")
    with pytest.raises(RuntimeFault) as caught:
        runtime.synchronize()
    assert str(caught.value) == (
        "the machine stopped: bus_error in compute, instruction 1 of 3 "
        "(LOAD ACC[4:7], memory 1 x 3 from 0)"
    )
    assert caught.value.fault == device.fault
    assert isinstance(caught.value.instruction, isa.Load)


def test_after_a_fault_micro_ops_are_loaded_anew(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device)
    add_immediate(runtime, 3, 4)
    device.fault = Fault("compute", 0, "bus_error")
    with pytest.raises(RuntimeFault):
        runtime.synchronize()
    device.fault = None
    add_immediate(runtime, 3, 4)
    assert runtime.synchronize().cycles == 100
    assert [item.opcode.name for item in device.runs[1]] == ["LOAD", "ALU", "FINISH"]


def test_a_pop_without_a_push_is_reported_as_the_deadlock_it_is() -> None:
    runtime = runtime_of(TINY)
    runtime.dep_pop(Module.STORE, Module.COMPUTE)
    load(runtime, runtime.allocate(64), 1)
    with pytest.raises(RuntimeFault, match=r"deadlock in compute.*; take from store\)"):
        runtime.synchronize()


def test_the_time_limit_goes_to_the_device_and_into_the_message(fake_device: MakeDevice) -> None:
    device = fake_device()
    runtime = Runtime(device, time_limit=9)
    buffer = runtime.allocate(64)
    for limit in (None, 2.5):
        load(runtime, buffer, 1)
        runtime.synchronize(time_limit=limit)
    assert device.time_limits == [9, 2.5]
    device.fault = Fault("compute", 0, "timeout")
    load(runtime, buffer, 1)
    with pytest.raises(RuntimeFault, match="timeout in compute.*; the time limit is 2.5 s"):
        runtime.synchronize(time_limit=2.5)


def test_a_long_run_on_the_functional_model_ends_at_the_time_limit() -> None:
    runtime = Runtime(FunctionalDevice(DEEP, 1 << 22))
    for _ in range(3000):
        runtime.push_alu(lambda: _slow(runtime), key="slow")
    with pytest.raises(RuntimeFault, match="timeout in .* of 3002 .*the time limit is 0.05 s"):
        runtime.synchronize(time_limit=0.05)


def _slow(runtime: Runtime) -> None:
    runtime.uop_loop_begin(16_000, 1, 1, 0)
    runtime.uop_push(1, 0, 0, 1, 0, AluOp.MUL)
    runtime.uop_loop_end()


# The dump.


def test_the_dump_shows_instructions_and_micro_ops() -> None:
    runtime = runtime_of(TINY)
    buffer = array_buffer(runtime, np.zeros((8, 4), np.int32))
    add_immediate(runtime, 3, 4, begin=9)
    runtime.synchronize()
    load(runtime, buffer, 2)
    runtime.dep_push(Module.COMPUTE, Module.LOAD)
    add_immediate(runtime, 3, 4, begin=9)  # resident since the last run
    runtime.push_gemm(_push(runtime, 0, 0, 5, 6, 7))
    lines = runtime.dump().splitlines()
    assert lines[0] == "     0  compute  LOAD ACC[0:2], memory 1 x 2 from 0; give to load"
    assert lines[1] == "     1  compute  ALU ADD immediate 3 uop[0:1] x 1 x 4, acc +0 +1"
    assert lines[2] == "                 uop[0]  acc[9] = add(acc[9], 3)"
    assert lines[3].startswith("     2  compute  LOAD UOP[1:2], memory 1 x 1 from ")
    assert lines[4] == "     3  compute  GEMM uop[1:2] x 1 x 1"
    assert lines[5] == "                 uop[1]  acc[5] += inp[6] · wgt[7]"
    assert len(lines) == 6
