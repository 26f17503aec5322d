"""Regions marked alu become ALU micro-ops: one loop nest for each operation of an expression.

An operation overwrites its first operand. What an expression begins with is therefore put in
the place of its result first, unless it is there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import IMMEDIATE_WIDTH, AluOp
from amaranth_vta.sw.compiler.expr import Access, Affine, Binary, Cast, Const, Expr, Requantize, Var
from amaranth_vta.sw.compiler.ir import (
    Assign,
    For,
    Function,
    LoweringError,
    Operand,
    Region,
    Stmt,
    Uop,
    rebuild,
    seq,
)
from amaranth_vta.sw.compiler.machine import (
    assignments,
    element_index,
    flat_index,
    scope_dtype,
    tile_loops,
    tile_scalars,
)

_OPERATIONS = {
    "+": AluOp.ADD,
    "*": AluOp.MUL,
    ">>": AluOp.SHR,
    "min": AluOp.MIN,
    "max": AluOp.MAX,
}
_COMMUTES = frozenset({"+", "*", "min", "max"})


def map_to_alu(function: Function, config: Config) -> Function:
    """``function`` with its tensor arithmetic made micro-ops.

    Raises `LoweringError` for what is not a chain of ALU operations on accumulators.
    """

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Region) and stmt.kind == "alu":
            return seq(
                *(_Arithmetic(loops, assign, config).nests() for loops, assign in assignments(stmt))
            )
        return rebuild(stmt, visit)

    return replace(function, body=visit(function.body))


@dataclass
class _Step:
    operation: AluOp
    operand: Access | int
    # The other parameters of a requantization, which are to follow the operand.
    following: tuple[Access, ...] = ()


class _Arithmetic:
    """One assignment of an alu region."""

    def __init__(self, loops: Sequence[For], assign: Assign, config: Config) -> None:
        self.assign = assign
        self.stage = assign.label.stage
        self.config = config
        self.scalars = tile_scalars(config, "acc")
        buffer, dtype = assign.buffer, scope_dtype(config, "acc")
        if buffer.scope != "acc" or buffer.dtype != dtype:
            raise LoweringError(
                f"{self.stage}: the ALU works on {dtype} in acc, not on {buffer.dtype} in "
                f"{buffer.scope}"
            )
        index = flat_index(buffer, assign.indices, self.stage)
        tile = tile_loops(loops, index, self.scalars)
        dst = None if tile is None else element_index(index, tile, self.scalars)
        if tile is None or dst is None:
            raise LoweringError(
                f"{self.stage}: the loops within alu do not walk through tiles of {self.scalars} "
                f"accumulators ({buffer.name}: {index})"
            )
        self.tile: Mapping[Var, int] = tile
        self.dst = Operand(buffer, dst)
        self.loops = [loop for loop in loops if loop.var not in tile]

    def nests(self) -> Stmt:
        uops: list[Uop] = []
        if self.assign.reduces:
            uops.append(self.uop(self.update()))
        else:
            first, steps = self.chain(self.assign.value)
            if isinstance(first, int):
                uops.append(Uop(self.dst, self.assign.label, reset=True))
                uops += [self.uop(_Step(AluOp.ADD, first))] if first else []
            elif not self.is_in_place(first):
                uops.append(Uop(self.dst, self.assign.label, reset=True))
                uops.append(self.uop(_Step(AluOp.ADD, first)))
            uops += map(self.uop, steps)
        return seq(*map(self.nest, uops))

    def nest(self, uop: Uop) -> Stmt:
        """The loops around one operation, as loops of its own."""
        fresh = {loop.var: Affine({Var(loop.var.name): 1}) for loop in self.loops}

        def renamed(operand: Operand | None) -> Operand | None:
            return operand and Operand(operand.buffer, operand.index.replace(fresh))

        dst = renamed(uop.dst)
        assert dst is not None
        result: Stmt = replace(uop, dst=dst, src=renamed(uop.src))
        for loop in reversed(self.loops):
            (var,) = fresh[loop.var].terms
            result = replace(loop, var=var, body=result)
        return result

    def update(self) -> _Step:
        """The operation of a reduction, of the accumulator and one value."""
        value = self.assign.value
        assert isinstance(value, Binary)
        operand = self.plain(value.right)
        if not isinstance(operand, Access):
            raise LoweringError(
                f"{self.stage}: the ALU reduces accumulators as they are, not {value.right}; "
                "compute that in a stage of its own"
            )
        return _Step(_OPERATIONS[value.op], operand)

    def chain(self, value: Expr) -> tuple[Access | int, list[_Step]]:
        """What the expression begins with, and the operations that follow."""
        plain = self.plain(value)
        if plain is not None:
            return plain, []
        if isinstance(value, Requantize):
            first, steps = self.chain(value.value)
            return first, [*steps, self.requantization(value)]
        if not isinstance(value, Binary):
            raise LoweringError(f"{self.stage}: the ALU cannot do {value}")
        left, right, op = value.left, value.right, value.op
        # The side that can be overwritten goes first, or else the one that is an expression.
        if op in _COMMUTES and (
            self.plain(right) is None
            or (isinstance(self.plain(left), int) and not isinstance(self.plain(right), int))
            or self.begins_in_place(right)
        ):
            left, right = right, left
        operand = self.plain(right)
        if operand is None:
            raise LoweringError(
                f"{self.stage}: both sides of {value} are expressions; compute one of them in a "
                "stage of its own"
            )
        if op in ("-", "<<"):
            if not isinstance(operand, int):
                raise LoweringError(
                    f"{self.stage}: the ALU cannot do {op} by a tensor, as in {value}"
                )
            op, operand = ("+" if op == "-" else ">>"), -operand
        if op not in _OPERATIONS:
            raise LoweringError(f"{self.stage}: the ALU has no {op}, as in {value}")
        first, steps = self.chain(left)
        return first, [*steps, _Step(_OPERATIONS[op], operand)]

    def requantization(self, value: Requantize) -> _Step:
        if not self.config.requantize:
            raise LoweringError(
                f"{self.stage}: requantize needs a machine with the extension REQUANTIZE; "
                "on others scales are powers of two, by shifts"
            )
        parameters = [self.plain(part) for part in value.parameters]
        accesses = [part for part in parameters if isinstance(part, Access)]
        if len(accesses) != len(parameters):
            raise LoweringError(f"{self.stage}: the parameters of {value} are not all accumulators")
        return _Step(AluOp.REQUANTIZE, accesses[0], tuple(accesses[1:]))

    def plain(self, value: Expr) -> Access | int | None:
        """A constant or an accumulator, without anything to be computed."""
        if isinstance(value, Cast) and value.dtype == value.value.dtype:
            return self.plain(value.value)
        if isinstance(value, Const):
            return value.value
        if isinstance(value, Access):
            return value
        return None

    def begins_in_place(self, value: Expr) -> bool:
        plain = self.plain(value)
        return isinstance(plain, Access) and self.is_in_place(plain)

    def is_in_place(self, access: Access) -> bool:
        return access.source is self.assign.buffer and self.operand(access).index.same(
            self.dst.index
        )

    def uop(self, step: _Step) -> Uop:
        label = self.assign.label
        if isinstance(step.operand, int):
            bound = 1 << IMMEDIATE_WIDTH - 1
            if not -bound <= step.operand < bound:
                raise LoweringError(
                    f"{self.stage}: {step.operation.name} by {step.operand}: an immediate is "
                    f"within {-bound} to {bound - 1}; give the value as a tensor"
                )
            return Uop(self.dst, label, alu=step.operation, immediate=step.operand)
        operand = self.operand(step.operand)
        for number, access in enumerate(step.following, 1):
            other = self.operand(access)
            place = operand.index.plus(Affine({}, number))
            if other.buffer is not operand.buffer or not other.index.same(place):
                raise LoweringError(
                    f"{self.stage}: the parameters of requantize are tiles of one tensor, one "
                    f"after the other; {access} does not follow {step.operand}"
                )
        return Uop(self.dst, label, operand, alu=step.operation)

    def operand(self, access: Access) -> Operand:
        source = access.source
        if source.scope != "acc" or source.dtype != self.assign.buffer.dtype:
            raise LoweringError(
                f"{self.stage}: the ALU reads {self.assign.buffer.dtype} in acc; {source.name} is "
                f"{source.dtype} in {source.scope}"
            )
        form = flat_index(source, access.indices, self.stage)
        index = element_index(form, self.tile, self.scalars)
        if index is None:
            raise LoweringError(
                f"{self.stage}: {access} does not walk through tiles of {self.scalars} "
                f"accumulators as the result does ({form})"
            )
        return Operand(source, index)
