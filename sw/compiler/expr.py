"""Tensor expressions: what a computation means, apart from how it is carried out.

A tensor is a placeholder or the result of `compute`, a function from indices to a scalar
expression. Shapes, dtypes and index ranges are checked when an expression is written; the errors
are `ExpressionError`, with the expression in the message.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Union

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS

INDEX_DTYPE = "int32"
_BITS = {"int4": 4, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint4": 4, "uint8": 8}
# Inclusive bounds of a value.
Interval = tuple[int, int]
Scalar = Union["Expr", int]


class ExpressionError(ValueError):
    """An expression whose shapes, dtypes or indices do not fit together."""


def dtype_interval(dtype: str) -> Interval:
    """The least and the greatest value of an integer ``dtype``."""
    if dtype == "bool":
        return 0, 1
    if dtype not in _BITS:
        raise ExpressionError(f"{dtype!r} is not a dtype; the dtypes are {', '.join(_BITS)}")
    bits = _BITS[dtype]
    return (0, (1 << bits) - 1) if dtype[0] == "u" else (-1 << bits - 1, (1 << bits - 1) - 1)


@dataclass(frozen=True)
class Origin:
    """The source line that created a stage or an axis."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


_OWN_FILES = frozenset(str(Path(__file__).with_name(name)) for name in ("expr.py", "schedule.py"))


def caller() -> Origin:
    """The line outside of this file and of schedule.py that is being executed."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _OWN_FILES and frame.f_back is not None:
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)


class Expr:
    """A scalar expression; operators on expressions and Python integers make larger ones."""

    __slots__ = ("dtype",)
    dtype: str

    def astype(self, dtype: str) -> Expr:
        """The low bits of the value, read as ``dtype``."""
        dtype_interval(dtype)
        if dtype == self.dtype:
            return self
        if isinstance(self, Const):
            return Const(wrap(self.value, dtype), dtype)
        return Cast(self, dtype)

    def __add__(self, other: Scalar) -> Expr:
        return add(*_agree("+", self, other))

    def __radd__(self, other: Scalar) -> Expr:
        return add(*_agree("+", other, self))

    def __sub__(self, other: Scalar) -> Expr:
        return _subtract(*_agree("-", self, other))

    def __rsub__(self, other: Scalar) -> Expr:
        return _subtract(*_agree("-", other, self))

    def __mul__(self, other: Scalar) -> Expr:
        return _multiply(*_agree("*", self, other))

    def __rmul__(self, other: Scalar) -> Expr:
        return _multiply(*_agree("*", other, self))

    def __neg__(self) -> Expr:
        return _subtract(*_agree("-", 0, self))

    def __floordiv__(self, other: Scalar) -> Expr:
        return _binary("//", *_agree("//", self, other))

    def __mod__(self, other: Scalar) -> Expr:
        return _binary("%", *_agree("%", self, other))

    def __rshift__(self, other: Scalar) -> Expr:
        return _binary(">>", *_agree(">>", self, other))

    def __lshift__(self, other: Scalar) -> Expr:
        return _binary("<<", *_agree("<<", self, other))

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

    def __hash__(self) -> int:
        return id(self)

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
    """An index."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, INDEX_DTYPE

    def __str__(self) -> str:
        return self.name


class IterVar(Var):
    """An axis: a variable that takes the values from ``begin`` to ``begin`` + ``extent`` - 1.

    ``kind`` is spatial, reduce or thread. The extent of what a split or a fuse makes is known
    only when the schedule is lowered; it is then None.
    """

    __slots__ = ("begin", "extent", "kind", "origin")

    def __init__(self, name: str, extent: int | None, kind: str, begin: int = 0) -> None:
        super().__init__(name)
        self.begin, self.extent, self.kind, self.origin = begin, extent, kind, caller()


