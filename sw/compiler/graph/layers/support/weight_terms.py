"""Choose between weights of several int8 terms, of one term with row sums, and of 4 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.workload import choose

from .tensors import INT8_RANGE

Product = TypeVar("Product", Conv2d, Dense)
_INT4 = (-8, 7)


def shared_part(least: int, most: int) -> int | None:
    """The integer nearest to 0 that is int8 and, subtracted from weights between ``least`` and
    ``most``, leaves int8; None if there is none.
    """
    low, high = INT8_RANGE
    begin, end = max(most - high, low), min(least - low, high)
    return min(max(0, begin), end) if begin <= end else None


def fastest(plain: Product, least: int, most: int, config: Config) -> Product:
    """The fastest product by weights between ``least`` and ``most``: ``plain``, whose weights may
    have several terms; the same with the `shared_part` subtracted from its weights and added by row
    sums; or the same with weights stored as int4.
    """
    other = None
    if plain.terms == 1 and config.wgt_4bit and _INT4[0] <= least and most <= _INT4[1]:
        other = replace(plain, int4_weights=True)
    elif plain.terms > 1 and shared_part(least, most) is not None:
        other = replace(plain, terms=1, row_sums=True)
    if other is None:
        return plain
    # Of equally fast ones, the one with fewer bytes of weights.
    return min((other, plain), key=lambda workload: choose(workload, config).cycles)
