"""Traversal of expressions, and copies of them with parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_

from .expr import Access, Affine, Expr, Var


def rebuild(value: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``value`` with ``change`` applied to its children; itself if nothing changed."""
    old = value.children()
    if not old:
        return value
    new = tuple(map(change, old))
    return value if all(map(is_, old, new)) else value.with_children(*new)


def accesses(value: Expr) -> Iterator[Access]:
    """Every `Access` within ``value``, those in indices included."""
    within = [value]
    while within:
        part = within.pop()
        if isinstance(part, Access):
            yield part
        within += reversed(part.children())


def substitute(value: Expr, values: Mapping[Var, Affine]) -> Expr:
    """``value`` with its variables replaced by ``values``."""
    match value:
        case Var():
            return values.get(value, value)
        case Affine():
            return value.replace(values)
    return rebuild(value, lambda child: substitute(child, values))
