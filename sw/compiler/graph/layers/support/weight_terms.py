"""Choose between weights of several int8 terms and weights of one term with row sums."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.workload import choose

from .tensors import INT8_RANGE

Product = TypeVar("Product", Conv2d, Dense)


def shared_part(least: int, most: int) -> int | None:
    """The integer nearest to 0 that is int8 and, subtracted from weights between ``least`` and
    ``most``, leaves int8; None if there is none.
    """
    low, high = INT8_RANGE
    begin, end = max(most - high, low), min(least - low, high)
    return min(max(0, begin), end) if begin <= end else None


def fastest(plain: Product, shared: int | None, config: Config) -> Product:
    """The faster of ``plain``, whose weights may have several terms, and the same product with
    weights less their ``shared`` part, if they have one, which row sums add.
    """
    if plain.terms == 1 or shared is None:
        return plain
    other = replace(plain, terms=1, row_sums=True)
    return min((plain, other), key=lambda workload: choose(workload, config).cycles)
