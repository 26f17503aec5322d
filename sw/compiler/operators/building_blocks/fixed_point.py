"""Scaling and rounding by multiplication, addition and shift, with constants found by search.

ONNX's float32 results for a few small integers (the sum of two activations, or of a window) are a
step function of a linear form. Constants are accepted only if they reproduce every step: they are
checked for all operand values against the caller's results. REQUANTIZE is modelled by
`te.requantized`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import floor, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import IMMEDIATE_WIDTH, REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

Array = npt.NDArray[Any]
# Maximum distance of a factor from its rounded ratio in the search.
REACH = 24
# Remainders at most this far above one half count as a half.
_ABOUT_HALF = 1 << 14
# Number of tightest results used to rank factors, and of factors then checked on all results.
_TIGHTEST = 256
_CHOICES = 8


class NotExact(ValueError):
    """No constants give every result exactly; the message names the operation."""


@dataclass(frozen=True)
class Quantized:
    """A quantization: int8 q stands for (q - ``zero_point``) · ``scale``, in float32."""

    scale: float
    zero_point: int = 0


@dataclass(frozen=True)
class FixedPoint:
    """clip((Σ factor · operand + addend) / 2^shift + zero_point, low, high).

    The quotient is rounded down. If it is odd and the remainder is less than ``to_even``, it is
    decremented to an even value: with half a step in the addend, this rounds halves to even. With a
    ``scale``, one REQUANTIZE adds the addend, multiplies by ``scale`` instead of shifting, adds the
    zero point and clips.

    With ``rounded_twice``, REQUANTIZE multiplies by the first number, in units of 2^-43, instead of
    ``scale``, and the second is the shift of its second rounding (`te.parameters_of_scale`).

    With ``joined``, each product after the first is multiplied and added by one operation.

    ``corrections`` are added to the sum: one int8 for each value from -128 to 127 of the operand
    with index ``corrected``, from a table that takes ``table`` accumulators
    (`Config.table_elements`). They require a scale.
    """

    factors: tuple[int, ...]
    addend: int
    shift: int
    zero_point: int
    low: int
    high: int
    to_even: int = 0
    scale: float | None = None
    corrections: tuple[int, ...] = ()
    table: int = 0
    corrected: int = 0
    joined: bool = False
    rounded_twice: tuple[int, int] | None = None

    @property
    def operations(self) -> int:
        """ALU micro-ops per vector of results, including the reset of a copy."""
        products = sum(factor != 1 for factor in self.factors[: self._products_apart])
        sums = products + len(self.factors) - 1
        if self.scale is not None:
            # A correction takes a copy (two operations), the lookup and an addition.
            return sums + 1 + 4 * bool(self.table)
        rounding = 5 + (self.to_even > 1) if self.to_even else 0
        return sums + (self.addend != 0) + (self.shift > 0) + rounding + (self.zero_point != 0) + 2

    @property
    def _products_apart(self) -> int:
        """Number of leading products that are separate operations."""
        return 1 if self.joined else len(self.factors)

    def evaluate(self, operands: Sequence[Array]) -> Array:
        """NumPy reference for ``operands``, int64 arrays that broadcast."""
        total = _products(self.factors, operands) + self.addend
        if self.corrections:
            total = total + np.array(self.corrections)[operands[self.corrected] + 128]
        return self._rounded(total)

    def _rounded(self, total: Array) -> Array:
        """Results for sums that include the addend."""
        if self.scale is not None:
            _, *others = self._requantization()[0]
            zero = np.zeros((), np.int32)
            return te.requantized(total.astype(np.int32), zero, *others)
        less = (total >> self.shift & 1) * self.to_even
        return np.clip((total - less >> self.shift) + self.zero_point, self.low, self.high)

    def first_sums(self, width: int) -> Array:
        """int64 (high - low + 2,): for each result from ``low`` to ``high`` the least sum of
        ``width`` bits that gives it, then the end of the range of sums.
        """
        results = np.arange(self.low + 1, self.high + 1)
        # Results are monotone in the sum: bisect for the least sum.
        below = np.full(results.shape, (-1 << width - 1) - 1, np.int64)
        above = np.full(results.shape, 1 << width - 1, np.int64)
        for _ in range(width + 1):
            middle = np.clip(below + above >> 1, -1 << width - 1, (1 << width - 1) - 1)
            enough = self._rounded(middle) >= results
            below, above = np.where(enough, below, middle), np.where(enough, middle, above)
        return np.concatenate([[-1 << width - 1], above, [1 << width - 1]])

    def _requantization(self) -> Array:
        if self.rounded_twice is not None:
            bounds = self.zero_point, self.low, self.high
            return te.parameters_of_scale(self.addend, *self.rounded_twice, bounds)
        return te.requantization_parameters(
            [self.addend], self.scale or 1.0, self.zero_point, self.low, self.high
        )

    @property
    def parameter_count(self) -> int:
        """Number of tiles of constants in accumulators; 0 if immediates can hold all constants."""
        if self.scale is not None:
            return len(self.factors) + REQUANTIZE_PARAMETERS + self.table
        constants = [*self.factors, self.addend]
        return 0 if all(map(_is_immediate, constants)) else len(constants)

    def reversed(self) -> FixedPoint:
        """The same sum with its operands in reverse order."""
        corrected = len(self.factors) - 1 - self.corrected if self.table else 0
        return replace(self, factors=self.factors[::-1], corrected=corrected)

    def without_parameters(self) -> FixedPoint:
        """The same stages with placeholder constants wherever `parameters` holds them."""
        factors = tuple(map(_any_parameter, self.factors))
        if self.scale is not None:
            plain = FixedPoint(factors, 0, 0, 0, 0, 0, scale=1.0, joined=self.joined)
            return replace(plain, table=self.table, corrected=self.corrected)
        return replace(self, factors=factors, addend=_any_parameter(self.addend))

    def parameters(self, env: Environment) -> Array:
        """Contents of the parameter tiles: (parameter_count, BATCH, BLOCK_OUT) acc_dtype."""
        values = [*self.factors, self.addend]
        if self.scale is not None:
            values[-1:] = self._requantization()[0].tolist()
        values = values[: self.parameter_count]
        shape = (len(values), env.BATCH, env.BLOCK_OUT)
        tiles = np.broadcast_to(np.array(values, np.int64).reshape(-1, 1, 1), shape)
        if self.table:
            tiles = np.concatenate([tiles, te.table_tiles(self.corrections, env.config)])
        return tiles.astype(env.acc_dtype)

    def stages(
        self, operands: Sequence[Tensor], parameters: Callable[..., Expr], env: Environment
    ) -> list[Tensor]:
        """The stages from accumulators to results, all on the ALU; the last one holds the results.

        ``parameters`` returns the parameter with a given number at an index of the operands.
        """
        stages: list[Tensor] = []

        def stage(name: str, value: Callable[..., Expr]) -> Tensor:
            stages.append(te.compute(operands[0].shape, value, name))
            return stages[-1]

        def constant(number: int, value: int, i: Sequence[Expr]) -> Expr | int:
            return value if _is_immediate(value) else parameters(number, *i)

        def scaled(number: int) -> Tensor:
            x, factor = operands[number], self.factors[number]
            if factor == 1:
                return x
            return stage(f"{x.name}_scaled", lambda *i: x(*i) * constant(number, factor, i))

        first = len(self.factors)
        total, *others = map(scaled, range(self._products_apart))
        for number in range(self._products_apart, first):
            total = stage(
                "total",
                lambda *i, t=total, n=number: t(*i) + operands[n](*i) * parameters(n, *i),
            )
        if self.table:
            tiles = range(first + REQUANTIZE_PARAMETERS, self.parameter_count)
            x = operands[self.corrected]
            others.append(
                stage(
                    "correction", lambda *i: te.lookup(x(*i), *(parameters(n, *i) for n in tiles))
                )
            )
        for other in others:
            total = stage("total", lambda *i, t=total, o=other: t(*i) + o(*i))
        if self.scale is not None:
            numbers = range(first, first + REQUANTIZE_PARAMETERS)
            stage(
                "rescaled",
                lambda *i: te.requantize(total(*i), *(parameters(n, *i) for n in numbers)),
            )
            return stages
        if self.addend:
            before = total
            total = stage("moved", lambda *i: before(*i) + constant(first, self.addend, i))
        self._round(total, stage, env)
        return stages

    def _round(
        self, total: Tensor, stage: Callable[[str, Callable[..., Expr]], Tensor], env: Environment
    ) -> None:
        """Append the stages from the sum, addend included, to the result, without REQUANTIZE."""
        if self.to_even:
            # As in `RoundingShift.stages`: subtract where the rounded-up quotient is odd.
            sign = env.ACC_WIDTH - 1
            odd = stage("odd", lambda *i, t=total: t(*i) << sign - self.shift >> sign)
            if self.to_even > 1:
                odd = stage("more", lambda *i, o=odd: o(*i) * self.to_even)
            total = stage("even", lambda *i, t=total: t(*i) + odd(*i))
        if self.shift:
            sums = total
            total = stage("rounded", lambda *i: sums(*i) >> self.shift)
        if self.zero_point:
            quotients = total
            total = stage("centred", lambda *i: quotients(*i) + self.zero_point)
        stage("clipped", lambda *i: te.min(te.max(total(*i), self.low), self.high))


def _is_immediate(value: int) -> bool:
    return -1 << IMMEDIATE_WIDTH - 1 <= value < 1 << IMMEDIATE_WIDTH - 1


def _any_parameter(value: int) -> int:
    """``value`` if it fits an immediate, else a fixed value that does not."""
    return value if _is_immediate(value) else 1 << IMMEDIATE_WIDTH


def fixed_point(
    operands: Sequence[Array],
    ratios: Sequence[float],
    offset: float,
    wanted: Array,
    bounds: tuple[int, int, int],
    config: Config,
) -> FixedPoint:
    """Search for constants that give ``wanted``: approximately Σ ratio · operand + offset, rounded
    and clipped.

    ``operands`` and ``wanted`` are one-dimensional and list all combinations of values that can
    occur. ``bounds`` are the zero point, which ``offset`` includes, and the least and the greatest
    result. Raises `NotExact` if no constants near the ratios give every result.
    """
    values = [np.asarray(operand, np.int64) for operand in operands]
    shift = finest_shift([(int(v.min()), int(v.max())) for v in values], ratios, offset, config)
    for attempt in _attempts(ratios, shift, bounds, config):
        found = _search(attempt, values, ratios, wanted, config)
        if found is not None:
            return found
    raise NotExact(
        f"no factors, addend and shift of {config.acc_width} bits give all {wanted.size:,} results"
    )


def finest_shift(
    ends: Sequence[tuple[int, int]], ratios: Sequence[float], offset: float, config: Config
) -> int:
    """The largest shift for which Σ ratio · operand + offset fits accumulators, for operands within
    ``ends``. Raises `NotExact` if it does not fit without a shift.
    """
    most = 1 + max(
        abs(sum(r * end for r, end in zip(ratios, values, strict=True)) + offset)
        for values in product(*ends)
    )
    shift = min(floor(log2((1 << config.acc_width - 1) / most)), config.acc_width - 2)
    if shift < 0:
        raise NotExact(f"results up to {most:.3g} do not fit {config.acc_width} bits")
    return shift


def _attempts(
    ratios: Sequence[float], most: int, bounds: tuple[int, int, int], config: Config
) -> Iterator[FixedPoint]:
    """Ways to round, cheapest first; `_search` fills in factors and addend."""
    zero_point, low, high = bounds
    if config.requantize:
        joined = bool(config.multiply_add)
        yield FixedPoint((), 0, most, zero_point, low, high, scale=2.0**-most, joined=joined)
    # Ties occur if the ratios are integer multiples of a power of two.
    exact = [n for n in range(most) if all((ratio * 2**n).is_integer() for ratio in ratios)]
    for shift in (*exact[:1], most):
        yield FixedPoint((), 0, shift, 0, low, high)
        # An even zero point can be folded into the addend: even quotients stay even.
        after = zero_point if zero_point % 2 else 0
        # Rounded factors move ties: a remainder slightly above one half must count as a half.
        for to_even in (1, _ABOUT_HALF) if shift > _ABOUT_HALF.bit_length() + 4 else (1,):
            yield FixedPoint((), 0, shift, after, low, high, to_even)


def _search(
    attempt: FixedPoint,
    values: Sequence[Array],
    ratios: Sequence[float],
    wanted: Array,
    config: Config,
) -> FixedPoint | None:
    """``attempt`` with factors and addend that give ``wanted``, or None.

    Each result confines its sum to an interval, and for given factors the addend must satisfy all
    intervals. Factors are ranked by the tightest intervals, then checked against all.
    """
    centre = [round(ratio * 2**attempt.shift) for ratio in ratios]
    first = attempt.first_sums(config.acc_width)
    total = _products(centre, values)
    least, most = first[wanted - attempt.low] - total, first[wanted - attempt.low + 1] - 1 - total
    # Factors farther away miss the ratios; for small shifts the rounded factors are exact.
    reach = min(REACH, 1 << attempt.shift >> 16)
    moves = np.array(list(product(sorted(range(-reach, reach + 1), key=abs), repeat=len(values))))
    low, high = _smallest(-least), _smallest(most)
    begin = (least[low] - _moved(moves, values, low)).max(axis=1)
    end = (most[high] - _moved(moves, values, high)).min(axis=1)
    for move in moves[np.argsort(begin - end, kind="stable")[:_CHOICES]]:
        added = _products(move.tolist(), values)
        begins, ends = int((least - added).max()), int((most - added).min())
        if begins <= ends:
            factors = tuple(int(c + m) for c, m in zip(centre, move, strict=True))
            addend = 0 if begins <= 0 <= ends else (begins + ends) // 2
            found = replace(attempt, factors=factors, addend=addend)
            return found if np.array_equal(found.evaluate(values), wanted) else None
    return None


def _moved(moves: Array, values: Sequence[Array], chosen: Array) -> Array:
    """Contribution of each of ``moves`` to the ``chosen`` sums.

    Avoids NumPy's matrix product: it is slow for integers, and for floats it wakes threads that
    spin on the other cores longer than the product takes.
    """
    parts = (np.outer(move, v[chosen]) for move, v in zip(moves.T, values, strict=True))
    return np.sum(list(parts), axis=0)


def _smallest(values: Array) -> Array:
    """The indices of the `_TIGHTEST` smallest of ``values``, in any order."""
    if values.size <= _TIGHTEST:
        return np.arange(values.size)
    return np.argpartition(values, _TIGHTEST)[:_TIGHTEST]


def _products(factors: Sequence[int], values: Sequence[Array]) -> Array:
    total: Array = np.zeros((), np.int64)
    for factor, value in zip(factors, values, strict=True):
        total = total + factor * value
    return total