class Affine(Expr):
    """A sum of variables, each with an integer factor, and a constant."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: Mapping[Var, int], const: int = 0) -> None:
        self.terms = {var: factor for var, factor in terms.items() if factor}
        self.const, self.dtype = const, INDEX_DTYPE

    @staticmethod
    def of(value: Scalar) -> Affine | None:
        """``value`` in this form, or None if it has not got it."""
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
        result = Affine({}, self.const)
        for var, factor in self.terms.items():
            value = values.get(var)
            result = result.plus(Affine({var: 1}) if value is None else value, factor)
        return result

    def same(self, other: Affine) -> bool:
        return self.const == other.const and self.terms == other.terms

    def __str__(self) -> str:
        text = ""
        for var, factor in self.terms.items():
            term = var.name if abs(factor) == 1 else f"{abs(factor)}*{var.name}"
            text += (
                (" - " if factor < 0 else " + ") + term
                if text
                else ("-" if factor < 0 else "") + term
            )
        if self.const or not text:
            text += (
                (" - " if self.const < 0 else " + ") + str(abs(self.const))
                if text
                else str(self.const)
            )
        return text


class Binary(Expr):
    """``op`` of two values of one dtype: + - * // % >> << min max.

    Results wrap at the dtype. Shifts follow the instruction set: a negative amount shifts the
    other way; an amount of the width or more leaves sign bits, or zeros to the left.
    """

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Expr, right: Expr) -> None:
        self.op, self.left, self.right, self.dtype = op, left, right, left.dtype

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        return f"{_inner(self.left)} {self.op} {_inner(self.right)}"


class Compare(Expr):
    """A comparison of two values of one dtype: < <= > >= == !=."""

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Expr, right: Expr) -> None:
        self.op, self.left, self.right, self.dtype = op, left, right, "bool"

    def __str__(self) -> str:
        return f"{_inner(self.left)} {self.op} {_inner(self.right)}"


class AllOf(Expr):
    """The conjunction of conditions."""

    __slots__ = ("conditions",)

    def __init__(self, conditions: Sequence[Expr]) -> None:
        self.conditions, self.dtype = tuple(conditions), "bool"

    def __str__(self) -> str:
        return f"all({', '.join(map(str, self.conditions))})"


class AnyOf(Expr):
    """The disjunction of conditions."""

    __slots__ = ("conditions",)

    def __init__(self, conditions: Sequence[Expr]) -> None:
        self.conditions, self.dtype = tuple(conditions), "bool"

    def __str__(self) -> str:
        return f"any({', '.join(map(str, self.conditions))})"


class Cast(Expr):
    __slots__ = ("value",)

    def __init__(self, value: Expr, dtype: str) -> None:
        self.value, self.dtype = value, dtype

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


class Select(Expr):
    """``true`` where the condition holds, else ``false``; only the chosen one is looked at."""

    __slots__ = ("condition", "false", "true")

    def __init__(self, condition: Expr, true: Expr, false: Expr) -> None:
        self.condition, self.true, self.false, self.dtype = condition, true, false, true.dtype

    def __str__(self) -> str:
        return f"if_then_else({self.condition}, {self.true}, {self.false})"


class Access(Expr):
    """An element of ``source``: a `Tensor`, or a buffer of the loop-nest IR."""

    __slots__ = ("indices", "source")

    def __init__(self, source: Any, indices: Sequence[Expr]) -> None:
        self.source, self.indices, self.dtype = source, tuple(indices), source.dtype

    def __str__(self) -> str:
        return f"{self.source.name}[{', '.join(map(str, self.indices))}]"


class Reduce(Expr):
    """``kind`` (sum, max or min) of ``value`` over all values of ``axes``."""

    __slots__ = ("axes", "kind", "value")

    def __init__(self, kind: str, value: Expr, axes: Sequence[IterVar]) -> None:
        self.kind, self.value, self.axes, self.dtype = kind, value, tuple(axes), value.dtype

    @property
    def identity(self) -> int:
        """What changes no result: 0, or the bound of what the values can be."""
        if self.kind == "sum":
            return 0
        low, high = value_interval(self.value)
        return low if self.kind == "max" else high

    def combine(self, left: Expr, right: Expr) -> Expr:
        return Binary("+" if self.kind == "sum" else self.kind, left, right)

    def __str__(self) -> str:
        axes = ", ".join(axis.name for axis in self.axes)
        return f"{self.kind}({self.value}, axis=[{axes}])"


class Requantize(Expr):
    """``value`` with a bias, scaled, rounded, moved to its zero point and clipped, as
    `amaranth_vta.sw.compiler.requantization.requantized` says."""

    __slots__ = ("parameters", "value")

    def __init__(self, value: Expr, *parameters: Expr) -> None:
        self.value, self.parameters = value, parameters
        self.dtype = value.dtype

    def __str__(self) -> str:
        return f"requantize({', '.join(map(str, (self.value, *self.parameters)))})"


def _inner(value: Expr) -> str:
    simple = not isinstance(value, Binary | Compare) or value.op in ("min", "max")
    if isinstance(value, Affine):
        simple = len(value.terms) + (value.const != 0) <= 1 and "-" not in str(value)
    return str(value) if simple else f"({value})"


def wrap(value: int, dtype: str) -> int:
    """``value`` modulo the range of ``dtype``."""
    low, high = dtype_interval(dtype)
    return (value - low) % (high - low + 1) + low


def _agree(op: str, left: Scalar, right: Scalar) -> tuple[Expr, Expr]:
    """Both operands as expressions of one dtype; integers take that of the other side."""
    if isinstance(left, Expr) and not isinstance(right, Expr):
        return left, _constant(op, left, right)
    if isinstance(right, Expr) and not isinstance(left, Expr):
        return _constant(op, right, left), right
    if not isinstance(left, Expr) or not isinstance(right, Expr):
        return const(left), const(right)  # type: ignore[arg-type]
    if left.dtype != right.dtype:
        raise ExpressionError(
            f"{_inner(left)} {op} {_inner(right)}: the left side is {left.dtype} and the right "
            f"side {right.dtype}; write .astype(…)"
        )
    return left, right


def _constant(op: str, other: Expr, value: Any) -> Const:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ExpressionError(
            f"{other} {op} {value!r}: {value!r} is neither an expression nor a whole number"
        )
    low, high = dtype_interval(other.dtype)
    if not low <= value.__index__() <= high:
        raise ExpressionError(f"{other} {op} {value}: {value} is not within {other.dtype}")
    return Const(value.__index__(), other.dtype)


def add(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if second is not None and not second.terms and not second.const:
        return left
    if first is not None and second is not None:
        return first.plus(second)
    return _binary("+", left, right)


def _subtract(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if second is not None and not second.terms and not second.const:
        return left
    if first is not None and second is not None:
        return first.plus(second, -1)
    return _binary("-", left, right)


def _multiply(left: Expr, right: Expr) -> Expr:
    first, second = Affine.of(left), Affine.of(right)
    if first is not None and second is not None:
        if not second.terms:
            return first.times(second.const)
        if not first.terms:
            return second.times(first.const)
    return _binary("*", left, right)


def fold(op: str, left: int, right: int, dtype: str) -> int:
    """The meaning of a `Binary` on two integers."""
    match op:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case "//":
            result = left // right
        case "%":
            result = left % right
        case "min":
            result = min(left, right)
        case "max":
            result = max(left, right)
        case _:
            amount = right if op == ">>" else -right
            result = left >> amount if amount >= 0 else left << min(-amount, 64)
    return wrap(result, dtype)


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    if left.dtype == "bool":
        raise ExpressionError(
            f"{_inner(left)} {op} {_inner(right)}: conditions are joined by te.all"
        )
    if op in ("//", "%") and not (isinstance(right, Const) and right.value > 0):
        raise ExpressionError(
            f"{_inner(left)} {op} {_inner(right)}: the divisor is not a positive constant"
        )
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(fold(op, left.value, right.value, left.dtype), left.dtype)
    return Binary(op, left, right)


def _compare(op: str, left: Scalar, right: Scalar) -> Expr:
    first, second = _agree(op, left, right)
    return Compare(op, first, second)


# The public constructors.


def const(value: int, dtype: str = INDEX_DTYPE) -> Const:
    """An integer constant of ``dtype``."""
    low, high = dtype_interval(dtype)
    if not low <= value <= high:
        raise ExpressionError(f"the constant {value} is not within {dtype}")
    return Const(int(value), dtype)


def if_then_else(condition: Expr, true: Scalar, false: Scalar) -> Expr:
    """``true`` where ``condition`` holds, else ``false``; an index may leave its tensor in the
    branch that is not taken."""
    if condition.dtype != "bool":
        raise ExpressionError(
            f"if_then_else({condition}, …): the condition is {condition.dtype}, not bool"
        )
    return Select(condition, *_agree("or", true, false))


def all_of(*conditions: Expr) -> Expr:
    """True where every condition is."""
    for condition in conditions:
        if condition.dtype != "bool":
            raise ExpressionError(f"all(…): {condition} is {condition.dtype}, not bool")
    return conditions[0] if len(conditions) == 1 else AllOf(conditions)


def _reduce(kind: str, value: Expr, axis: IterVar | Sequence[IterVar]) -> Expr:
    axes = [axis] if isinstance(axis, IterVar) else list(axis)
    for item in axes:
        if not isinstance(item, IterVar) or item.kind != "reduce":
            raise ExpressionError(f"{kind}({value}, …): {item} is not a reduce_axis")
    return Reduce(kind, value, axes)


def sum_over(expr: Expr, axis: IterVar | Sequence[IterVar]) -> Expr:
    """The sum over one or more `reduce_axis`."""
    return _reduce("sum", expr, axis)


def maximum(
    a: Scalar, b: Scalar | None = None, axis: IterVar | Sequence[IterVar] | None = None
) -> Expr:
    """The larger of ``a`` and ``b``, or the largest ``a`` over one or more `reduce_axis`."""
    return _extreme("max", a, b, axis)


def minimum(
    a: Scalar, b: Scalar | None = None, axis: IterVar | Sequence[IterVar] | None = None
) -> Expr:
    """The smaller of ``a`` and ``b``, or the smallest ``a`` over one or more `reduce_axis`."""
    return _extreme("min", a, b, axis)


def _extreme(
    kind: str, a: Scalar, b: Scalar | None, axis: IterVar | Sequence[IterVar] | None
) -> Expr:
    if (b is None) == (axis is None):
        raise ExpressionError(f"{kind} takes a second value, or axis=…, and not both")
    if axis is not None:
        return _reduce(kind, a if isinstance(a, Expr) else const(a), axis)
    assert b is not None
    left, right = _agree(kind, a, b)
    return _binary(kind, left, right)


class Operation:
    """What makes a tensor: a placeholder (no body) or a compute."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        axis: Sequence[IterVar],
        body: Expr | None,
        dtype: str,
    ) -> None:
        self.name = name
        self.axis = list(axis)
        self.body = body
        self.reduce_axis = list(body.axes) if isinstance(body, Reduce) else []
        self.origin = caller()
        self.tensor = Tensor(shape, dtype, name, self)

    def output(self, index: int) -> Tensor:
        if index != 0:
            raise ExpressionError(f"{self.name} has one output, not {index + 1}")
        return self.tensor

    def __repr__(self) -> str:
        return self.name


