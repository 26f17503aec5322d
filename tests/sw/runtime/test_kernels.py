"""Micro-op kernels: built once, cached on chip, split where they do not fit."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.kernels import CommandError, UopMode
from amaranth_vta.sw.runtime.runtime import Runtime
from tests.support.runtimes import (
    DEEP,
    LIMITS,
    MANY_UOPS,
    TINY,
    UOPS64,
    MakeDevice,
    add_immediate,
    array_buffer,
    load,
    one_uop,
    runtime_of,
    stored,
)


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
    assert device.runs[1][0] == first  # kept on chip until the next run
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

    def subtract_chain() -> None:  # each micro-op reads its predecessor's result
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
    runtime.push_gemm(one_uop(runtime, 0, 0, zeros, zeros, zeros))
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


def test_impossible_kernels_are_refused(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())
    begin, end = runtime.uop_loop_begin, runtime.uop_loop_end
    gemm, add = one_uop(runtime, 0, 0, 0, 0, 0), one_uop(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 3)

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
        (push_gemm, calls(gemm, loop()), "must enclose all its micro-ops"),
        (push_gemm, calls(loop(), end, loop()), "must enclose all its micro-ops"),
        (push_gemm, calls(loop(), gemm, end, gemm), "a micro-op after the end of a loop"),
        (push_gemm, calls(loop(), gemm), "1 uop_loop_begin without uop_loop_end"),
        (push_gemm, end, "uop_loop_end without uop_loop_begin"),
        (push_gemm, loop(-1), "a loop of -1 iterations with factors 1, 1, 1: none"),
        (push_gemm, loop(2, 1, -1, 0), "with factors 1, -1, 0: none can be negative"),
        (push_gemm, add, "uop_push of mode ALU in a kernel of push_gemm"),
        (push_alu, gemm, "uop_push of mode GEMM in a kernel of push_alu"),
        (
            push_alu,
            one_uop(runtime, 2, 0, 0, 0, 0),
            "mode 2: the mode is 0 for GEMM or 1 for ALU",
        ),
        (push_alu, calls(add, one_uop(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 4)), "two operations"),
        (push_alu, one_uop(runtime, 1, 0, 0, 0, 0, 5), "5 is not an ALU opcode"),
        (
            push_alu,
            one_uop(runtime, 1, 0, 0, 0, 0, AluOp.ADD, 1, 32_768),
            "immediate 32768 is not within -32768 to 32767, the 16 bits",
        ),
        (push_gemm, one_uop(runtime, 0, 0, 128, 0, 0), "reaches ACC 128 to 128; .* 0 to 127"),
        (push_gemm, one_uop(runtime, 0, 0, -1, 0, 0), "reaches ACC -1 to -1"),
        (push_gemm, one_uop(runtime, 0, 0, 0, 128, 0), "reaches INP 128 to 128"),
        (push_alu, one_uop(runtime, 1, 0, 0, 128, 0, 0), "reaches ACC 128 to 128"),
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
    requantize, lookup = AluOp.REQUANTIZE, AluOp.LOOKUP
    runtime.push_gemm(lambda: runtime.uop_push(0, 0, 1, 2, 3, overwrite=1))
    runtime.push_gemm(lambda: runtime.uop_push(0, 0, 1, 2, 3, independent=1))
    runtime.push_alu(lambda: runtime.uop_push(1, 0, 9, 124, 0, requantize, independent=1))
    runtime.push_gemm(lambda: runtime.uop_push(0, 0, 1, 126, 3, overwrite=1, depthwise=1))
    for arguments, message in (
        ((0, 1, 0, 0, 0, 0, 0, 0, 1), "overwrite is for GEMM micro-ops without reset"),
        ((0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1), "depthwise is for GEMM micro-ops without reset"),
        ((0, 0, 0, 127, 0, 0, 0, 0, 0, 0, 1), "reaches INP 127 to 128"),
        ((1, 0, 0, 0, 0, requantize, 1, 5), "REQUANTIZE has no immediate"),
        ((1, 0, 0, 125, 0, requantize), "reaches ACC 125 to 128"),
        ((1, 0, 0, 0, 0, lookup, 1, 5), "LOOKUP has no immediate"),
        ((1, 0, 0, 113, 0, lookup), "reaches ACC 113 to 128"),
    ):
        with pytest.raises(CommandError, match=message):
            (runtime.push_alu if arguments[0] else runtime.push_gemm)(one_uop(runtime, *arguments))
    runtime.synchronize()
    computing = [item for item in device.runs[0] if isinstance(item, isa.Gemm | isa.Alu)]
    first, second, third, fourth = computing
    assert isinstance(fourth, isa.Depthwise)
    assert fourth.overwrite
    assert isinstance(first, isa.Multiply)
    assert (first.independent, second.independent, third.independent) == (0, 1, 1)
    assert isinstance(third, isa.Alu)
    assert third.alu_opcode == requantize
    base = Runtime(fake_device())
    for push, body, message in (
        (base.push_gemm, lambda: base.uop_push(0, 0, 0, 0, 0, overwrite=1), "extension overwrite"),
        (base.push_gemm, lambda: base.uop_push(0, 0, 0, 0, 0, independent=1), "extension overlap"),
        (base.push_gemm, lambda: base.uop_push(0, 0, 0, 0, 0, depthwise=1), "extension depthwise"),
        (base.push_alu, one_uop(base, 1, 0, 0, 0, 0, requantize), "is not an ALU opcode"),
    ):
        with pytest.raises(CommandError, match=message):
            push(body)


def test_kernels_that_overwrite_keep_their_order_when_they_are_split() -> None:
    # The last micro-op of each accumulator wins, and an instruction holds only a few micro-ops.
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
        (UopMode.GEMM, one_uop(runtime, 0, 0, np.arange(3) + start, 0, 0), ("gemm", start))
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
    bodies = [one_uop(runtime, 0, 0, np.arange(33) + start, 0, 0) for start in range(2)]
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


def test_a_kernel_without_work_takes_no_instruction(fake_device: MakeDevice) -> None:
    runtime = Runtime(fake_device())

    def idle() -> None:
        runtime.uop_loop_begin(0, 1, 1, 1)
        runtime.uop_push(0, 0, 0, 0, 0)
        runtime.uop_loop_end()

    runtime.push_gemm(idle)
    runtime.push_gemm(lambda: None)
    assert runtime.dump() == ""
