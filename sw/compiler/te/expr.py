"""Scalar expressions: a tensor element as a function of indices and other elements.

Operators on expressions and Python integers build larger expressions. Dtypes are checked on
construction; errors are `ExpressionError`, with the expression in the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Union

from .dtypes import INDEX_DTYPE, ExpressionError, Interval, dtype_interval, fold, whole_number, wrap
from .origin import caller

Scalar = Union["Expr", int]


class Expr:
    """A scalar expression; operators on expressions and Python integers build larger ones."""

    __slots__ = ("dtype",)
    dtype: str
    # Makes NumPy scalars defer to this class's operators.
    __array_ufunc__ = None

    def children(self) -> tuple[Expr, ...]:
        """The expressions directly within this one."""
        return ()

    def with_children(self, *new: Expr) -> Expr:
        """This expression with ``new`` in place of its children, of the same number and dtypes."""
        return self

    def astype(self, dtype: str) -> Expr:
        """The value wrapped around to ``dtype``."""
        dtype_interval(dtype)
        if dtype == self.dtype:
            return self
        if isinstance(self, Const):
            return Const(wrap(self.value, dtype), dtype)
        return Cast(self, dtype)

    def __add__(self, other: Scalar) -> Expr:
        return add(*agree("+", self, other))

    def __radd__(self, other: Scalar) -> Expr:
        return add(*agree("+", other, self))

    def __sub__(self, other: Scalar) -> Expr:
        return subtract(*agree("-", self, other))

    def __rsub__(self, other: Scalar) -> Expr:
        return subtract(*agree("-", other, self))

    def __mul__(self, other: Scalar) -> Expr:
        return multiply(*agree("*", self, other))

    def __rmul__(self, other: Scalar) -> Expr:
        return multiply(*agree("*", other, self))

    def __neg__(self) -> Expr:
        return subtract(*agree("-", 0, self))

    def __floordiv__(self, other: Scalar) -> Expr:
        return binary("//", *agree("//", self, other))

    def __rfloordiv__(self, other: Scalar) -> Expr:
        return binary("//", *agree("//", other, self))

    def __truediv__(self, other: Scalar) -> Expr:
        raise ExpressionError(f"{_text('/', self, other)}: there are whole numbers only; write //")

    def __mod__(self, other: Scalar) -> Expr:
        return binary("%", *agree("%", self, other))

    def __rmod__(self, other: Scalar) -> Expr:
        return binary("%", *agree("%", other, self))

    def __rshift__(self, other: Scalar) -> Expr:
        return binary(">>", *agree(">>", self, other))

    def __rrshift__(self, other: Scalar) -> Expr:
        return binary(">>", *agree(">>", other, self))

    def __lshift__(self, other: Scalar) -> Expr:
        return binary("<<", *agree("<<", self, other))

    def __rlshift__(self, other: Scalar) -> Expr:
        return binary("<<", *agree("<<", other, self))

    def __and__(self, other: Scalar) -> Expr:
        raise ExpressionError(f"{_text('&', self, other)}: conditions are joined by te.all")

    def __lt__(self, other: Scalar) -> Expr:
        return _compare("<", self, other)

    def __le__(self, other: Scalar) -> Expr:
        return _compare("<=", self, other)

    def __gt__(self, other: Scalar) -> Expr:
        return _compare(">", self, other)

    def __ge__(self, other: Scalar) -> Expr:
        return _compare(">=", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare("==", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _compare("!=", self, other)  # type: ignore[arg-type]

    # Called too often to be a method in Python.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"{self} has no truth value while it is written; use te.if_then_else and te.all"
        )

    def __repr__(self) -> str:
        return str(self)


class Const(Expr):
    __slots__ = ("value",)

    def __init__(self, value: int, dtype: str) -> None:
        self.value, self.dtype = value, dtype

    def __str__(self) -> str:
        return str(self.value)


class Var(Expr):
    """An integer variable, such as a loop variable."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, INDEX_DTYPE

    def __str__(self) -> str:
        return self.name


class IterVar(Var):
    """An axis: a variable that takes the values from ``begin`` to ``begin`` + ``extent`` - 1.

    ``kind`` is spatial, reduce or thread. ``extent`` is None for an axis created by a split or a
    fuse: it is known only when the schedule is lowered.
    """

    __slots__ = ("begin", "extent", "kind", "origin")

    def __init__(self, name: str, extent: int | None, kind: str, begin: int = 0) -> None:
        super().__init__(name)
        self.begin, self.extent, self.kind, self.origin = begin, extent, kind, caller()

    @property
    def interval(self) -> Interval:
        assert self.extent is not None
        return self.begin, self.begin + self.extent - 1


