"""Builds short conditions on loop variables that select given iterations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.compiler.te.expr import Affine, AllOf, AnyOf, Binary, Compare, Const, Expr, Var

Flags = npt.NDArray[np.bool_]


def condition(flags: Flags, loops: Sequence[Var]) -> Expr:
    """A condition on ``loops``, one per dimension of ``flags``, that holds exactly where ``flags``
    is true.
    """
    if flags.all() or not flags.any():
        return Const(int(flags.all()), "bool")
    for axis in range(flags.ndim):
        first = flags.take([0], axis)
        if (flags == first).all():
            rest = [var for position, var in enumerate(loops) if position != axis]
            return condition(first.squeeze(axis), rest)
    if flags.ndim == 1:
        return _describe_row(flags, loops[0])
    for form in (_corner, _turning_point):
        found = form(flags, loops)
        if found is not None:
            return found
    return _describe_slices(flags, loops)


def _describe_row(flags: Flags, loop: Var) -> Expr:
    for period in range(2, min(len(flags) // 2, 8) + 1):
        turn = np.arange(len(flags)) % period
        for rest in range(period):
            if (flags == (turn == rest)).all():
                return Compare(
                    "==", Binary("%", loop, Const(period, "int32")), Const(rest, "int32")
                )
    edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    runs = [
        _between(loop, begin, end, len(flags)) for begin, end in pairwise(edges) if flags[begin]
    ]
    return runs[0] if len(runs) == 1 else AnyOf(runs)


def _between(loop: Var, begin: int, end: int, extent: int) -> Expr:
    low, high = Affine({loop: 1}) >= begin, Affine({loop: 1}) < end
    if begin == 0:
        return high
    if end == extent:
        return low
    return loop == begin if end == begin + 1 else AllOf([low, high])


def _corner(flags: Flags, loops: Sequence[Var]) -> Expr | None:
    """If the flags differ only in one corner of the iteration space: a bound on the distance from
    that corner, summed over the loops.
    """
    odd = flags if np.count_nonzero(flags) == 1 else ~flags
    if np.count_nonzero(odd) != 1:
        return None
    distance = Affine({})
    for position, loop, extent in zip(np.argwhere(odd)[0], loops, flags.shape, strict=True):
        if position == 0:
            distance = distance.plus(Affine({loop: 1}))
        elif position == extent - 1:
            distance = distance.plus(Affine({loop: -1}, extent - 1))
        else:
            return None
    return distance == 0 if odd is flags else distance > 0


def _turning_point(flags: Flags, loops: Sequence[Var]) -> Expr | None:
    """If the flags change once over all iterations: a bound on the iteration number."""
    changes = np.flatnonzero(np.diff(flags.reshape(-1))) + 1
    if len(changes) != 1:
        return None
    count = Affine({})
    for loop, extent in zip(loops, flags.shape, strict=True):
        count = count.times(extent).plus(Affine({loop: 1}))
    turn = int(changes[0])
    return count < turn if flags.reshape(-1)[0] else count >= turn


def _describe_slices(flags: Flags, loops: Sequence[Var]) -> Expr:
    """Along the loop with the fewest runs of equal slices, one condition per run."""
    best: list[tuple[int, int]] | None = None
    chosen = 0
    for axis in range(flags.ndim):
        slices = np.moveaxis(flags, axis, 0).reshape(flags.shape[axis], -1)
        changes = (slices[1:] != slices[:-1]).any(axis=1)
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), flags.shape[axis]]
        if best is None or len(edges) - 1 < len(best):
            best, chosen = list(pairwise(edges)), axis
    assert best is not None
    rest = [var for position, var in enumerate(loops) if position != chosen]
    parts: list[Expr] = []
    for begin, end in best:
        inner = condition(flags.take([begin], chosen).squeeze(chosen), rest)
        here = _between(loops[chosen], begin, end, flags.shape[chosen])
        if isinstance(inner, Const):
            parts += [here] if inner.value else []
        else:
            parts.append(AllOf([here, inner]))
    return parts[0] if len(parts) == 1 else AnyOf(parts)
