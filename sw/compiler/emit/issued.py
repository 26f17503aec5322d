"""Enumerates all instructions of a loop nest as arrays, where host code issues them one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.nest.ir import (
    Allocate,
    Dma,
    For,
    Kernel,
    LoopNest,
    LoweringError,
    NestBuffer,
    Seq,
    Stmt,
    Token,
    WaitForAlu,
    instruction_count,
)
from amaranth_vta.sw.compiler.te.evaluation import evaluate_index
from amaranth_vta.sw.compiler.te.expr import Affine, Expr, Var

Numbers = npt.NDArray[np.int64]
# Loops around the allocation of each buffer; their iterations rotate through its copies.
AllocationLoops = Mapping[NestBuffer, tuple[For, ...]]


class Issued:
    """The instructions of a statement, one per iteration of the ``loops`` around it, in order.

    ``numbers``, int64 (instructions,), are their positions among all instructions of the nest.
    """

    def __init__(
        self,
        statement: Dma | Kernel,
        loops: tuple[For, ...],
        allocated: AllocationLoops,
        numbers: Affine,
    ) -> None:
        self.statement, self.loops = statement, loops
        self._allocated = allocated
        shape = tuple(loop.extent for loop in loops)
        self._zeros = np.zeros(shape, np.int64)
        grid = np.ogrid[tuple(slice(extent) for extent in shape)] if loops else ()
        self._iterations: dict[Var, Numbers] = {
            loop.var: axis for loop, axis in zip(loops, grid, strict=True)
        }
        self.numbers = self.values(numbers)

    def values(self, value: Expr) -> Numbers:
        """``value`` at each of the instructions: int64 (instructions,)."""
        return (self._zeros + evaluate_index(value, self._iterations)).reshape(-1)

    def elements(self, buffer: NestBuffer, index: Expr) -> Numbers:
        """Scratchpad index of element ``index`` of a buffer: int64 (instructions,)."""
        assert buffer.base is not None
        place = self.values(index)
        if buffer.copies == 1 and not buffer.rolling:
            return place + buffer.base
        turn = self.values(first_turn(buffer, self._allocated[buffer]))
        if buffer.rolling:
            later, place = np.divmod(place, buffer.copy_elements)
            turn += later
        return place + buffer.copy_begins(turn)

    def starts(self, kernel: Kernel) -> tuple[Numbers, Numbers, Numbers]:
        """First elements of dst, src and wgt of a kernel: int64 (instructions,) each, 0 for an
        absent operand.
        """
        inner = {loop.var: Affine({}) for loop in kernel.unrolled}
        operands = kernel.uop.operands()
        dst, src, wgt = (
            self.elements(operands[name].buffer, operands[name].index.replace(inner))
            if name in operands
            else np.zeros_like(self.numbers)
            for name in ("dst", "src", "wgt")
        )
        return dst, src, wgt


def issued_by(nest: LoopNest) -> list[Issued]:
    """The instructions of each statement, in statement order.

    Raises `LoweringError` if a statement is not a machine instruction.
    """
    found: list[Issued] = []
    _issue(nest.body, (), {}, Affine({}), found)
    return found


def _issue(
    stmt: Stmt,
    loops: tuple[For, ...],
    allocated: AllocationLoops,
    first: Affine,
    found: list[Issued],
) -> None:
    """Append the instructions of ``stmt``, which are numbered from ``first`` on, to ``found``."""
    match stmt:
        case Seq():
            for part in stmt.body:
                _issue(part, loops, allocated, first, found)
                first = first.plus(Affine({}, instruction_count(part)))
        case For():
            first = first.plus(Affine({stmt.var: instruction_count(stmt.body)}))
            _issue(stmt.body, (*loops, stmt), allocated, first, found)
        case Allocate():
            _issue(stmt.body, loops, {**allocated, stmt.buffer: loops}, first, found)
        case Dma() | Kernel():
            found.append(Issued(stmt, loops, allocated, first))
        case WaitForAlu() | Token():
            pass
        case _:
            raise LoweringError(f"{type(stmt).__name__} is not an instruction of the machine")


def first_turn(buffer: NestBuffer, loops: Sequence[For]) -> Affine:
    """The first turn of an allocation of ``buffer`` within ``loops``. Turns are counted over all
    iterations of the loops, so that copies continue to rotate.
    """
    number = Affine({})
    for loop in loops:
        number = number.times(loop.extent).plus(Affine({loop.var: 1}))
    return number.times(buffer.turns)