class Affine(Expr):
    """A sum of variables, each with an integer factor, and a constant."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: Mapping[Var, int], const: int = 0) -> None:
        self.terms = {var: factor for var, factor in terms.items() if factor}
        self.const, self.dtype = const, INDEX_DTYPE

    @staticmethod
    def of(value: Scalar) -> Affine | None:
        """``value`` as a sum of variables; None if it is not affine."""
        match value:
            case Affine():
                return value
            case int():
                return Affine({}, value)
            case Const() if value.dtype == INDEX_DTYPE:
                return Affine({}, value.value)
            case Var():
                return Affine({value: 1})
        return None

    def plus(self, other: Affine, factor: int = 1) -> Affine:
        terms = dict(self.terms)
        for var, value in other.terms.items():
            terms[var] = terms.get(var, 0) + factor * value
        return Affine(terms, self.const + factor * other.const)

    def times(self, factor: int) -> Affine:
        return Affine(
            {var: value * factor for var, value in self.terms.items()}, self.const * factor
        )

    def replace(self, values: Mapping[Var, Affine]) -> Affine:
        if values.keys().isdisjoint(self.terms):
            return self
        terms: dict[Var, int] = {}
        const = self.const
        for var, factor in self.terms.items():
            value = values.get(var)
            if value is None:
                terms[var] = terms.get(var, 0) + factor
                continue
            const += factor * value.const
            for other, times in value.terms.items():
                terms[other] = terms.get(other, 0) + factor * times
        return Affine(terms, const)

    def same(self, other: Affine) -> bool:
        return self.const == other.const and self.terms == other.terms

    def __str__(self) -> str:
        parts = [
            (factor, var.name if abs(factor) == 1 else f"{abs(factor)}*{var.name}")
            for var, factor in self.terms.items()
        ]
        if self.const or not parts:
            parts.append((self.const, str(abs(self.const))))
        text = "".join(f" {'-' if factor < 0 else '+'} {part}" for factor, part in parts)
        return f"-{text[3:]}" if text[1] == "-" else text[3:]


class Binary(Expr):
    """``op`` of two values of one dtype: + - * // % >> << min max.

    Results wrap around to the dtype. Shifts are as in the instruction set: a negative amount shifts
    the other way; an amount of at least the width leaves only sign bits, or zeros for a left shift.
    """

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Expr, right: Expr) -> None:
        self.op, self.left, self.right, self.dtype = op, left, right, left.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    def with_children(self, *new: Expr) -> Expr:
        match self.op:
            case "+":
                return add(*new)
            case "-":
                return subtract(*new)
            case "*":
                return multiply(*new)
        return Binary(self.op, *new)

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"{_inner(self.left)} {self.op} {_inner(self.right)}"


class Compare(Expr):
    """A comparison of two values of one dtype: < <= > >= == !=."""

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Expr, right: Expr) -> None:
        self.op, self.left, self.right, self.dtype = op, left, right, "bool"

    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    def with_children(self, *new: Expr) -> Expr:
        return Compare(self.op, *new)

    def __str__(self) -> str:
        return f"{_inner(self.left)} {self.op} {_inner(self.right)}"


class _Conditions(Expr):
    __slots__ = ("conditions",)
    word: str

    def __init__(self, conditions: Sequence[Expr]) -> None:
        self.conditions, self.dtype = tuple(conditions), "bool"

    def children(self) -> tuple[Expr, ...]:
        return self.conditions

    def with_children(self, *new: Expr) -> Expr:
        return type(self)(new)

    def __str__(self) -> str:
        return f"{self.word}({', '.join(map(str, self.conditions))})"


class AllOf(_Conditions):
    """The conjunction of conditions."""

    __slots__ = ()
    word = "all"


class AnyOf(_Conditions):
    """The disjunction of conditions."""

    __slots__ = ()
    word = "any"


class Cast(Expr):
    __slots__ = ("value",)

    def __init__(self, value: Expr, dtype: str) -> None:
        self.value, self.dtype = value, dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, *new: Expr) -> Expr:
        return Cast(new[0], self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


class Select(Expr):
    """``true`` where the condition holds, else ``false``; only the selected branch is evaluated."""

    __slots__ = ("condition", "false", "true")

    def __init__(self, condition: Expr, true: Expr, false: Expr) -> None:
        self.condition, self.true, self.false, self.dtype = condition, true, false, true.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.condition, self.true, self.false

    def with_children(self, *new: Expr) -> Expr:
        return Select(*new)

    def __str__(self) -> str:
        return f"if_then_else({self.condition}, {self.true}, {self.false})"


class Access(Expr):
    """An element of ``source``: a tensor, or a buffer of the loop-nest IR, with name, shape, dtype
    and interval.
    """

    __slots__ = ("indices", "source")

    def __init__(self, source: Any, indices: Sequence[Expr]) -> None:
        self.source, self.indices, self.dtype = source, tuple(indices), source.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def with_children(self, *new: Expr) -> Expr:
        return Access(self.source, new)

    def __str__(self) -> str:
        return f"{self.source.name}[{', '.join(map(str, self.indices))}]"


class Reduce(Expr):
    """``kind`` (sum, max or min) of ``value`` over all values of ``axes``."""

    __slots__ = ("axes", "kind", "value")

    def __init__(self, kind: str, value: Expr, axes: Sequence[IterVar]) -> None:
        self.kind, self.value, self.axes, self.dtype = kind, value, tuple(axes), value.dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_children(self, *new: Expr) -> Expr:
        return Reduce(self.kind, new[0], self.axes)

    def combine(self, left: Expr, right: Expr) -> Expr:
        return Binary("+" if self.kind == "sum" else self.kind, left, right)

    def __str__(self) -> str:
        axes = ", ".join(axis.name for axis in self.axes)
        return f"{self.kind}({self.value}, axis=[{axes}])"


class Parametrized(Expr):
    """An operation whose second operand is its parameters, in consecutive accumulators."""

    __slots__ = ("parameters", "value")
    name: ClassVar[str]

    def __init__(self, value: Expr, *parameters: Expr) -> None:
        self.value, self.parameters = value, parameters
        self.dtype = value.dtype

    def children(self) -> tuple[Expr, ...]:
        return self.value, *self.parameters

    def with_children(self, *new: Expr) -> Expr:
        return type(self)(*new)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, (self.value, *self.parameters)))})"


class Requantize(Parametrized):
    """``value`` plus a bias, scaled, rounded, plus a zero point and clipped; defined by
    `amaranth_vta.sw.compiler.te.requantization.requantized`.
    """

    __slots__ = ()
    name = "requantize"


class Lookup(Parametrized):
    """The table entry for the low byte of ``value``; defined by
    `amaranth_vta.sw.compiler.te.tables.looked_up`. The parameters are the tiles of the table, each
    at the index of the value within its tile.
    """

    __slots__ = ()
    name = "lookup"


def _inner(value: Expr) -> str:
    simple = not isinstance(value, Binary | Compare) or value.op in ("min", "max")
    if isinstance(value, Affine):
        simple = len(value.terms) + (value.const != 0) <= 1 and "-" not in str(value)
    return str(value) if simple else f"({value})"


def const(value: int, dtype: str = INDEX_DTYPE) -> Const:
    """An integer constant of ``dtype``."""
    low, high = dtype_interval(dtype)
    number = whole_number(value)
    if not low <= number <= high:
        raise ExpressionError(f"{number} is not within {dtype}")
    return Const(number, dtype)


def agree(op: str, left: Scalar, right: Scalar) -> tuple[Expr, Expr]:
    """Both operands as expressions of one dtype; Python integers take the other side's dtype."""
    if isinstance(left, Expr) and not isinstance(right, Expr):
        return left, _constant(op, left, right)
    if isinstance(right, Expr) and not isinstance(left, Expr):
        return _constant(op, right, left), right
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return const(left), const(right)  # type: ignore[arg-type]
    if left.dtype != right.dtype:
        raise ExpressionError(
            f"{_text(op, left, right)}: the left side is {left.dtype} and the right side "
            f"{right.dtype}; write .astype(…)"
        )
    return left, right