class Tensor:
    """A tensor of a fixed shape. Calling or indexing it with one index a dimension reads it."""

    def __init__(self, shape: tuple[int, ...], dtype: str, name: str, op: Operation) -> None:
        self.shape, self.dtype, self.name, self.op = shape, dtype, name, op

    def __call__(self, *indices: Scalar) -> Expr:
        if len(indices) != len(self.shape):
            text = ", ".join(map(str, indices))
            raise ExpressionError(
                f"{self.name}[{text}]: {len(indices)} indices for the shape {self.shape}"
            )
        values = []
        for index in indices:
            value = index if isinstance(index, Expr) else const(index)
            if value.dtype != INDEX_DTYPE:
                raise ExpressionError(
                    f"{self.name}[… {value} …]: an index is {INDEX_DTYPE}, not {value.dtype}"
                )
            form = Affine.of(value)
            values.append(value if form is None else form)
        return Access(self, values)

    def __getitem__(self, indices: Scalar | tuple[Scalar, ...]) -> Expr:
        return self(*indices) if isinstance(indices, tuple) else self(indices)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def interval(self) -> Interval:
        """Bounds of the elements, as far as they can be told from how they are computed."""
        if self.op.body is None:
            return dtype_interval(self.dtype)
        return value_interval(self.op.body, {axis: _axis_interval(axis) for axis in self.op.axis})

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def _checked_shape(name: str, shape: Iterable[Any]) -> tuple[int, ...]:
    result = []
    for extent in shape:
        if isinstance(extent, bool) or not hasattr(extent, "__index__") or extent.__index__() < 1:
            raise ExpressionError(f"{name}: {extent!r} in its shape is not a positive whole number")
        result.append(extent.__index__())
    if not result:
        raise ExpressionError(f"{name}: a tensor has at least one dimension")
    return tuple(result)


