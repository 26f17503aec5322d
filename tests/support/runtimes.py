"""Runtimes on the functional model, and helpers that most tests of the runtime need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import AluOp, Memory, Module
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.runtime import Runtime

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


def estimated_cycles(function: Function, memory_bytes: int = 1 << 20) -> int:
    """The estimated cycles of one run, on `ddr`."""
    runtime = Runtime(
        open_device("estimate", function.config, memory_bytes, dram="ddr", timing_only=True)
    )
    sizes = [function.nbytes(index) for index in range(len(function.args))]
    function.run_on(runtime, *[runtime.allocate(size) for size in sizes])
    return runtime.synchronize().cycles or 0


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
    """The low bytes of accumulators, stored after everything that is queued."""
    buffer = runtime.allocate(count * runtime.config.out.element_bytes, "stored")
    runtime.dep_push(Module.COMPUTE, Module.STORE)
    runtime.dep_pop(Module.COMPUTE, Module.STORE)
    runtime.store_buffer_2d(sram_index, buffer, 0, count, 1, count)
    runtime.synchronize()
    shape = (count, runtime.config.out.rows * runtime.config.out.columns)
    return buffer.read(np.int8, shape)


def one_uop(runtime: Runtime, *arguments: Any) -> Callable[[], None]:
    """The body of a kernel of one micro-op, with the arguments of `Runtime.uop_push`."""
    return lambda: runtime.uop_push(*arguments)
