"""Conditions hold exactly for the given flags, and are short."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from amaranth_vta.sw.compiler.passes.support.conditions import Flags, condition
from amaranth_vta.sw.compiler.te.expr import Expr, Var

LOOPS = tuple(map(Var, "ijk"))


def holds(value: Expr, point: tuple[int, ...]) -> bool:
    names = {loop.name: at for loop, at in zip(LOOPS, point, strict=False)}
    joint = {"all": lambda *parts: all(parts), "any": lambda *parts: any(parts)}
    return bool(eval(str(value), {**joint, **names}))


def patterns() -> list[Flags]:
    """All flags of two small loops, and random ones of three."""
    small = [np.array(bits, np.bool_).reshape(2, 3) for bits in itertools.product((0, 1), repeat=6)]
    rng = np.random.default_rng(0)
    large = [rng.random(rng.integers(1, 6, 3)) < rng.choice([0.1, 0.5, 0.9]) for _ in range(200)]
    return [*small, *large]


def test_a_condition_holds_where_its_flags_are_true_and_nowhere_else() -> None:
    for flags in patterns():
        found = condition(flags, LOOPS[: flags.ndim])
        for point in np.ndindex(*flags.shape):
            assert holds(found, point) == flags[point], (str(found), flags)


@pytest.mark.parametrize(
    ("true_at", "text"),
    [
        (lambda i, j, k: i >= 0, "1"),
        (lambda i, j, k: j > 0, "j >= 1"),
        (lambda i, j, k: i + j + k > 0, "(i + j + k) > 0"),
        (lambda i, j, k: i + j + k < 12, "(-i - j - k + 12) > 0"),
        (lambda i, j, k: k % 2 == 1, "(k % 2) == 1"),
        (lambda i, j, k: 30 * i + 6 * j + k >= 47, "(30*i + 6*j + k) >= 47"),
        (lambda i, j, k: (i > 0) & (k < 2), "all(i >= 1, k < 2)"),
    ],
)
def test_the_conditions_of_tokens_are_short(true_at: Any, text: str) -> None:
    flags: Flags = np.broadcast_to(true_at(*np.ogrid[:4, :5, :6]), (4, 5, 6))
    assert str(condition(flags, LOOPS)) == text