def placeholder(shape: Sequence[int], name: str = "placeholder", dtype: str = "int32") -> Tensor:
    """An input of ``shape`` and ``dtype``."""
    dtype_interval(dtype)
    return Operation(name, _checked_shape(name, shape), [], None, dtype).tensor


def compute(shape: Sequence[int], function: Callable[..., Scalar], name: str = "compute") -> Tensor:
    """A tensor of ``shape`` whose element at ``i, j, …`` is ``function(i, j, …)``.

    Raises `ExpressionError` if an index can leave its tensor (outside of `if_then_else`) or if a
    reduction is not the whole expression.
    """
    extents = _checked_shape(name, shape)
    axis = [
        IterVar(label, extent, "spatial")
        for label, extent in zip(_axis_names(name, function, len(extents)), extents, strict=True)
    ]
    value = function(*axis)
    body = value if isinstance(value, Expr) else const(value)
    _check_body(name, axis, body)
    return Operation(name, extents, axis, body, body.dtype).tensor


def _axis_names(name: str, function: Callable[..., Scalar], count: int) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{index}" for index in range(len(names), count)]
        elif parameter.default is parameter.empty:
            names.append(parameter.name)
    if len(names) != count:
        raise ExpressionError(
            f"{name}: its function takes {len(names)} indices, its shape has {count}"
        )
    return names


