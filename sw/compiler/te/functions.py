"""Functions on expressions: selection, conditions, reductions, minima and maxima, requantization
and table lookup."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS

from .dtypes import ExpressionError
from .expr import (
    Access,
    AllOf,
    Expr,
    IterVar,
    Lookup,
    Reduce,
    Requantize,
    Scalar,
    Select,
    agree,
    binary,
    const,
)


def if_then_else(condition: Expr, true: Scalar, false: Scalar) -> Expr:
    """``true`` where ``condition`` holds, else ``false``; an index may be out of bounds in the
    branch that is not taken.
    """
    _check_conditions("if_then_else", condition)
    return Select(condition, *agree("if_then_else", true, false))


def all_of(*conditions: Expr) -> Expr:
    """True where every condition is true."""
    _check_conditions("all", *conditions)
    return conditions[0] if len(conditions) == 1 else AllOf(conditions)


def _check_conditions(name: str, *conditions: Expr) -> None:
    if not conditions:
        raise ExpressionError(f"{name}() has no condition")
    for condition in conditions:
        if not isinstance(condition, Expr):
            raise ExpressionError(f"{name}({condition!r}, …): {condition!r} is not a condition")
        if condition.dtype != "bool":
            raise ExpressionError(
                f"{name}({condition}, …): {condition} is {condition.dtype}, not bool"
            )


def _reduce(kind: str, value: Scalar, axis: IterVar | Sequence[IterVar]) -> Expr:
    value = value if isinstance(value, Expr) else const(value)
    axes = [axis] if isinstance(axis, IterVar) else list(axis)
    for item in axes:
        if not isinstance(item, IterVar) or item.kind != "reduce":
            raise ExpressionError(f"{kind}({value}, …): {item} is not a reduce_axis")
    if not axes or len(set(axes)) != len(axes):
        names = ", ".join(item.name for item in axes)
        raise ExpressionError(
            f"{kind}({value}, axis=[{names}]): {'an' if axes else 'no'} axis is "
            f"given{' twice' if axes else ''}"
        )
    return Reduce(kind, value, axes)


def sum_over(expr: Scalar, axis: IterVar | Sequence[IterVar] = ()) -> Expr:
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
        return _reduce(kind, a, axis)
    assert b is not None
    left, right = agree(kind, a, b)
    return binary(kind, left, right)


def requantize(value: Expr, *parameters: Expr) -> Expr:
    """Requantize ``value``: add a bias, scale, round, add a zero point and clip.

    All int32; ``parameters`` are, in order, those of
    `amaranth_vta.sw.compiler.te.requantization.requantization_parameters`, and `requantized` there
    defines the result. Raises `ExpressionError` for other dtypes.
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


def lookup(value: Expr, *table: Expr) -> Expr:
    """The entry of ``table`` for the low byte of ``value``, an int8 in the dtype of ``value``.

    ``table`` are the tiles, in order, of a tensor with the contents of
    `amaranth_vta.sw.compiler.te.tables.table_tiles`, each accessed at the index of the value within
    its tile; `looked_up` there defines the result. Raises `ExpressionError` for other operands.
    """
    text = str(Lookup(value, *table))
    for part in table:
        if not isinstance(part, Access) or len(part.indices) < 2:
            raise ExpressionError(f"{text}: {part} is not in a tile of a tensor")
        if part.dtype != value.dtype:
            raise ExpressionError(f"{text}: {part} is {part.dtype}, not {value.dtype}")
    if not table:
        raise ExpressionError(f"{text}: a table is one tile or more")
    return Lookup(value, *table)