def _constant(op: str, other: Expr, value: Any) -> Const:
    try:
        return const(value, other.dtype)
    except ExpressionError as error:
        raise ExpressionError(f"{_text(op, other, value)}: {error}") from None


def _text(op: str, left: object, right: object) -> str:
    if op.isidentifier():
        return f"{op}({left}, {right})"
    first, second = (_inner(side) if isinstance(side, Expr) else side for side in (left, right))
    return f"{first} {op} {second}"


def add(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if second is not None and not second.terms and not second.const:
        return left
    if first is not None and second is not None:
        return first.plus(second)
    return binary("+", left, right)


def subtract(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if second is not None and not second.terms and not second.const:
        return left
    if first is not None and second is not None:
        return first.plus(second, -1)
    return binary("-", left, right)


def multiply(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if first is not None and second is not None:
        if not second.terms:
            return first.times(second.const)
        if not first.terms:
            return second.times(first.const)
    return binary("*", left, right)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    if left.dtype == "bool":
        raise ExpressionError(f"{_text(op, left, right)}: conditions are joined by te.all")
    if op in ("//", "%") and not (isinstance(right, Const) and right.value > 0):
        raise ExpressionError(f"{_text(op, left, right)}: the divisor is not a positive constant")
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(fold(op, left.value, right.value, left.dtype), left.dtype)
    return Binary(op, left, right)


def _compare(op: str, left: Scalar, right: Scalar) -> Expr:
    first, second = agree(op, left, right)
    return Compare(op, first, second)
