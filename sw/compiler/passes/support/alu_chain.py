"""Expressions as chains of ALU operations: an innermost operand, and operations applied to it.

An operation overwrites its first operand; its second is an accumulator or an immediate. An
expression needs no extra accumulators if one side of each operation is a constant or an element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.te.dtypes import wrap
from amaranth_vta.sw.compiler.te.expr import Access, Affine, Binary, Cast, Const, Expr, Parametrized

Plain = Access | int
OPERATIONS = {
    "+": AluOp.ADD,
    "*": AluOp.MUL,
    ">>": AluOp.SHR,
    "min": AluOp.MIN,
    "max": AluOp.MAX,
}
# ALU operations by the name of their expression.
PARAMETRIZED = {"requantize": AluOp.REQUANTIZE, "lookup": AluOp.LOOKUP}
_COMMUTES = frozenset({"+", "*", "min", "max"})


@dataclass
class Step:
    """Applies ``operation`` with ``operand`` to the accumulator."""

    operation: AluOp
    operand: Plain
    # Further parameters of a requantization, or tiles of a table, which must follow the operand in
    # the scratchpad.
    following: tuple[Access, ...] = ()
    # The factor of a MULTIPLY_ADD.
    factor: Access | None = None


_NEGATE = Step(AluOp.MUL, -1)


def chain(
    value: Expr, is_in_place: Callable[[Access], bool], stage: str
) -> tuple[Plain, list[Step]]:
    """Decompose ``value`` into its innermost operand and the steps applied to it.

    Where there is a choice, the innermost operand is an accumulator that ``is_in_place``, i.e.
    where the result goes. Raises `LoweringError`, with the name of the ``stage``, if ``value`` is
    not such a chain.
    """
    return _Chain(is_in_place, stage).of(value)


def constant(value: int) -> list[Step]:
    """The steps from 0 to ``value``: one immediate, or its two halves."""
    low = wrap(value, "int16")
    if low == value:
        return [Step(AluOp.ADD, value)] if value else []
    high = wrap((value - low) >> 16, "int16")
    tail = [Step(AluOp.ADD, low)] if low else []
    return [Step(AluOp.ADD, high), Step(AluOp.SHR, -16), *tail]


def plain(value: Expr) -> Plain | None:
    """``value`` if it is a constant or an element of a buffer, else None."""
    match value:
        case Const():
            return value.value
        case Affine() if not value.terms:
            return value.const
        case Access():
            return value
    return None


def joined(steps: Sequence[Step], config: Config) -> list[Step]:
    """``steps`` with each product by an accumulator and the following sum fused into one, where
    the ALU has MULTIPLY_ADD.
    """
    result: list[Step] = []
    for step in steps:
        before = result[-1] if result else None
        if (
            config.multiply_add
            and step.operation is AluOp.ADD
            and isinstance(step.operand, Access)
            and before is not None
            and before.operation is AluOp.MUL
            and isinstance(before.operand, Access)
        ):
            result[-1] = Step(AluOp.MULTIPLY_ADD, step.operand, factor=before.operand)
        else:
            result.append(step)
    return result


class _Chain:
    def __init__(self, is_in_place: Callable[[Access], bool], stage: str) -> None:
        self.is_in_place = is_in_place
        self.stage = stage

    def of(self, value: Expr) -> tuple[Plain, list[Step]]:
        begin = plain(value)
        if begin is not None:
            return begin, []
        match value:
            case Parametrized():
                first, steps = self.of(value.value)
                return first, [*steps, self.parametrized(value)]
            case Binary(op="-"):
                return self.difference(value)
            case Binary(op="<<"):
                return self.left_shift(value)
            case Binary() if value.op in OPERATIONS:
                return self.operation(value)
            case Binary():
                raise LoweringError(f"{self.stage}: the ALU has no {value.op}, as in {value}")
            case Cast(value=Access() as access):
                raise LoweringError(
                    f"{self.stage}: the ALU has no conversion, as in {value}; {access.source.name} "
                    f"has to be {value.dtype} in acc_scope, which a load widens to"
                )
        raise LoweringError(
            f"{self.stage}: the ALU cannot do {value}; it does {', '.join(OPERATIONS)}, - and <<"
        )

    def operation(self, value: Binary) -> tuple[Plain, list[Step]]:
        left, right = value.left, value.right
        if value.op in _COMMUTES and self.goes_first(right, left):
            left, right = right, left
        operand = plain(right)
        if operand is None:
            raise self.needs_accumulators(value)
        first, steps = self.of(left)
        return first, [*steps, Step(OPERATIONS[value.op], operand)]

    def goes_first(self, right: Expr, left: Expr) -> bool:
        """Whether the right side is evaluated first and overwritten: preferably an expression, then
        an operand already in place, then a non-constant.
        """
        first, second = plain(left), plain(right)
        if first is None or second is None:
            return second is None
        if isinstance(second, Access) and self.is_in_place(second):
            return True
        return isinstance(first, int) and not isinstance(second, int)

    def left_shift(self, value: Binary) -> tuple[Plain, list[Step]]:
        amount = plain(value.right)
        if not isinstance(amount, int):
            raise LoweringError(
                f"{self.stage}: the ALU cannot do << by a tensor, as in {value}; it has >>, "
                "which shifts left by a negative amount"
            )
        first, steps = self.of(value.left)
        return first, [*steps, Step(AluOp.SHR, -amount)]

    def difference(self, value: Binary) -> tuple[Plain, list[Step]]:
        """A subtraction as an addition of the negated operand: multiplying by -1 wraps around the
        same way.
        """
        left, right = plain(value.left), plain(value.right)
        if isinstance(right, int):
            first, steps = self.of(value.left)
            return first, [*steps, Step(AluOp.ADD, -right)]
        in_place = isinstance(left, Access) and self.is_in_place(left)
        if right is not None and (left is None or in_place):
            first, steps = self.of(value.left)
            return first, [*steps, _NEGATE, Step(AluOp.ADD, right), _NEGATE]
        if left is None:
            raise self.needs_accumulators(value)
        first, steps = self.of(value.right)
        return first, [*steps, _NEGATE, Step(AluOp.ADD, left)]

    def parametrized(self, value: Parametrized) -> Step:
        parameters = [plain(part) for part in value.parameters]
        accesses = [part for part in parameters if isinstance(part, Access)]
        if len(accesses) != len(parameters):
            raise LoweringError(f"{self.stage}: the parameters of {value} are not all accumulators")
        return Step(PARAMETRIZED[value.name], accesses[0], tuple(accesses[1:]))

    def needs_accumulators(self, value: Binary) -> LoweringError:
        sides = "both sides" if plain(value.left) is None else "the right side"
        return LoweringError(
            f"{self.stage}: {sides} of {value} must be computed first; do that in a separate stage"
        )
