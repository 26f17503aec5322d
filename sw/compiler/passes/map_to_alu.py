"""Lowers regions marked alu to ALU micro-ops: one loop nest per operation of an expression.

An operation overwrites its first operand. Therefore the innermost operand of an expression is first
copied to the place of the result, unless it is already there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import IMMEDIATE_WIDTH, AluOp
from amaranth_vta.sw.compiler.nest.ir import (
    Assign,
    Element,
    For,
    LoopNest,
    LoweringError,
    NestUop,
    Region,
    Stmt,
    rebuild,
    seq,
)
from amaranth_vta.sw.compiler.nest.scopes import require_scope, tile_scalars
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Var

from .support.alu_chain import Step, chain, constant, joined
from .support.tiled_indices import assignments, element_index, flat_index, tile_loops


def map_to_alu(nest: LoopNest, config: Config) -> LoopNest:
    """Lower the tensor arithmetic of ``nest`` to ALU micro-ops.

    Raises `LoweringError` for anything but chains of ALU operations on accumulators.
    """

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Region) and stmt.kind == "alu":
            return seq(
                *(_Arithmetic(loops, assign, config).nests() for loops, assign in assignments(stmt))
            )
        return rebuild(stmt, visit)

    return replace(nest, body=visit(nest.body))


class _Arithmetic:
    """One assignment of an alu region."""

    def __init__(self, loops: Sequence[For], assign: Assign, config: Config) -> None:
        self.assign = assign
        self.stage = assign.label.stage
        self.config = config
        self.scalars = tile_scalars(config, "acc")
        buffer = assign.buffer
        require_scope(self.stage, buffer, config, "acc", "what the ALU computes")
        index = flat_index(buffer, assign.indices, self.stage)
        tile = tile_loops(loops, index, self.scalars)
        dst = None if tile is None else element_index(index, tile, self.scalars)
        if tile is None or dst is None:
            raise LoweringError(
                f"{self.stage}: the loops within alu do not walk through tiles of {self.scalars} "
                f"accumulators ({buffer.name}: {index})"
            )
        self.tile: Mapping[Var, int] = tile
        self.dst = Element(buffer, dst)
        self.loops = [loop for loop in loops if loop.var not in tile]

    def nests(self) -> Stmt:
        first, steps = chain(self.assign.value, self.is_in_place, self.stage)
        uops: list[NestUop] = []
        if isinstance(first, int):
            uops.append(self.cleared())
            steps = [*constant(first), *steps]
        elif not self.is_in_place(first):
            uops.append(self.cleared())
            steps = [Step(AluOp.ADD, first), *steps]
        # The first operation overwrites the buffer's contents.
        if any(self.reads_own(step) for step in steps[0 if uops else 1 :]):
            raise LoweringError(
                f"{self.stage}: {self.assign.value} is more than one operation on what "
                f"{self.dst.buffer.name} holds; compute the others in a separate stage"
            )
        return seq(*map(self.nest, [*uops, *map(self.uop, joined(steps, self.config))]))

    def cleared(self) -> NestUop:
        """The micro-op that clears the result. Uses the ALU where GEMM and ALU overlap: GEMM is
        busy.
        """
        if self.config.overlap:
            return NestUop(self.dst, self.assign.label, alu=AluOp.MUL, immediate=0)
        return NestUop(self.dst, self.assign.label, reset=True)

    def reads_own(self, step: Step) -> bool:
        accesses = [part for part in (step.operand, *step.following) if isinstance(part, Access)]
        return any(access.source is self.assign.buffer for access in accesses)

    def nest(self, uop: NestUop) -> Stmt:
        """``uop`` within new loops."""
        fresh = {loop.var: Affine({Var(loop.var.name): 1}) for loop in self.loops}

        def renamed(operand: Element | None) -> Element | None:
            return operand and Element(operand.buffer, operand.index.replace(fresh))

        dst = renamed(uop.dst)
        assert dst is not None
        result: Stmt = replace(uop, dst=dst, src=renamed(uop.src), wgt=renamed(uop.wgt))
        for loop in reversed(self.loops):
            (var,) = fresh[loop.var].terms
            result = replace(loop, var=var, body=result)
        return result

    def is_in_place(self, access: Access) -> bool:
        return access.source is self.assign.buffer and self.operand(access).index.same(
            self.dst.index
        )

    def uop(self, step: Step) -> NestUop:
        label = self.assign.label
        if isinstance(step.operand, int):
            bound = 1 << IMMEDIATE_WIDTH - 1
            if not -bound <= step.operand < bound:
                raise LoweringError(
                    f"{self.stage}: {step.operation.name} by {step.operand}: an immediate is "
                    f"within {-bound} to {bound - 1}; give the value as a tensor"
                )
            return NestUop(self.dst, label, alu=step.operation, immediate=step.operand)
        if step.operation is AluOp.REQUANTIZE and not self.config.requantize:
            raise LoweringError(
                f"{self.stage}: requantize needs a machine with the extension REQUANTIZE; "
                "on others scales are powers of two, by shifts"
            )
        if step.operation is AluOp.LOOKUP and not self.config.lookup:
            raise LoweringError(f"{self.stage}: lookup needs a machine with the extension LOOKUP")
        if 1 + len(step.following) != self.config.alu_sources(step.operation):
            raise LoweringError(
                f"{self.stage}: a table of lookup is {self.config.table_elements} tiles on this "
                f"machine, not {1 + len(step.following)}"
            )
        operand = self.operand(step.operand)
        for number, access in enumerate(step.following, 1):
            other = self.operand(access)
            place = operand.index.plus(Affine({}, number))
            if other.buffer is not operand.buffer or not other.index.same(place):
                raise LoweringError(
                    f"{self.stage}: the parameters of {step.operation.name.lower()} are tiles of "
                    f"one tensor, one after the other; {access} does not follow {step.operand}"
                )
        factor = None if step.factor is None else self.operand(step.factor)
        return NestUop(self.dst, label, operand, factor, alu=step.operation)

    def operand(self, access: Access) -> Element:
        source = access.source
        require_scope(self.stage, source, self.config, "acc", "what the ALU reads")
        form = flat_index(source, access.indices, self.stage)
        index = element_index(form, self.tile, self.scalars)
        if index is None:
            raise LoweringError(
                f"{self.stage}: {access} does not walk through tiles of {self.scalars} "
                f"accumulators as the result does ({form})"
            )
        return Element(source, index)