def _check_body(name: str, axis: Sequence[IterVar], body: Expr) -> None:
    reduced = list(body.axes) if isinstance(body, Reduce) else []
    ranges: dict[Var, Interval] = {item: _axis_interval(item) for item in [*axis, *reduced]}
    _check_value(name, body.value if isinstance(body, Reduce) else body, ranges, guarded=False)


def _axis_interval(axis: IterVar) -> Interval:
    assert axis.extent is not None
    return axis.begin, axis.begin + axis.extent - 1


def _check_value(name: str, value: Expr, ranges: Mapping[Var, Interval], guarded: bool) -> None:
    match value:
        case Reduce():
            raise ExpressionError(
                f"{name}: {value} is a part of an expression; a reduction is a compute of its own"
            )
        case Affine() | Var():
            form = Affine.of(value)
            assert form is not None
            for var in form.terms:
                if var not in ranges:
                    raise ExpressionError(
                        f"{name}: {var} in {value} is not an axis of this compute"
                    )
        case Select():
            _check_value(name, value.condition, ranges, guarded)
            _check_value(name, value.true, ranges, True)
            _check_value(name, value.false, ranges, True)
        case Access():
            for position, index in enumerate(value.indices):
                _check_value(name, index, ranges, guarded)
                low, high = value_interval(index, ranges)
                extent = value.source.shape[position]
                if not guarded and (low < 0 or high >= extent):
                    raise ExpressionError(
                        f"{name}: {value} reads index {low if low < 0 else high} of dimension "
                        f"{position} of {value.source.name}, whose extent is {extent}"
                    )
        case _:
            for child in children(value):
                _check_value(name, child, ranges, guarded)


def requantize(value: Expr, *parameters: Expr) -> Expr:
    """``value`` plus a bias, scaled, rounded, moved to its zero point and clipped.

    All int32; the parameters are one after the other those that
    `amaranth_vta.sw.compiler.requantization.requantization_parameters` makes, and the NumPy
    meaning, exactly, is `requantized` there. Raises `ExpressionError` for other dtypes.
    """
    text = str(Requantize(value, *parameters))
    if len(parameters) != REQUANTIZE_PARAMETERS:
        raise ExpressionError(
            f"{text}: {len(parameters)} parameters instead of {REQUANTIZE_PARAMETERS}"
        )
    for part in (value, *parameters):
        if part.dtype != "int32":
            raise ExpressionError(f"{text}: {part} is {part.dtype}, not int32")
    return Requantize(value, *parameters)


