"""Traversal of expressions, and copies of them with parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_

from .expr import (
    Access,
    Affine,
    AllOf,
    AnyOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Parametrized,
    Reduce,
    Select,
    Var,
    add,
    multiply,
    subtract,
)


def children(value: Expr) -> tuple[Expr, ...]:
    match value:
        case Affine() | Var() | Const():  # the most frequent kinds come first
            return ()
        case Binary() | Compare():
            return value.left, value.right
        case AllOf() | AnyOf():
            return value.conditions
        case Cast() | Reduce():
            return (value.value,)
        case Select():
            return value.condition, value.true, value.false
        case Parametrized():
            return value.value, *value.parameters
        case Access():
            return value.indices
    return ()


def rebuild(value: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``value`` with ``change`` applied to its children; itself if nothing changed."""
    old = children(value)
    if not old:
        return value
    new = tuple(map(change, old))
    if all(map(is_, old, new)):
        return value
    match value:
        case Binary():
            match value.op:
                case "+":
                    return add(*new)
                case "-":
                    return subtract(*new)
                case "*":
                    return multiply(*new)
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
        case Parametrized():
            return type(value)(*new)
        case Access():
            return Access(value.source, new)
    return value


def accesses(value: Expr) -> Iterator[Access]:
    """Every `Access` within ``value``, those in indices included."""
    within = [value]
    while within:
        part = within.pop()
        if isinstance(part, Access):
            yield part
        within += reversed(children(part))


def substitute(value: Expr, values: Mapping[Var, Affine]) -> Expr:
    """``value`` with its variables replaced by ``values``."""
    match value:
        case Var():
            return values.get(value, value)
        case Affine():
            return value.replace(values)
    return rebuild(value, lambda child: substitute(child, values))
