"""Partitioned loops equal loops with conditions inside."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.passes.support.partition import (
    Limit,
    limits_of,
    not_negative,
    partition_loop,
)
from amaranth_vta.sw.compiler.te.expr import Affine, Var
from amaranth_vta.sw.compiler.te.simplify import value_interval
from tests.support.seeds import each_seed

Point = tuple[int, ...]


def nests(
    order: list[tuple[Var, int]],
    limits: list[Limit],
    fixed: dict[Var, Affine],
    ranges: dict[Var, tuple[int, int]],
) -> Iterator[tuple[dict[Var, Affine], dict[Var, tuple[int, int]]]]:
    """For each loop nest, the values of the original variables, and the ranges of its loop
    variables.
    """
    if not order:
        assert limits == []
        yield fixed, ranges
        return
    (var, extent), rest = order[0], order[1:]
    for part in partition_loop(var, extent, dict(rest), fixed, limits, ranges):
        own = Var(var.name)
        within = {**ranges, own: (0, part.end - part.begin - 1)}
        yield from nests(rest, part.limits, {**fixed, var: Affine({own: 1}, part.begin)}, within)


@each_seed(range(200))
def test_the_parts_are_exactly_the_iterations_that_limits_allow(seed: int) -> None:
    pick = random.Random(seed)
    order = [(Var(name), pick.randint(1, 5)) for name in "abc"]
    limits = [
        Limit(
            Affine({var: pick.randint(-3, 3) for var, _ in order}, pick.randint(-3, 3)),
            pick.randint(-4, 8),
            decides=pick.random() < 0.4,
        )
        for _ in range(pick.randint(1, 3))
    ]
    done: list[Point] = []
    for values, ranges in nests(order, limits, {}, {}):
        for limit in limits:
            # Every condition is constant within the nest.
            low, high = value_interval(limit.form.replace(values), ranges)
            assert high <= limit.most or (limit.decides and low > limit.most)
        loops = list(ranges)
        for point in product(*(range(ranges[loop][1] + 1) for loop in loops)):
            here = {loop: Affine({}, at) for loop, at in zip(loops, point, strict=True)}
            done.append(tuple(values[var].replace(here).const for var, _ in order))
    want = [
        point
        for point in product(*(range(extent) for _, extent in order))
        if all(
            limit.decides
            or limit.form.replace(
                {var: Affine({}, at) for (var, _), at in zip(order, point, strict=True)}
            ).const
            <= limit.most
            for limit in limits
        )
    ]
    assert sorted(done) == want


def test_a_condition_that_pads_a_copy_cuts_no_loop() -> None:
    x = te.placeholder((4,), "x")
    assert limits_of(te.pad(x, (1,)).op.body) == []  # type: ignore[arg-type]
    joined = te.compute((8,), lambda i: te.if_then_else(i < 4, x(i), x(i - 4)), "joined")
    (limit,) = limits_of(joined.op.body)  # type: ignore[arg-type]
    assert limit.decides
    k = te.reduce_axis((0, 4), "k")
    summed = te.compute((4,), lambda i: te.sum(te.if_then_else(k <= i, x(k), 0), axis=k), "summed")
    (limit,) = limits_of(summed.op.body)  # type: ignore[arg-type]
    assert not limit.decides
    assert not_negative(x(k) > 0) is None
