"""GEMM and ALU instructions are marked that share no accumulator with those of the other unit.

The machine lets such instructions overlap; one without the mark waits until the other unit has no
instruction in flight. The mark is a claim that must hold in every iteration, whatever is in flight.
Where ALU instructions follow GEMM instructions, GEMM waits first for the older ALU instructions:
later ones then have to be independent of the new ALU instructions only, and can use other
accumulators meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.sw.compiler.emit.host_code import HostCode
from amaranth_vta.sw.compiler.emit.uop_kernel import UopKernel
from amaranth_vta.sw.compiler.nest.ir import Kernel, LoopNest, Stmt, WaitForAlu, rebuild, seq
from amaranth_vta.sw.runtime.kernels import UopMode

_GEMM, _ALU = UopMode


def mark_independent(nest: LoopNest, config: Config) -> LoopNest:
    """``nest`` with its independent kernels marked, for a machine with the extension OVERLAP."""
    if not config.overlap:
        return nest
    recorder = _Recorder(config)
    code = HostCode(nest)
    kernels = [stmt for stmt, _ in code.statements if isinstance(stmt, Kernel)]
    numbers = iter(range(len(kernels)))
    code.compile(lambda kernel: recorder.kernel(next(numbers), kernel))(recorder, *nest.args)
    claims = _Claims(recorder, [kernel.mode for kernel in code.kernels])
    independent = claims.true_ones()
    if not any(independent):
        return nest
    waits = {kernels[number] for number in claims.after_gemm}
    marked = {
        kernel: replace(kernel, independent=claim)
        for kernel, claim in zip(kernels, independent, strict=True)
    }

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Kernel):
            return seq(WaitForAlu(stmt.uop.label), marked[stmt]) if stmt in waits else marked[stmt]
        return rebuild(stmt, visit)

    return replace(nest, body=visit(nest.body))


class _Recorder:
    """Stands in for the runtime and records the instructions of compute and what they touch."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # The number of the kernel, the accumulators that it writes, and those that it only reads;
        # None for an instruction that waits until nothing is in flight.
        self.instructions: list[tuple[int, slice, slice] | None] = []

    def load_buffer_2d(self, *call: Any) -> None:
        memory = call[10]
        if memory not in (Memory.INP, Memory.WGT):
            self.instructions.append(None)

    def store_buffer_2d(self, *_: Any) -> None:
        pass  # ordered by tokens, which are pushed after all effects

    def kernel(self, number: int, kernel: UopKernel) -> Any:
        low, high = kernel.span("dst")
        uop = kernel.uop
        first, last = kernel.span("src") if uop.alu is not None and uop.src else (0, -1)
        if uop.alu is not None:
            last += self.config.alu_sources(uop.alu) - 1

        def issue(_: Any, dst: int, src: int, __: int) -> None:
            written, read = slice(dst + low, dst + high + 1), slice(src + first, src + last + 1)
            self.instructions.append((number, written, read))

        return issue


class _Claims:
    """Which kernels may claim independence; ``units`` are those of the kernels."""

    def __init__(self, recorder: _Recorder, units: list[UopMode]) -> None:
        self.recorder = recorder
        self.units = units
        kernels = [item[0] for item in recorder.instructions if item is not None]
        # Those of the ALU that come after one of GEMM.
        self.after_gemm = {
            following
            for number, following in pairwise(kernels)
            if units[number] == _GEMM and units[following] == _ALU
        }

    def true_ones(self) -> list[bool]:
        """For each kernel, whether all of its instructions are independent."""
        claims = [True] * len(self.units)
        # Dropping a claim makes the machine wait more often, which cannot falsify another one.
        while (false := self._first_false(claims)) is not None:
            claims[false] = False
        return claims

    def _first_false(self, claims: list[bool]) -> int | None:
        # Per unit and accumulator: whether an instruction in flight may write, or read, it.
        # Bytes, since most slices are short and searched in no time.
        depth = self.recorder.config.acc.depth
        all_free, all_touched = bytes(depth), b"\1" * depth
        written, read = ([bytearray(all_touched) for _ in UopMode] for _ in range(2))

        def ended(unit: UopMode) -> None:
            written[unit][:], read[unit][:] = all_free, all_free

        for item in self.recorder.instructions:
            if item is None:
                ended(_GEMM)
                ended(_ALU)
                continue
            number, target, source = item
            unit = self.units[number]
            other = _ALU if unit == _GEMM else _GEMM
            if number in self.after_gemm:
                ended(_ALU)
            if not claims[number]:
                ended(other)
            elif (
                1 in written[other][target]
                or 1 in written[other][source]
                or 1 in read[other][target]
            ):
                return number
            written[unit][target] = all_touched[target]
            read[unit][source] = all_touched[source]
        return None
