"""The integer arithmetic of products on the machine.

With x, w, y the integers of the graph, z their zero points and s = s_x · s_w / s_y, QLinearConv and
QLinearMatMul define

    y = saturate(rint(float32(Σ (x − z_x)(w − z_w) + bias) · s) + z_y),

and ConvInteger and MatMulInteger the sum alone.

The machine multiplies the int8 values that it holds: a uint8 of the graph less 128. Zero points of
weights are subtracted at compile time. The zero point of x contributes the same amount to every
pixel, so it is folded into the bias, provided that padding has the value of the zero point.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.channel_scales import channel_parameters
from amaranth_vta.sw.compiler.graph.integer_operators import (
    QUOTIENT,
    ROUNDING,
    STEPS,
    TWICE,
    multipliers_of,
)
from amaranth_vta.sw.compiler.graph.integer_sums import (
    Integers,
    along_channels,
    is_of_channels,
    range_of_sums,
    scale_of_results,
)
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    CompactScale,
    PerChannelScale,
    Requantization,
    RoundingShift,
    TensorScale,
    WholeSums,
)
from amaranth_vta.sw.compiler.operators.building_blocks.integer_rounding import (
    IntegerRounding,
    Multiplier,
    Quotient,
    StepFunction,
)
from amaranth_vta.sw.runtime.network.tile_layout import tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes

from .layer import Unsupported
from .tensors import Range, Tensors
from .tiled_constants import output_layout, pack_bias, terms_of

# Input positions of bias, output scale and output zero point.
_PLACES = {"QLinearConv": (8, 6, 7), "QLinearMatMul": (8, 6, 7), "QGemm": (6, 7, 8)}
_CONVOLUTIONS = ("QLinearConv", "ConvInteger")
# Up to this shift, sums so large that float32 would round them are clipped anyway.
_LARGEST_SHIFT = 16
# Width of ONNX Runtime's sums.
_INT32 = 32


@dataclass(frozen=True)
class Sums:
    """The sums of a layer: per output channel (the first axis of ``weights``, which have at most 9
    bits after subtraction of the zero point), the sum of products of weights and input, plus
    ``bias``. ``least`` and ``most`` bound the biased sums. Other arrays are (channels,)."""

    weights: npt.NDArray[np.int16]
    bias: Integers
    least: Integers
    most: Integers

    @property
    def terms(self) -> int:
        """Number of int8 terms that add up to each weight."""
        return terms_of(self.weights)


@dataclass(frozen=True)
class RequantizedSums(Sums):
    """Sums times ``scale`` (float32 (channels,)), rounded, plus ``zero_point``, clipped to the
    range ``low`` to ``high``."""

    scale: npt.NDArray[np.float32]
    zero_point: int
    low: int
    high: int
    # Instead of float32 arithmetic, one per channel; empty otherwise.
    roundings: tuple[IntegerRounding, ...] = ()
    # Whether to share the parameters of REQUANTIZE between channels with one scale.
    one_scale: bool = False
    # Whether to load only those bytes of the parameters that differ between channels.
    compact: bool = False


def requantized_sums(tensors: Tensors, node: Node, limits: Range) -> RequantizedSums:
    """The sums of a QLinearConv, QLinearMatMul or QGemm, clipped to ``limits``. Raises
    `Unsupported`."""
    bias_at, _, zero_at = _PLACES[node.operator]
    scale = float32_scale(tensors, node)
    bias = tensors.constant(node, bias_at) if node.input(bias_at) else None
    plain = sums(tensors, node, bias)
    return RequantizedSums(
        **vars(plain),
        scale=np.broadcast_to(scale, len(plain.bias)),
        zero_point=tensors.zero_point(node, zero_at),
        low=limits[0],
        high=limits[1],
        roundings=roundings(node, len(plain.bias)),
    )


def roundings(node: Node, channels: int) -> tuple[IntegerRounding, ...]:
    """The integer roundings of a product; none if float32 arithmetic defines its results."""
    kind = node.attributes.get(ROUNDING)
    if kind is None:
        return ()
    if kind == QUOTIENT:
        return (Quotient(node.attributes["count"]),) * channels
    if kind == STEPS:
        return (
            StepFunction(node.attributes["lowest"], tuple(node.attributes["begins"])),
        ) * channels
    both = zip(*(np.broadcast_to(a, channels).tolist() for a in multipliers_of(node)), strict=True)
    return tuple(Multiplier(multiplier, shift, kind == TWICE) for multiplier, shift in both)


def sums(tensors: Tensors, node: Node, added: Any) -> Sums:
    """The sums of a product with constant weights, plus the bias ``added`` unless it is None.
    Raises `Unsupported`."""
    weights_at, zero_at = SECOND_FACTOR[node.domain, node.operator]
    weights = tensors.constant(node, weights_at)
    zero = tensors.constant(node, zero_at).astype(np.int64)
    if node.operator not in _CONVOLUTIONS:
        if weights.ndim != 2:
            raise Unsupported("its second factor is not one matrix")
        if not node.attributes.get("transB", 0):
            weights = weights.T
    zero_free = weights.astype(np.int16) - along_channels(zero, weights).astype(np.int16)
    channels = len(weights)
    flat = zero_free.reshape(channels, -1)
    bias = np.zeros(channels, np.int64)
    if added is not None:
        if not is_of_channels(added, channels):
            raise Unsupported("its bias differs from row to row")
        bias += added.reshape(-1)
    x_zero = tensors.zero_point(node, 2)
    low, high = (item - x_zero for item in tensors.range(node.inputs[0]))
    # Padding contributes 0, even if the range excludes it.
    low, high = min(low, 0), max(high, 0)
    least, most = range_of_sums(flat, low, high, bias)
    folded = bias - x_zero * flat.sum(axis=1, dtype=np.int64)
    return Sums(weights=zero_free, bias=folded, least=least, most=most)


def float32_scale(tensors: Tensors, node: Node) -> npt.NDArray[np.float32]:
    """The scale of the sums of a QLinearConv, QLinearMatMul or QGemm, float32 (1,) or (channels,).
    Raises `Unsupported`."""
    y_scale_at = _PLACES[node.operator][1]
    x_scale, w_scale, y_scale = (tensors.constant(node, index) for index in (1, 4, y_scale_at))
    if x_scale.size != 1 or y_scale.size != 1:
        raise Unsupported("a scale is per channel, not per tensor")
    return scale_of_results(x_scale, w_scale, y_scale)


def requantization(sums: Sums, config: Config) -> tuple[Requantization, dict[str, Bytes]]:
    """How the machine of ``config`` requantizes sums, and the packed bytes of the constants, by
    name. Raises `Unsupported`."""
    if not isinstance(sums, RequantizedSums):
        whole = whole_sums(sums.least, sums.most, config)
        return whole, {"requantization": pack_bias(sums.bias, config)}
    how, constants = constants_of(sums, config)
    if sums.one_scale and constants.ndim > 1 and (constants[:, 1:] == constants[:1, 1:]).all():
        bias, shared = constants[:, 0], np.concatenate([[0], constants[0, 1:]])
        scale = np.broadcast_to(shared, (config.block_out, len(shared)))
        packed = {"requantization": bias, "scale": scale}
        return TensorScale(wraps=how.wraps), {
            name: pack_bias(value, config) for name, value in packed.items()
        }
    if sums.compact and (parts := _compact(constants, config)) is not None:
        return CompactScale(wraps=how.wraps), parts
    return how, {"requantization": pack_bias(constants, config)}


def _compact(parameters: Integers, config: Config) -> dict[str, Bytes] | None:
    """The constants of `CompactScale` for parameters of REQUANTIZE, (channels, 4), by name; None
    if they have a bias, an upper part that is no int8, or bounds that differ."""
    if parameters.ndim == 1 or (config.out_width, config.acc_width) != (8, _INT32):
        return None
    bias, lower, upper, rest = parameters.T
    if bias.any() or upper.max() >= 1 << config.out_width - 1 or (rest != rest[0]).any():
        return None
    factors = np.tile(CompactScale.factors(rest[0]), (config.block_out, 1))
    rows = np.broadcast_to(upper, (config.batch, len(upper))).astype(np.int8)
    return {
        "requantization": pack_bias(lower, config),
        "upper": output_layout(config).pack(rows[:, :, None, None]),
        "upper_factors": pack_bias(factors, config),
    }


def whole_sums(least: Integers, most: Integers, config: Config) -> WholeSums:
    """Split sums from ``least`` to ``most`` into as few parts as possible. Raises `Unsupported`."""
    if config.acc_width < _INT32:
        _require_no_overflow(least, most, config)
    largest = max(int(most.max()), -1 - int(least.min()), 0)
    # Sums beyond 32 bits wrap around, as in ONNX Runtime.
    width = min(largest.bit_length() + 1, config.acc_width)
    return WholeSums(tiles(width, config.out_width))


def constants_of(sums: RequantizedSums, config: Config) -> tuple[Requantization, Integers]:
    """How the machine of ``config`` requantizes sums, and the constants it reads: the parameters of
    REQUANTIZE (channels, 4), the first of which is the bias, or else the bias (channels,). Raises
    `Unsupported`."""
    wraps = _wraps(sums, config)
    if config.requantize:
        if config.acc_width < _INT32:
            _require_no_overflow(sums.least, sums.most, config)
        bounds = (sums.zero_point, sums.low, sums.high)
        if sums.roundings:
            return PerChannelScale(), _rounded_parameters(sums, bounds, config)
        parameters, missing = channel_parameters(
            sums.bias, sums.scale, bounds, sums.least, sums.most
        )
        for channel in missing:
            raise Unsupported(
                f"REQUANTIZE by the scale {sums.scale[channel]:.6g} of channel {channel} differs "
                f"from float32 for sums from {sums.least[channel]:,} to {sums.most[channel]:,}"
            )
        return PerChannelScale(wraps=wraps), parameters.astype(np.int64)
    if sums.roundings:
        raise Unsupported("it rounds as TensorFlow Lite, and the machine has no REQUANTIZE")
    shift = _shift(sums)
    how = RoundingShift(shift, sums.low, sums.high, wraps=wraps)
    if shift and sums.zero_point % 2:
        raise Unsupported(
            f"the zero point {sums.zero_point} is odd: halves would be rounded to odd"
        )
    moved = (sums.zero_point << shift) + how.half
    _require_no_overflow(sums.least + moved - how.half - 1, sums.most + moved, config)
    return how, sums.bias + moved


def _rounded_parameters(
    sums: RequantizedSums, bounds: tuple[int, int, int], config: Config
) -> Integers:
    """Parameters of REQUANTIZE, (channels, 4), with the results of integer roundings. Raises
    `Unsupported`."""
    if not config.round_twice:
        raise Unsupported("it rounds as TensorFlow Lite, and the machine has no ROUND_TWICE")
    known = [item for item in sums.roundings if isinstance(item, Multiplier)]
    if len(known) < len(sums.roundings):
        raise Unsupported("it divides sums that are no averages")
    multipliers, shifts = (
        np.array([getattr(item, name) for item in known], np.int64)
        for name in ("multiplier", "shift")
    )
    parameters, proved = te.parameters_as_tflite(
        sums.bias, multipliers, shifts, bounds, sums.least, sums.most, twice=known[0].twice
    )
    for channel in np.flatnonzero(~proved):
        raise Unsupported(
            f"REQUANTIZE by the scale {sums.scale[channel]:.6g} of channel {channel} differs from "
            f"TensorFlow Lite for sums from {sums.least[channel]:,} to {sums.most[channel]:,}"
        )
    return parameters.astype(np.int64)


def _shift(sums: RequantizedSums) -> int:
    """The n of a scale 2^-n. Raises `Unsupported` for other scales."""
    scales = np.unique(sums.scale)
    if len(scales) > 1:
        raise Unsupported("its scale differs per channel, and the machine has no REQUANTIZE")
    scale = float(scales[0])
    shift = -log2(scale) if scale > 0 else 0.5
    if shift != int(shift):
        raise Unsupported(f"its scale {scale:.6g} is not a power of two")
    if not 0 <= shift <= _LARGEST_SHIFT:
        raise Unsupported(f"its scale 2^{-int(shift)} is not within 2^-{_LARGEST_SHIFT} and 1")
    return int(shift)


def _wraps(sums: Sums, config: Config) -> bool:
    """Whether sums, with or without bias, may use the highest bits of accumulators."""
    # Products have 16 bits, or 17 with nine-bit weights.
    plain = prod(sums.weights.shape[1:]) << 16
    most = max(plain, int(np.abs(sums.least).max()), int(np.abs(sums.most).max()))
    return most >= 1 << config.acc_width - 2


def _require_no_overflow(least: Integers, most: Integers, config: Config) -> None:
    limit = 1 << config.acc_width - 1
    if most.max() >= limit or least.min() < -limit:
        raise Unsupported(f"its sums can exceed {config.acc_width}-bit accumulators")
