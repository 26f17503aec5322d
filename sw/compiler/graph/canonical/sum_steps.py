"""Choose a step size for the sums of a product that is fine enough for its bias.

An integer product counts its sums in steps of s_x · s_w, to which a float bias is rounded. With
low-bit weights a step is coarse: half of it can exceed a step of the result. Multiplying the
weights by an integer m and dividing their scale by m leaves the product unchanged and makes the
steps finer by m. If some bias is further than `_NEAR` from a step, each channel gets its own m:
preferably an m for which no result changes, otherwise the m with the smallest rounding error.

`SumSteps.moved` bounds the remaining error in steps of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_sums import along_channels, is_of_channels
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.runtime.network.tile_layout import offset

from .quantization import QuantizationParameters, parameters_of

# Largest acceptable rounding error of a bias, in steps of the result.
_NEAR = 1 / 256
# Largest acceptable rounding error of a bias, in steps of the result, if the scales of a layer are
# one power of two, which machines without REQUANTIZE need.
_NEAR_FOR_SHIFTS = 1 / 64
# Channels whose sums have at least this step size, in steps of the result, are checked by
# enumerating all sums that are not clipped.
_COARSE = 1 / 64
# Width of a rounded bias.
_BIAS_BITS = 30
_SUM_LIMIT = (1 << 31) - 1
# Relative error of a few successive float32 operations.
FLOAT32 = 2.0**-22
# Results that are not clipped span at most this many steps.
STEPS = 256


@dataclass(frozen=True)
class ResultLimits:
    """The ``scale`` of a result and its range, ``low`` to ``high``, in steps, less its zero
    point."""

    scale: float
    low: int
    high: int

    @classmethod
    def of(cls, out: QuantizationParameters, low: int, high: int) -> ResultLimits:
        """The range of results quantized by ``out`` and clipped to ``low`` and ``high``."""
        zero = int(out.zero.item())
        return cls(float(out.scale.item()), low - zero, high - zero)


@dataclass(frozen=True)
class SumSteps:
    """Weights of a product less their zero points, (channels, …), their ``parameters``, and the
    ``bias``, int32 (channels,). ``moved`` bounds how far rounding of bias and weights moves a
    result, in steps of the result, before the result itself is rounded."""

    weights: Array
    parameters: QuantizationParameters
    bias: Array
    moved: float


def sum_steps(
    network: Network,
    bias: str,
    weights: Array,
    data: QuantizationParameters,
    weight: QuantizationParameters,
    limits: ResultLimits,
) -> SumSteps | None:
    """Choose the steps of the sums of ``data`` times ``weights``, int16 (channels, …) less their
    zero points, plus the tensor ``bias``, empty for none. ``weight`` has the parameters of the
    weights.

    Steps are made coarser where the bias or its sums would not fit int32, as in nearly dead
    channels. None if the bias is not constant with one number per channel, or not finite in steps.
    """
    channels = len(weights)
    scale = _scale_of_sums(data, weight)
    found = _bias(network, bias, scale) if bias else (np.zeros(1, np.int32), True)
    if found is None or not is_of_channels(found[0], channels):
        return None
    values, exact = np.broadcast_to(found[0].reshape(-1), channels), found[1]
    product = _Product(weights.reshape(channels, -1), scale, values, data, limits)
    if exact and product.fits():
        moved = FLOAT32 * STEPS
        return SumSteps(weights, weight, np.array(values), moved)
    if exact:
        product = replace(product, bias=values * scale.astype(np.float64))
    chosen = product.finer(weight.zero.dtype)
    if chosen is None:
        return None
    if (chosen.factors != 1).any():
        weights = np.rint(weights * along_channels(chosen.factors, weights)).astype(np.int16)
        weight = _finer(weight, chosen.factors, weights)
        scale = _scale_of_sums(data, weight)
    if np.abs(chosen.bias).max() > _SUM_LIMIT:
        return None
    moved = product.moved(weights.reshape(channels, -1), scale, chosen)
    return SumSteps(weights, weight, chosen.bias.astype(np.int32), moved)


def stored(weights: Array, parameters: QuantizationParameters) -> Array:
    """Convert weights (channels, …) less their zero points to integers with ``parameters``."""
    zero = parameters.zero.astype(np.int16)
    return (weights + along_channels(zero, weights)).astype(parameters.zero.dtype)


def zero_free(values: Array, parameters: QuantizationParameters) -> Array:
    """Subtract the zero points of ``parameters`` from weights (channels, …); int16."""
    return values.astype(np.int16) - along_channels(parameters.zero.astype(np.int16), values)


@dataclass(frozen=True)
class _Finer:
    """Integer ``factors`` of the weights, or powers of two below 1; the float64 ``bias`` in steps
    divided by these factors; and whether all results of a channel are ``unchanged``. All are
    (channels,)."""

    factors: Array
    bias: Array
    unchanged: Array


@dataclass(frozen=True)
class _Product:
    """The sums of ``data`` times ``weights``, int16 (channels, terms), with step size ``scale``,
    plus a real-valued ``bias``, (channels,)."""

    weights: Array
    scale: Array
    bias: Array
    data: QuantizationParameters
    limits: ResultLimits

    def fits(self) -> bool:
        """Whether all sums fit 32 bits, for a bias in steps."""
        return bool((self._reach() + np.abs(self.bias.astype(np.float64))).max() <= _SUM_LIMIT)

    def finer(self, dtype: np.dtype) -> _Finer | None:
        """Choose the factors; None if the bias is not finite in steps."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            steps = np.where(self.bias == 0, 0, self.bias.astype(np.float64) / self.scale)
            unit = np.broadcast_to(self.scale.astype(np.float64) / self.limits.scale, steps.shape)
            exponents = np.ceil(np.log2(np.abs(steps))) - _BIAS_BITS
        if not np.isfinite(steps).all():
            return None
        # Nearly dead channels, whose bias would exceed its width, get coarser steps.
        dead = exponents > 0
        coarser = np.exp2(-np.maximum(exponents, 0))
        steps = steps * coarser
        unchanged = np.zeros(len(steps), np.bool_)
        most = np.where(dead, 1, self._room(steps, dtype))
        multiples = np.arange(1, int(most.max()) + 1)
        whole = np.rint(steps[:, None] * multiples)
        off = np.abs(whole / multiples - _column(steps)) * _column(unit)
        off[dead] = 0
        if off[:, 0].max() <= (_NEAR_FOR_SHIFTS if _are_shifts(unit) else _NEAR):
            return _Finer(coarser, whole[:, 0], unchanged)
        off[multiples > _column(most)] = np.inf
        for channel in np.flatnonzero((unit >= _COARSE) & np.isfinite(unit) & (most > 1)):
            low, high = self._unchanging(float(steps[channel]), float(unit[channel]))
            least, greatest = np.floor(low * multiples) + 1, np.ceil(high * multiples) - 1
            fits = (least <= greatest) & (multiples <= most[channel])
            if fits.any():
                whole[channel] = np.clip(whole[channel], least, greatest)
                nearest = whole[channel] / multiples
                off[channel] = np.where(fits, -np.minimum(nearest - low, high - nearest), np.inf)
                unchanged[channel] = True
        at = off.argmin(axis=1)
        return _Finer(multiples[at] * coarser, whole[np.arange(len(at)), at], unchanged)

    def _unchanging(self, bias: float, unit: float) -> tuple[float, float]:
        """The open interval around the ``bias`` of a channel, in steps of the sum, within which no
        result changes for any sum. A step of the sum is ``unit`` steps of the result."""
        sums = np.arange(
            np.floor((self.limits.low - 0.5) / unit - bias),
            np.ceil((self.limits.high + 0.5) / unit - bias) + 1,
        )
        above = (sums + bias) * unit + 0.5
        above -= np.floor(above)
        return bias - float(above.min()) / unit, bias + float(1 - above.max()) / unit

    def _room(self, steps: Array, dtype: np.dtype) -> Array:
        """int64 (channels,): the largest factor for which the weights fit ``dtype`` and the sums
        fit 32 bits; at least 1."""
        limits = np.iinfo(dtype)
        neutral = offset(dtype)
        ups = np.maximum(self.weights.max(axis=1, initial=0), 0).astype(np.int64)
        downs = np.maximum(-self.weights.min(axis=1, initial=0), 0).astype(np.int64)
        fits = np.minimum(
            (limits.max - neutral) // np.maximum(ups, 1),
            (neutral - limits.min) // np.maximum(downs, 1),
        )
        if (fits < 1).any():  # nine-bit weights keep their zero points
            return np.ones(len(steps), np.int64)
        sums = self._reach() + np.abs(steps) + 1
        return np.maximum(np.minimum(fits, (_SUM_LIMIT // sums).astype(np.int64)), 1)

    def _reach(self) -> Array:
        """float64 (channels,): the largest magnitude of the sums without bias."""
        return np.abs(self.weights.astype(np.int64)).sum(axis=1).astype(np.float64) * self._span

    @property
    def _span(self) -> int:
        limits, zero = np.iinfo(self.data.zero.dtype), int(self.data.zero.item())
        return int(max(limits.max - zero, zero - limits.min))

    def moved(self, weights: Array, scale: Array, chosen: _Finer) -> float:
        """Bound how far results move, in their own steps, if ``weights`` and the ``chosen`` bias
        have the step size ``scale`` instead."""
        with np.errstate(over="ignore", invalid="ignore"):
            unit = self.scale.astype(np.float64) / self.limits.scale
            made = scale.astype(np.float64) / self.limits.scale
            bias = self.bias.astype(np.float64) / self.limits.scale
            off = np.where(chosen.unchanged, 0, np.abs(chosen.bias * made - bias))
            multiplied = chosen.factors >= 1
            apart = self.weights * _column(unit) - weights * _column(made)
            off += np.where(multiplied, 0, np.abs(apart).sum(axis=1) * self._span)
            off += FLOAT32 * (STEPS + 2 * np.abs(bias))
            # Results of channels that are always clipped to the same bound do not move.
            reach = self._reach() * unit + off
            clipped = bias - reach > self.limits.high - 0.5
            clipped |= bias + reach < self.limits.low + 0.5
        return float(np.where(clipped, 0, off).max())


def _scale_of_sums(data: QuantizationParameters, weight: QuantizationParameters) -> Array:
    return np.asarray((np.float32(data.scale.item()) * weight.scale).reshape(-1))


def _column(of_channels: Array) -> Array:
    return of_channels.reshape(-1, 1)


def _are_shifts(unit: Array) -> bool:
    """Whether all scales of a layer are the same power of two."""
    return bool((unit == unit[0]).all() and np.frexp(unit[0])[0] == 0.5)


def _finer(
    weight: QuantizationParameters, factors: Array, weights: Array
) -> QuantizationParameters:
    """Divide the scales of ``weight`` by ``factors``. The zero point becomes the one that the
    machine stores as 0 if all ``weights``, less their zero points, are in the range of the type
    around it."""
    same = weight.per_tensor and bool((factors == factors[0]).all())
    scale = (weight.scale.reshape(-1) / (factors[:1] if same else factors)).astype(np.float32)
    limits = np.iinfo(weight.zero.dtype)
    neutral = offset(weight.zero.dtype)
    zero = weight.zero.reshape(-1)
    if limits.min - neutral <= weights.min() and weights.max() <= limits.max - neutral:
        zero = np.array([neutral], weight.zero.dtype)
    if same:
        return QuantizationParameters(scale.reshape(()), zero[:1].reshape(()), weight.axis)
    return QuantizationParameters(scale, np.array(np.broadcast_to(zero, len(factors))), 0)


def _bias(network: Network, name: str, scale: Array) -> tuple[Array, bool] | None:
    """The values of a bias, and whether they are int32 steps of ``scale`` rather than real numbers;
    None if it is not constant."""
    node = network.maker(name)
    if node is None:
        return (network.constants[name], False) if name in network.constants else None
    parameters = parameters_of(network, node, "DequantizeLinear")
    values = network.constants.get(node.inputs[0])
    if parameters is None or values is None:
        return None
    same = np.all(parameters.scale.reshape(-1) == scale) and not parameters.zero.any()
    if values.dtype == np.int32 and same:
        return values, True
    many = values.size > 1 and parameters.scale.size > 1
    return None if many and values.ndim > 1 else (parameters.dequantize(values), False)