def reduce_axis(dom: tuple[int, int], name: str = "r") -> IterVar:
    """An axis to reduce over, from ``dom[0]`` to ``dom[1]`` - 1."""
    begin, end = dom
    if end <= begin:
        raise ExpressionError(f"reduce_axis({dom}, {name!r}) is empty")
    return IterVar(name, end - begin, "reduce", begin)


def pad(
    tensor: Tensor,
    before: Sequence[int],
    after: Sequence[int] | None = None,
    value: int = 0,
    name: str = "pad",
) -> Tensor:
    """``tensor`` with ``before[d]`` elements of ``value`` in front of dimension d and ``after[d]``
    (as ``before`` if not given) behind it."""
    after = before if after is None else after
    if len(before) != tensor.ndim or len(after) != tensor.ndim:
        raise ExpressionError(
            f"{name}: pads {list(before)}, {list(after)} for the shape {tensor.shape}"
        )
    if min(*before, *after, 0) < 0:
        raise ExpressionError(f"{name}: pads {list(before)}, {list(after)} are not all positive")
    shape = [
        low + extent + high for low, extent, high in zip(before, tensor.shape, after, strict=True)
    ]

    def element(*i: Expr) -> Expr:
        conditions: list[Expr] = []
        for index, low, high, extent in zip(i, before, after, tensor.shape, strict=True):
            conditions += [index >= low] if low else []
            conditions += [index < low + extent] if high else []
        inner = tensor(*(index - low for index, low in zip(i, before, strict=True)))
        return if_then_else(all_of(*conditions), inner, value) if conditions else inner

    return compute(shape, element, name=name)


# Looking at expressions.


def children(value: Expr) -> tuple[Expr, ...]:
    match value:
        case Binary() | Compare():
            return value.left, value.right
        case AllOf() | AnyOf():
            return value.conditions
        case Cast() | Reduce():
            return (value.value,)
        case Select():
            return value.condition, value.true, value.false
        case Requantize():
            return value.value, *value.parameters
        case Access():
            return value.indices
    return ()


