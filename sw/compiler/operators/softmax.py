"""Softmax of rows of 8-bit integers, in integer arithmetic of at most 32 bits.

With m the maximum of a row, E a table of exponentials and M a mask of 0 and 1 (or none):

    e[i] = E[(m - x[i]) mod 256] · M[i]       T = Σ e

    U = T · p · p', at least 2^24, with p = `POWERS`[T / 2^17] and p' = `POWERS`[T · p / 2^17]
    r = 2^7 · `RECIPROCALS`[U / 2^17], improved by two Newton steps to about 2^40 / U
    q[i] = e[i] · r / (2^17 / (p · p')), the share of an element in units of 2^-23
    y[i] = q[i] / 2^15, rounded half to even, less 128, and clipped; or q[i] / 2^16, rounded half to
           even, and clipped: all results are positive, and the zero point is 0

All numbers are from 0 to 2^31 - 1, and other quotients are rounded down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import NO_TILES, Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.row_stages import (
    RowStages,
    constant_tiles,
    missing_for_rows,
)

Integers = npt.NDArray[np.int64]

# Exponentials are integers up to this one, which a table of upper bytes can hold.
GREATEST = 127 << 8
# The most elements of a row: T is less than 2^25.
MOST_ELEMENTS = 1024
_LEFT = np.array([8 - int(number).bit_length() for number in range(256)], np.int64)
# Powers of two that move the upper bit of an 8-bit number to bit 7; of 0, all 8 bits.
POWERS: Integers = np.int64(1) << _LEFT
# 2^14 / (n + 1/2), at most 127, of the numbers n that have a bit 7, with a margin.
RECIPROCALS: Integers = np.array(
    [min(round((1 << 14) / (number + 0.5)), 127) if number >= 127 else 0 for number in range(256)],
    np.int64,
)


@dataclass(frozen=True)
class Softmax(Tiled):
    """Softmax of rows of ``vectors`` tiles each; of those elements that have a 1 in the mask if
    ``masked``, and of all elements otherwise. Rows are in ``groups`` of ``positions``, each of
    which has ``heads`` rows, with one row of the mask.
    """

    groups: int
    positions: int
    heads: int
    vectors: int
    masked: bool = False

    takes_turns = False

    @property
    def extents(self) -> Mapping[int, int]:
        return {-4: self.heads, -5: self.positions, -6: self.groups}

    def part(self, axis: int, extent: int) -> Softmax:
        changed: dict[str, Any] = {{-4: "heads", -5: "positions", -6: "groups"}[axis]: extent}
        return replace(self, **changed)

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        if missing_for_rows(config):
            return NO_TILES
        return all_tiles(self.groups, self.positions, self.heads)


def softmax(
    workload: Softmax, env: Environment, knobs: OutputTile | None = None, name: str = "softmax"
) -> Function:
    """Build a function of the rows, the mask if there is one, `lane_matrices`, `parameters`, and
    output.

    Rows and output are (groups, positions, heads, vectors, BATCH, BLOCK_OUT) out_dtype; the mask,
    of 0 and 1, is (positions, vectors, BATCH, BLOCK_OUT) out_dtype. The knobs tile groups,
    positions and heads. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def parameters(exponentials: Integers, symmetric: bool, config: Config) -> npt.NDArray[np.int32]:
    """The parameters (tiles, BATCH, BLOCK_OUT), int32, for a table of 256 ``exponentials`` of
    differences to the maximum, each from 0 to `GREATEST`. Results are ``symmetric`` if their zero
    point is 0.
    """
    upper = exponentials + 128 >> 8
    lower = exponentials - (upper << 8)
    # Tables list the results of the bytes from -128 to 127; byte -d has the result of difference d.
    order = -np.arange(-128, 128) % 256
    tables = [upper[order], lower[order], *(np.roll(a, 128) for a in (-_LEFT, RECIPROCALS))]
    power, zero = (-16, 0) if symmetric else (-15, -128)
    scale = te.requantization_parameters([0], 2.0**power, zero, -128, 127)[0]
    return np.concatenate(
        [
            *(te.table_tiles(table, config) for table in tables),
            constant_tiles([*scale, 1 << 17], config),
        ]
    ).astype(np.int32)


