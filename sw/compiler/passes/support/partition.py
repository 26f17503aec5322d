"""Partitions a loop so that all iterations of a part are alike.

A limit bounds the iterations in which something happens, or selects one of two branches. A loop is
cut where the outcome changes, or where the extent of an inner loop changes; no condition remains at
run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from amaranth_vta.sw.compiler.te.dtypes import Interval
from amaranth_vta.sw.compiler.te.expr import (
    Affine,
    AllOf,
    Cast,
    Compare,
    Const,
    Expr,
    IterVar,
    Reduce,
    Select,
    Var,
)
from amaranth_vta.sw.compiler.te.simplify import value_interval


@dataclass(frozen=True)
class Limit:
    """The bound ``form`` <= ``most`` on a sum of loop variables. Iterations beyond it do not exist
    or, if the limit ``decides``, take the other branch. It applies to the loops up to the one over
    ``until``, by default to all, and with ``after`` only after the first iteration of the loop over
    that variable.
    """

    form: Affine
    most: int
    decides: bool = False
    until: IterVar | None = None
    after: Var | None = None


@dataclass(frozen=True)
class Part:
    """The iterations from ``begin`` to ``end`` - 1, and the limits that remain for loops inside."""

    begin: int
    end: int
    limits: list[Limit]


def partition_loop(
    var: Var,
    extent: int,
    inner: Mapping[Var, int],
    fixed: Mapping[Var, Affine],
    limits: Sequence[Limit],
    ranges: Mapping[Var, Interval],
) -> list[Part]:
    """Partition the loop over ``var``, of ``extent`` iterations.

    ``inner`` are the extents of the loops within it. Variables of outer loops are replaced by
    ``fixed`` forms of other variables, which have ``ranges``.
    """
    if not limits:
        return [Part(0, extent, [])]
    found: list[Part] = []
    before: object = None
    for iteration in range(extent):
        rest: list[Limit] = []
        signature: list[object] = []
        happens = True
        for limit in limits:
            if limit.after is var:
                if not iteration:
                    signature.append("kept")
                    continue
                limit = replace(limit, after=None)
            elif limit.after is not None:
                rest.append(limit)
                signature.append("later")
                continue
            form = limit.form.replace({**fixed, var: Affine({}, iteration)})
            within = {v: f for v, f in form.terms.items() if v in inner}
            low, high = value_interval(form.plus(Affine(within), -1), ranges)
            reach = [f * (inner[v] - 1) for v, f in within.items()]
            if high + sum(max(end, 0) for end in reach) <= limit.most:
                signature.append("kept")
                continue
            if low + sum(min(end, 0) for end in reach) > limit.most:
                signature.append("broken")
                happens &= limit.decides
                continue
            rest.append(limit)
            if var not in limit.form.terms:
                continue
            lasts = set[int]()
            if len(within) == 1:
                # The last iteration of the inner loop or, with a negative factor, its first.
                lasts = {_last(limit.most - end, *within.values()) for end in (low, high)}
            signature.append(lasts if len(lasts) == 1 else iteration)
        if not happens:
            continue
        if found and signature == before and found[-1].end == iteration:
            found[-1] = Part(found[-1].begin, iteration + 1, rest)
        else:
            found.append(Part(iteration, iteration + 1, rest))
        before = signature
    return found


def peel_first(parts: list[Part]) -> list[Part]:
    """``parts`` with the first iteration peeled into a separate part."""
    first = parts[0]
    if first.end - first.begin == 1:
        return parts
    begin = first.begin + 1
    alone, rest = replace(first, end=begin), replace(first, begin=begin)
    return [alone, rest, *parts[1:]]


def peel_last(parts: list[Part]) -> list[Part]:
    """``parts`` with the last iteration peeled into a separate part."""
    last = parts[-1]
    if last.end - last.begin == 1:
        return parts
    end = last.end - 1
    return [*parts[:-1], replace(last, end=end), replace(last, begin=end)]


def _last(room: int, factor: int) -> int:
    """The greatest n with ``factor`` · n <= ``room``; for a negative factor the least."""
    return room // factor if factor > 0 else -(room // -factor)


def limits_of(value: Expr, pads_decide: bool = False) -> list[Limit]:
    """Limits by which the loops around ``value`` can be cut.

    A sum skips iterations in which its terms are zero, and two branches get separate loops. A
    condition with a constant as its other branch is kept, unless ``pads_decide``: a copy can pad
    with the constant.
    """
    match value:
        case Reduce(kind="sum", value=Select(condition=condition, false=Const(value=0))):
            return [Limit(form.times(-1), 0) for form in _forms(condition)]
        case Cast():
            return limits_of(value.value, pads_decide)
        case Select(false=Const()) if not pads_decide:
            return limits_of(value.true)
        case Select():
            here = [Limit(form.times(-1), 0, decides=True) for form in _forms(value.condition)]
            branches = value.true, value.false
            return here + [limit for branch in branches for limit in limits_of(branch, pads_decide)]
    return []


def _forms(condition: Expr) -> list[Affine]:
    """The affine forms of a condition, or of all conditions in a conjunction."""
    if isinstance(condition, AllOf):
        return [form for part in condition.conditions for form in _forms(part)]
    return not_negative(condition) or []


def not_negative(condition: Expr) -> list[Affine] | None:
    """Affine forms that are all at least 0 if and only if the condition holds; None if it has no
    such forms.
    """
    if isinstance(condition, Compare) and condition.op != "!=":
        left, right = Affine.of(condition.left), Affine.of(condition.right)
        if left is not None and right is not None:
            less, one = right.plus(left, -1), Affine({}, 1)
            return {
                "<": [less.plus(one, -1)],
                "<=": [less],
                ">": [less.times(-1).plus(one, -1)],
                ">=": [less.times(-1)],
                "==": [less, less.times(-1)],
            }[condition.op]
    return [] if isinstance(condition, Const) and condition.value else None
