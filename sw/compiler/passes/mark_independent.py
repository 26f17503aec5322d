"""Instructions of GEMM and ALU that touch nothing of what the other unit is at say so.

The machine then runs them beside each other. The claim must hold in every iteration, whatever is
under way; an instruction without it waits for the other unit. Each last GEMM instruction before the
ALU's waits too, so that the ALU, which then works on what GEMM has just finished, is at nothing
older: what comes next for GEMM has only that to be independent of.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS, AluOp, Memory
from amaranth_vta.sw.compiler.emit import HostCode, UopKernel
from amaranth_vta.sw.compiler.ir import Function, Kernel, Stmt, rebuild


def mark_independent(function: Function, config: Config) -> Function:
    """``function`` with all that is independent marked, if the machine can make use of it."""
    if not config.overlap:
        return function
    recorder = _Recorder(config)
    code = HostCode(function, config)
    kernels = [stmt for stmt, _ in code.statements if isinstance(stmt, Kernel)]
    numbers = iter(range(len(kernels)))
    code.compile(lambda kernel: recorder.kernel(next(numbers), kernel))(recorder, *function.args)
    units = [int(kernel.uop.alu is not None) for kernel in kernels]
    independent = recorder.independent(units)
    marked = {
        kernel: replace(kernel, independent=claim)
        for kernel, claim in zip(kernels, independent, strict=True)
    }

    def visit(stmt: Stmt) -> Stmt:
        return marked[stmt] if isinstance(stmt, Kernel) else rebuild(stmt, visit)

    return replace(function, body=visit(function.body))


class _Recorder:
    """Stands in for the runtime and notes the instructions of compute, and what they touch."""

    def __init__(self, config: Config) -> None:
        self.depth = config.acc.depth
        # The number of the kernel, and the first and the last accumulator that it writes and that
        # it reads besides; None where everything is waited for.
        self.instructions: list[tuple[int, slice, slice] | None] = []

    def load_buffer_2d(self, *call: Any) -> None:
        if call[-1] not in (Memory.INP, Memory.WGT):
            self.instructions.append(None)

    def store_buffer_2d(self, *_: Any) -> None:
        pass  # ordered by tokens, which come after all effects

    def kernel(self, number: int, kernel: UopKernel) -> Any:
        low, high = kernel.span("dst")
        source = slice(0, 0)
        if kernel.uop.alu is not None and kernel.uop.src is not None:
            more = REQUANTIZE_PARAMETERS if kernel.uop.alu is AluOp.REQUANTIZE else 1
            first, last = kernel.span("src")
            source = slice(first, last + more)

        def issue(_: Any, dst: int, src: int, __: int) -> None:
            written = slice(dst + low, dst + high + 1)
            read = slice(src + source.start, src + source.stop) if source.stop else source
            self.instructions.append((number, written, read))

        return issue

    def independent(self, units: list[int]) -> list[bool]:
        """For each kernel, whether all of its instructions are; ``units`` are 0 for GEMM."""
        claims = [True] * len(units)
        kernels = [item[0] for item in self.instructions if item is not None]
        for number, following in pairwise(kernels):
            if units[number] < units[following]:
                claims[number] = False
        # A claim that is dropped makes the machine wait more often, which makes no other one false.
        while (false := self.first_false(units, claims)) is not None:
            claims[false] = False
        return claims

    def first_false(self, units: list[int], claims: list[bool]) -> int | None:
        # For each unit, whether each accumulator may be about to be written, and to be read.
        written, read = (np.ones((2, self.depth), np.bool_) for _ in range(2))
        for item in self.instructions:
            if item is None:
                written[:], read[:] = False, False
                continue
            number, target, source = item
            unit = units[number]
            other = 1 - unit
            if not claims[number]:
                written[other], read[other] = False, False
            elif (
                written[other, target].any()
                or written[other, source].any()
                or read[other, target].any()
            ):
                return number
            written[unit, target] = True
            read[unit, source] = True
        return None
