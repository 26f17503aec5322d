"""Layer and RMS normalization of rows of 8-bit integers, in integer arithmetic of 32 bits.

With n elements x[i] per row, from 0 to 255 (int8 plus 128), and S = Σ x:

    m = S / n, rounded                 or, for RMS normalization, the zero point of x
    w[i] = x[i] - m                    s = S - n · m
    D = 2^f · (Σ w² - s² / n) + E      or, for RMS normalization, D = 2^f · Σ w² + E
    U = D · p · p' · p'', at least 2^29, with powers of four p = `POWERS`[D / 2^23] and so on
    r = 2^7 · `RECIPROCAL_ROOTS`[U / 2^23], improved by two Newton steps to 2^15 · √(2^31 / U)
    h[i] = (w[i] - s / n) · r · √(p · p' · p'') / 2^5
    y[i] = (h[i] + b[i]) · M[i] / 2^k, rounded half up, plus a zero point, and clipped

E is ε in units of D. `Arithmetic` has the constants; quotients by n are products with rounded
constants. Other quotients are rounded down. Only the product with M has more than 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS, SCALE_FRACTION
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

# Left shifts that move the upper bit of an 8-bit number to bit 6 or 7.
_LEFT = np.array([8 - int(number).bit_length() & ~1 for number in range(256)], np.int64)
# These shifts as powers of four, and their square roots.
POWERS: Integers = np.int64(1) << _LEFT
ROOTS: Integers = np.int64(1) << _LEFT // 2
# 2^6 / √(n / 256) in the middle of the step from n to n + 1, at most 127.
RECIPROCAL_ROOTS: Integers = np.array(
    [min(round(1024 / sqrt(number + 0.5)), 127) if number >= 64 else 0 for number in range(256)],
    np.int64,
)
# The least D; only rows of equal elements have a smaller one.
LEAST = 64
# Right shift of results.
DROPPED = 5
# Bounds of b and E, with which sums have 24 and 31 bits.
GREATEST_BIAS, GREATEST_EPSILON = 1 << 22, 1 << 29


@dataclass(frozen=True)
class Arithmetic:
    """The constants for rows of ``elements``; those after ``lift`` = 2^f are 0 without a mean."""

    elements: int
    lift: int
    mean: int = 0
    square: int = 0
    square_shift: int = 0
    rest: int = 0

    @classmethod
    def of_mean(cls, elements: int) -> Arithmetic:
        """Of layer normalization: Σ w² is less than 2^14 · n."""
        bits = (elements - 1).bit_length()
        lift, shift = 16 - bits, max(2 * bits - 4, 0)
        return cls(
            elements,
            1 << lift,
            _quotient(1 << 22, elements),
            _quotient(1 << lift + shift, elements),
            shift,
            _quotient(1 << 30, elements),
        )

    @classmethod
    def of_zero_point(cls, elements: int, zero_point: int) -> Arithmetic:
        """Of RMS normalization of numbers from 0 to 255 less ``zero_point``."""
        greatest = elements * max(zero_point, 255 - zero_point) ** 2
        return cls(elements, 1 << 30 - (greatest - 1).bit_length())

    @property
    def unit(self) -> float:
        """The h of a normalized element of 1."""
        return sqrt((1 << 31) / (self.elements * self.lift)) * (1 << 15 - DROPPED)


def _quotient(a: int, b: int) -> int:
    return (a + b // 2) // b


@dataclass(frozen=True)
class Normalization(Tiled):
    """Normalization of ``rows`` rows of ``vectors`` whole tiles. With ``centred`` the mean is
    subtracted, otherwise ``zero_point``, as held by the machine. ``lift`` is 2^f. ``negated`` says
    whether a factor of the parameters may be negative.
    """

    rows: int
    vectors: int
    lift: int
    centred: bool
    zero_point: int = 0
    negated: bool = False

    @property
    def extents(self) -> Mapping[int, int]:
        return {-4: self.rows}

    def part(self, axis: int, extent: int) -> Normalization:
        return replace(self, rows=extent)

    takes_turns = False

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        return NO_TILES if missing_for_rows(config) else all_tiles(self.rows)


def normalization(
    workload: Normalization,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "normalization",
) -> Function:
    """Build a function of the rows, `lane_matrices`, `parameters`, and output.

    Rows and output are (rows, vectors, BATCH, BLOCK_OUT) out_dtype. Default knobs and exceptions:
    see `tuned`.
    """
    return tuned(workload, env, knobs, name)


@dataclass(frozen=True)
class RowLine:
    """The last step: ``bias`` b and ``factor`` M per element, ``shift`` k, and the zero point of
    the result, as held by the machine.
    """

    bias: Integers
    factor: Integers
    shift: int
    zero_point: int


def parameters(
    arithmetic: Arithmetic, epsilon: int, line: RowLine, config: Config
) -> npt.NDArray[np.int32]:
    """The parameters (tiles, BATCH, BLOCK_OUT), int32; ``epsilon`` is E."""
    a = arithmetic
    shared = [128 * a.elements, a.mean, -a.elements, a.square, epsilon, a.rest, 3 << 15]
    sign = np.where(line.factor < 0, -1, 1)
    scale = np.abs(line.factor) << SCALE_FRACTION - line.shift
    bounds = line.zero_point, -128, 127
    requantization = te.parameters_of_scale(line.bias * sign, scale, 0, bounds)
    columns = np.concatenate([requantization, sign[:, None]], axis=1)
    tiles = columns.reshape(-1, 1, config.block_out, REQUANTIZE_PARAMETERS + 1)
    tiles = np.repeat(tiles, config.batch, axis=1).transpose(0, 3, 1, 2)
    tables = (np.roll(table, 128) for table in (-_LEFT, RECIPROCAL_ROOTS))
    return np.concatenate(
        [
            *(te.table_tiles(table, config) for table in tables),
            constant_tiles(shared, config),
            tiles.reshape(-1, config.batch, config.block_out),
        ]
    ).astype(np.int32)


# Numbers of the shared parameters, from the last table on.
_SUM_OF_128, _MEAN, _MINUS_COUNT, _SQUARE, _EPSILON, _REST, _THREE = range(7)


class _Stages:
    """The stages from the operand to the result."""

    def __init__(self, workload: Normalization, env: Environment) -> None:
        self.workload = workload
        self.table = env.config.table_elements
        self.shared = 2 * self.table
        self.line = self.shared + _THREE + 1
        count = self.line + workload.vectors * (REQUANTIZE_PARAMETERS + 1)
        self.rows = RowStages((workload.rows,), workload.vectors, count, env)

    def constant(self, name: str, value: Tensor, operation: str, number: int) -> Tensor:
        """One operation with a shared parameter."""
        place = self.shared + number
        return self.rows.row(name, value, operation, lambda *i: self.rows.parameter(place, *i))

    def result(self) -> Tensor:
        rows, row, w = self.rows, self.rows.row, self.workload
        given = rows.operand("x")
        centre: Tensor | None = None
        rest: Tensor | None = None
        if w.centred:
            total = self.constant("total", rows.sum_of_elements("ones", given), "+", _SUM_OF_128)
            mean = self.constant("mean_scaled", total, "*", _MEAN)
            mean = row("mean_half", row("mean_twice", mean, ">>", 21), "+", 1)
            mean = row("mean", mean, ">>", 1)
            minus = row("mean_minus", mean, "*", -1)
            counted = self.constant("mean_count", mean, "*", _MINUS_COUNT)
            rest = row("rest", total, "+", counted)
            centre = row("centre", minus, "+", 128)
        centred = []
        for number in range(2):
            x = rows.copied(given, f"x{number}")
            if centre is not None:
                x = rows.with_rows(f"w{number}", x, "+", centre)
            elif w.zero_point:
                x = rows.whole(f"w{number}", lambda *i, x=x: x(*i) + -w.zero_point)
            centred.append(x)
        w0, w1 = centred
        squares = rows.whole("squares", lambda *i: w1(*i) * w0(*i))
        size = (w.vectors * (1 << 16)).bit_length() // 8 + 1
        total = rows.sum_of_lanes(rows.sum_of_vectors("sums", squares), size)
        total = row("lifted", total, "<<", w.lift.bit_length() - 1)
        if rest is not None:
            square = row("rest_square", rest, "*", rest)
            square = self.constant("rest_scaled", square, "*", _SQUARE)
            elements = w.vectors * rows.tail[1]
            square = row("rest_part", square, ">>", Arithmetic.of_mean(elements).square_shift)
            square = row("rest_minus", square, "*", -1)
            total = row("less_rest", total, "+", square)
        total = self.constant("with_epsilon", total, "+", _EPSILON)
        total = row("d", total, "max", LEAST)
        shift, root = self._root(total)
        product = rows.with_rows("product", w0, "*", root)
        if rest is not None:
            offset = self._offset(rest, root)
            product = rows.with_rows("less_mean", product, "+", offset)
        h = rows.with_rows("h", product, ">>", shift)
        step = REQUANTIZE_PARAMETERS + 1
        if w.negated:
            place = self.line + REQUANTIZE_PARAMETERS
            h = rows.of_vectors(
                "signed", lambda n, v, *i, a=h: a(n, v, *i) * rows.parameter(place + v * step, *i)
            )
        return rows.requantized("result", h, self.line, step)

    def _root(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """The shift of products, and r."""
        row = self.rows.row
        total, shifted = self.rows.normalized(total, 0, 23, 3)
        half = row("half", shifted, ">>", 1)
        shift = row("shift", half, "+", DROPPED)
        place = row("place", total, ">>", 23)
        u = row("u", total, ">>", 15)
        r = row("r0", self.rows.looked_up("guess", place, self.table), "<<", 7)
        square = row("square1", row("square1_whole", r, "*", r), ">>", 12)
        near = row("near1", row("near1_whole", square, "*", u), ">>", 17)
        step = row("step1", row("near1_minus", near, "*", -1), "+", 3 << 13)
        r = row("r1", row("r1_whole", r, "*", step), ">>", 14)
        square = row("square2_half", row("square2_whole", r, "*", r), "+", 1 << 11)
        square = row("square2", square, ">>", 12)
        near = row("near2_half", row("near2_whole", square, "*", u), "+", 1 << 14)
        near = row("near2", near, ">>", 15)
        step = self.constant("step2", row("near2_minus", near, "*", -1), "+", _THREE)
        whole = row("r2_whole", r, "*", step)
        return shift, row("r2", row("r2_half", whole, "+", 1 << 13), ">>", 14)

    def _offset(self, rest: Tensor, root: Tensor) -> Tensor:
        """-s / n · r. The quotient is computed as (s + n) / n - 1, which is not negative, and is
        exact for s = 0: in rows of nearly equal elements r is large.
        """
        row = self.rows.row
        raised = row("raised", rest, "+", self.workload.vectors * self.rows.tail[1])
        part = self.constant("part_scaled", raised, "*", _REST)
        part = row("part_half", row("part_twice", part, ">>", 15), "+", 1)
        part = row("part", part, ">>", 1)
        part = row("part_product", part, "*", root)
        part = row("part_moved", part, ">>", 14)
        part = row("part_minus", part, "*", -1)
        return row("offset", part, "+", root)


def scheduled(workload: Normalization, env: Environment, knobs: OutputTile) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    stages = _Stages(workload, env)
    return stages.rows.scheduled(stages.result(), knobs.extents)
