"""Mark GEMM and ALU instructions that share no accumulator with the other unit's in flight.

The machine overlaps marked instructions; an unmarked instruction waits until the other unit has no
instruction in flight. A mark must be true in every iteration, for any instructions that may be in
flight. Where an ALU instruction follows a GEMM instruction, GEMM first waits for all older ALU
instructions: later GEMM instructions then only need to be independent of newer ALU instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise, repeat

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import LOADED_BY_LOAD, Memory, filled_by
from amaranth_vta.sw.compiler.emit.issued import Issued, issued_by
from amaranth_vta.sw.compiler.emit.uop_kernel import UopKernel
from amaranth_vta.sw.compiler.nest.ir import Kernel, LoopNest, Stmt, WaitForAlu, rebuild, seq
from amaranth_vta.sw.runtime.kernels import UopMode

_GEMM, _ALU = UopMode


def mark_independent(nest: LoopNest, config: Config) -> LoopNest:
    """Mark the independent kernels of ``nest``, for a machine with the extension OVERLAP."""
    if not config.overlap:
        return nest
    issued = issued_by(nest)
    kernels = [item.statement for item in issued if isinstance(item.statement, Kernel)]
    claims = _Claims(
        _instructions(issued, config),
        [_GEMM if kernel.uop.alu is None else _ALU for kernel in kernels],
        config.acc.depth,
    )
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

    body = visit(nest.body)
    if claims.first is not None and independent[claims.first]:
        # Waits for ALU instructions of the function that ran before this one.
        body = seq(WaitForAlu(kernels[claims.first].uop.label), body)
    return replace(nest, body=body)


# Kernel number, accumulators written, accumulators only read, and accumulators that are factors;
# None for an instruction that waits until nothing is in flight.
_Instruction = tuple[int, slice, slice, slice] | None


def _instructions(issued: Sequence[Issued], config: Config) -> list[_Instruction]:
    """The instructions of compute in order, with the accumulators that they touch. Conflicts with
    stores are ordered by tokens, which are pushed after all effects.
    """
    found: dict[int, _Instruction] = {}
    kernels = count()
    for item in issued:
        if isinstance(item.statement, Kernel):
            number = next(kernels)
            accessed = zip(repeat(number), *_accumulators_of(item, item.statement, config))
            found.update(zip(item.numbers.tolist(), accessed, strict=False))
        elif filled_by(item.statement.memory) not in (*LOADED_BY_LOAD, Memory.OUT):
            found.update(dict.fromkeys(item.numbers.tolist()))
    return [found[number] for number in sorted(found)]


def _accumulators_of(issued: Issued, stmt: Kernel, config: Config) -> tuple[Iterator[slice], ...]:
    kernel, uop = UopKernel(stmt), stmt.uop
    low, high = kernel.span("dst")
    first, last = kernel.span("src") if uop.alu is not None and uop.src else (0, -1)
    if uop.alu is not None:
        last += config.alu_sources(uop.alu) - 1
    dst, src, factor = issued.starts(stmt)
    factors = int(uop.alu is not None and uop.wgt is not None)
    return (
        map(slice, (dst + low).tolist(), (dst + high + 1).tolist()),
        map(slice, (src + first).tolist(), (src + last + 1).tolist()),
        map(slice, factor.tolist(), (factor + factors).tolist()),
    )


class _Claims:
    """Determines which kernels may claim independence; ``units`` has the unit of each kernel."""

    def __init__(
        self, instructions: Sequence[_Instruction], units: Sequence[UopMode], depth: int
    ) -> None:
        self.instructions = instructions
        self.units = units
        self.depth = depth
        kernels = [item[0] for item in instructions if item is not None]
        # ALU kernels that directly follow a GEMM kernel.
        self.after_gemm = {
            following
            for number, following in pairwise(kernels)
            if units[number] == _GEMM and units[following] == _ALU
        }

        # The first instruction's kernel if it is a GEMM; else None.
        begin = instructions[0] if instructions else None
        self.first = begin[0] if begin is not None and units[begin[0]] == _GEMM else None

    def true_ones(self) -> list[bool]:
        """For each kernel, whether all of its instructions are independent."""
        claims = [True] * len(self.units)
        # Per unit and accumulator: whether an instruction in flight may write it, or read it. Uses
        # bytes, since most slices are short and fast to search.
        all_free, all_busy = bytes(self.depth), b"\1" * self.depth
        written, read = ([bytearray(all_busy) for _ in UopMode] for _ in range(2))

        def ended(unit: UopMode) -> None:
            written[unit][:], read[unit][:] = all_free, all_free

        if self.first is not None:
            ended(_ALU)
        for item in self.instructions:
            if item is None:
                ended(_GEMM)
                ended(_ALU)
                continue
            number, target, source, factor = item
            unit = self.units[number]
            other = _ALU if unit == _GEMM else _GEMM
            if number in self.after_gemm:
                ended(_ALU)
            if claims[number] and (
                1 in written[other][target]
                or 1 in written[other][source]
                or 1 in written[other][factor]
                or 1 in read[other][target]
            ):
                # Earlier instructions of the kernel now wait too, only for instructions that this
                # one waits for as well: later claims are not affected.
                claims[number] = False
            if not claims[number]:
                ended(other)
            written[unit][target] = all_busy[target]
            read[unit][source] = all_busy[source]
            read[unit][factor] = all_busy[factor]
        return claims