def _stages(workload: Softmax, rows: RowStages, env: Environment) -> Tensor:
    """Append the stages from operands to the result, and return the last."""
    table = env.config.table_elements
    upper, lower, left, reciprocals, scale = (table * number for number in range(5))
    two = scale + REQUANTIZE_PARAMETERS
    given = rows.operand("x")
    first = [rows.copied(given, f"x{number}") for number in range(2)]
    compared = rows.copied(given, "compared")
    mask = None
    if workload.masked:
        mask = rows.copied(rows.operand("mask", (workload.positions, workload.vectors)), "mask")
        moved = rows.stage("moved", mask.shape, lambda *i: mask(*i) << 8)
        bound = rows.stage("bound", mask.shape, lambda *i: moved(*i) + -256)
        compared = rows.whole(
            "unmasked", lambda g, p, h, *i, a=compared: a(g, p, h, *i) + bound(p, *i)
        )
    greatest = rows.greatest_vector("greatest", compared)
    if mask is not None:
        # Lanes of which all elements are masked are less than an int8.
        greatest = rows.row("greatest_byte", greatest, "max", -128)
    greatest = rows.greatest_lane(greatest)
    minus = rows.row("minus", greatest, "*", -1)
    bytes_of = []
    for name, x, place in zip(("upper", "lower"), first, (upper, lower), strict=True):
        less = rows.with_rows(f"{name}_less", x, "+", minus)
        bytes_of.append(rows.looked_up(name, less, place))
    high = rows.whole("high", lambda *i: bytes_of[0](*i) << 8)
    e = rows.whole("exponentials", lambda *i: high(*i) + bytes_of[1](*i))
    if mask is not None:
        e = rows.whole("masked", lambda g, p, h, *i, e=e: e(g, p, h, *i) * mask(p, *i))
    size = (workload.vectors * GREATEST).bit_length() // 8 + 1
    total = rows.sum_of_lanes(rows.sum_of_vectors("sums", e), size)
    shift, reciprocal = _reciprocal(rows, total, (left, reciprocals, two))
    scaled = rows.with_rows("product", e, "*", reciprocal)
    share = rows.with_rows("share", scaled, ">>", shift)
    return rows.requantized("result", share, scale)


def _reciprocal(
    rows: RowStages, total: Tensor, places: tuple[int, int, int]
) -> tuple[Tensor, Tensor]:
    """Append the stages from sums to the shift of products, and to the factor r."""
    left, reciprocals, two = places
    total, shifted = rows.normalized(total, left, 17, 2)
    shift = rows.row("shift", shifted, "+", 17)
    place = rows.row("place", total, ">>", 17)
    u = rows.row("u", total, ">>", 8)
    r = rows.row("r0", rows.looked_up("guess", place, reciprocals), "<<", 7)

    near = rows.row("near1_less", rows.row("near1", u, "*", r), ">>", 17)
    rest = rows.row("rest1", rows.row("near1_minus", near, "*", -1), "+", 1 << 14)
    r = rows.row("r1", rows.row("r1_whole", r, "*", rest), ">>", 13)

    near = rows.row("near2_half", rows.row("near2", u, "*", r), "+", 1 << 13)
    near = rows.row("near2_minus", rows.row("near2_less", near, ">>", 14), "*", -1)
    rest = rows.row("rest2", near, "+", lambda *i: rows.parameter(two, *i))
    r = rows.row("r2_half", rows.row("r2_whole", r, "*", rest), "+", 1 << 13)
    return shift, rows.row("r2", r, ">>", 14)


def scheduled(workload: Softmax, env: Environment, knobs: OutputTile) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    tiles = 4 * env.config.table_elements + REQUANTIZE_PARAMETERS + 1
    axes = (workload.groups, workload.positions, workload.heads)
    rows = RowStages(axes, workload.vectors, tiles, env)
    return rows.scheduled(_stages(workload, rows, env), knobs.extents)
