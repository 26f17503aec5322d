"""The runtime calls of host code, and the kernel of one GEMM or ALU instruction.

The micro-ops of a kernel depend only on the first elements of its three operands; the runtime
caches compiled kernels by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.compiler.nest.ir import Element, Kernel
from amaranth_vta.sw.runtime.kernels import UopMode

Indices = npt.NDArray[np.int64]


class RuntimeCalls(Protocol):
    """The runtime interface used by host code; implemented by
    `amaranth_vta.sw.runtime.runtime.Runtime`.
    """

    def load_buffer_2d(
        self,
        buffer: Any,
        element_offset: int,
        x_size: int,
        y_size: int,
        x_stride: int,
        x_pad_before: int,
        y_pad_before: int,
        x_pad_after: int,
        y_pad_after: int,
        /,
        *,
        sram_index: int,
        memory: Memory,
        pad_value: int = 0,
    ) -> None: ...

    def store_buffer_2d(
        self,
        sram_index: int,
        buffer: Any,
        element_offset: int,
        x_size: int,
        y_size: int,
        x_stride: int,
    ) -> None: ...

    def dep_push(self, producer: Module, consumer: Module) -> None: ...

    def dep_pop(self, producer: Module, consumer: Module) -> None: ...

    def push_gemm(self, body: Callable[[], None], key: Any) -> None: ...

    def push_alu(self, body: Callable[[], None], key: Any) -> None: ...

    def load_kernels(self, kernels: Iterable[tuple[UopMode, Callable[[], None], Any]]) -> None: ...

    def wait_for_alu(self) -> None: ...

    def uop_loop_begin(self, extent: int, dst: int, src: int, wgt: int) -> None: ...

    def uop_loop_end(self) -> None: ...

    def uop_push(
        self,
        mode: UopMode,
        reset: int,
        dst: Indices,
        src: Indices,
        wgt: Indices,
        alu_opcode: int,
        use_immediate: int,
        immediate: int,
        overwrite: int,
        independent: int,
        depthwise: int,
    ) -> None: ...


class UopKernel:
    """The micro-ops of one instruction, relative to the first elements of its operands."""

    def __init__(self, kernel: Kernel) -> None:
        uop = kernel.uop
        self.loops = kernel.loops
        self.uop = uop
        self.mode = UopMode.GEMM if uop.alu is None else UopMode.ALU
        self.independent = kernel.independent
        self.dst, self.src, self.wgt = (
            _unrolled(kernel, uop.operands().get(name)) for name in ("dst", "src", "wgt")
        )

    def issue(self, runtime: RuntimeCalls, dst: int, src: int, wgt: int) -> None:
        """Issue the instruction with its operands starting at elements ``dst``, ``src`` and
        ``wgt``.
        """
        push = runtime.push_gemm if self.mode is UopMode.GEMM else runtime.push_alu
        push(*self.call(runtime, dst, src, wgt))

    def call(
        self, runtime: RuntimeCalls, dst: int, src: int, wgt: int
    ) -> tuple[Callable[[], None], tuple[Any, ...]]:
        """Body and key of the kernel."""
        return partial(self._body, runtime, dst, src, wgt), (self, dst, src, wgt)

    def _body(self, runtime: RuntimeCalls, dst: int, src: int, wgt: int) -> None:
        uop = self.uop
        for loop in self.loops:
            runtime.uop_loop_begin(loop.extent, loop.dst, loop.src, loop.wgt)
        runtime.uop_push(
            self.mode,
            int(uop.reset),
            self.dst + dst,
            self.src + src,
            self.wgt + wgt,
            uop.alu or 0,
            int(uop.immediate is not None),
            uop.immediate or 0,
            int(uop.overwrite),
            int(self.independent),
            int(uop.taps),
        )
        for _ in self.loops:
            runtime.uop_loop_end()

    def span(self, operand: str) -> tuple[int, int]:
        """The least and the greatest element that ``operand`` (dst, src or wgt) accesses."""
        offsets: Indices = getattr(self, operand)
        reach = sum((loop.extent - 1) * getattr(loop, operand) for loop in self.loops)
        return int(offsets.min()), int(offsets.max()) + reach


def _unrolled(kernel: Kernel, operand: Element | None) -> Indices:
    """int64 (micro-ops,): increments of the operand's index by the unrolled loops, with the
    outermost loop varying slowest.
    """
    result = np.zeros(1, np.int64)
    for loop in kernel.unrolled:
        factor = operand.index.terms.get(loop.var, 0) if operand else 0
        result = (result[:, None] + factor * np.arange(loop.extent)).reshape(-1)
    return result