def rebuild(value: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``value`` with ``change`` applied to its children; itself if nothing changed."""
    old = children(value)
    new = tuple(map(change, old))
    if all(a is b for a, b in zip(old, new, strict=True)):
        return value
    match value:
        case Binary():
            match value.op:
                case "+":
                    return add(*new)
                case "-":
                    return _subtract(*new)
                case "*":
                    return _multiply(*new)
            return Binary(value.op, *new)
        case Compare():
            return Compare(value.op, *new)
        case AllOf():
            return AllOf(new)
        case AnyOf():
            return AnyOf(new)
        case Cast():
            return Cast(new[0], value.dtype)
        case Reduce():
            return Reduce(value.kind, new[0], value.axes)
        case Select():
            return Select(*new)
        case Requantize():
            return Requantize(*new)
        case Access():
            return Access(value.source, new)
    return value


def accesses(value: Expr) -> Iterator[Access]:
    """Every `Access` within ``value``, those in indices included."""
    if isinstance(value, Access):
        yield value
    for child in children(value):
        yield from accesses(child)


def substitute(value: Expr, values: Mapping[Var, Affine]) -> Expr:
    """``value`` with variables replaced."""
    match value:
        case Var():
            return values.get(value, value)
        case Affine():
            return value.replace(values)
    return rebuild(value, lambda child: substitute(child, values))


def value_interval(value: Expr, ranges: Mapping[Var, Interval] | None = None) -> Interval:
    """Bounds of what ``value`` can be, given those of its variables; its dtype's range at worst."""
    ranges = {} if ranges is None else ranges
    whole = dtype_interval(value.dtype)
    match value:
        case Const():
            return value.value, value.value
        case Var():
            return ranges.get(value, whole)
        case Affine():
            low = high = value.const
            for var, factor in value.terms.items():
                ends = [end * factor for end in ranges.get(var, whole)]
                low, high = low + min(ends), high + max(ends)
            return low, high
        case Cast():
            low, high = value_interval(value.value, ranges)
            return (low, high) if whole[0] <= low and high <= whole[1] else whole
        case Requantize():
            return -128, 127
        case Select():
            first, second = value_interval(value.true, ranges), value_interval(value.false, ranges)
            return min(first[0], second[0]), max(first[1], second[1])
        case Access() if isinstance(value.source, Tensor):
            return value.source.interval
        case Reduce():
            inner = dict(ranges)
            inner.update({axis: _axis_interval(axis) for axis in value.axes})
            low, high = value_interval(value.value, inner)
            if value.kind == "sum":
                count = prod(axis.extent or 1 for axis in value.axes)
                low, high = low * count, high * count
            return (low, high) if whole[0] <= low and high <= whole[1] else whole
        case Binary():
            low, high = _binary_interval(
                value.op, value_interval(value.left, ranges), value_interval(value.right, ranges)
            )
            return (low, high) if whole[0] <= low and high <= whole[1] else whole
    return whole


def _binary_interval(op: str, left: Interval, right: Interval) -> Interval:
    match op:
        case "+":
            return left[0] + right[0], left[1] + right[1]
        case "-":
            return left[0] - right[1], left[1] - right[0]
        case "*":
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        case "//":
            return left[0] // right[0], left[1] // right[0]
        case "%":
            if left[0] // right[0] == left[1] // right[0]:
                return left[0] % right[0], left[1] % right[0]
            return 0, right[0] - 1
        case "min":
            return min(left[0], right[0]), min(left[1], right[1])
        case "max":
            return max(left[0], right[0]), max(left[1], right[1])
        case _:
            if right[0] != right[1] or abs(right[0]) > 64:
                return -(1 << 63), 1 << 63
            amount = right[0] if op == ">>" else -right[0]
            return (
                (left[0] >> amount, left[1] >> amount)
                if amount >= 0
                else (left[0] << -amount, left[1] << -amount)
            )


def simplify(value: Expr, ranges: Mapping[Var, Interval]) -> Expr:
    """``value`` with conditions decided and divisions carried out where ``ranges`` allow."""
    value = rebuild(value, lambda child: simplify(child, ranges))
    match value:
        case Compare():
            return _simplify_compare(value, ranges)
        case AllOf():
            left = [c for c in value.conditions if not (isinstance(c, Const) and c.value)]
            if any(isinstance(c, Const) for c in left):
                return Const(0, "bool")
            return AllOf(left) if len(left) > 1 else left[0] if left else Const(1, "bool")
        case Select() if isinstance(value.condition, Const):
            return value.true if value.condition.value else value.false
        case Binary() if value.op in ("//", "%"):
            return _simplify_division(value, ranges)
        case Binary() if value.op in ("min", "max"):
            first, second = value_interval(value.left, ranges), value_interval(value.right, ranges)
            low, high = (
                (value.left, value.right) if value.op == "min" else (value.right, value.left)
            )
            if first[1] <= second[0]:
                return low
            if second[1] <= first[0]:
                return high
        case Var():
            return Affine({value: 1})
    return value


def _simplify_compare(value: Compare, ranges: Mapping[Var, Interval]) -> Expr:
    left, right = Affine.of(value.left), Affine.of(value.right)
    if left is None or right is None:
        first, second = value_interval(value.left, ranges), value_interval(value.right, ranges)
        low, high = first[0] - second[1], first[1] - second[0]
    else:
        low, high = value_interval(left.plus(right, -1), ranges)
    always, never = {
        "<": (high < 0, low >= 0),
        "<=": (high <= 0, low > 0),
        ">": (low > 0, high <= 0),
        ">=": (low >= 0, high < 0),
        "==": (low == high == 0, low > 0 or high < 0),
        "!=": (low > 0 or high < 0, low == high == 0),
    }[value.op]
    return Const(int(always), "bool") if always or never else value


def _simplify_division(value: Binary, ranges: Mapping[Var, Interval]) -> Expr:
    form, divisor = Affine.of(value.left), value.right
    if form is None or not isinstance(divisor, Const):
        return value
    by = divisor.value
    whole = Affine({v: f // by for v, f in form.terms.items() if f % by == 0}, form.const // by)
    rest = form.plus(whole, -by)
    low, high = value_interval(rest, ranges)
    if low // by == high // by:
        quotient = whole.plus(Affine({}, low // by))
        return quotient if value.op == "//" else form.plus(quotient, -by)
    return value
