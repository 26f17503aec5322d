"""Value bounds and simplification of expressions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from .dtypes import Interval, dtype_interval
from .expr import (
    Access,
    Affine,
    AllOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Parametrized,
    Reduce,
    Select,
    Var,
)
from .traverse import rebuild


def value_interval(value: Expr, ranges: Mapping[Var, Interval] | None = None) -> Interval:
    """Bounds of ``value`` for the ``ranges`` of its variables; at worst those of its dtype."""
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
        case Parametrized():
            return -128, 127
        case Select():
            first, second = value_interval(value.true, ranges), value_interval(value.false, ranges)
            return min(first[0], second[0]), max(first[1], second[1])
        case Access():
            return value.source.interval
        case Reduce():
            inner = dict(ranges)
            inner.update({axis: axis.interval for axis in value.axes})
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


def identity(reduction: Reduce) -> int:
    """The identity element of ``reduction``: 0 for a sum, else a bound of its values."""
    if reduction.kind == "sum":
        return 0
    low, high = value_interval(reduction.value)
    return low if reduction.kind == "max" else high


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
    """``value`` with conditions and divisions resolved where ``ranges`` allow."""
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
        case Select(true=Const() as true, false=Const() as false) if true.value == false.value:
            return true
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
