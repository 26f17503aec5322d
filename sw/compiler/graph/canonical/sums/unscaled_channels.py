"""Split off channels of a product whose sums REQUANTIZE cannot scale with exact results.

Its fixed point covers neither sums of more than 25 bits with a scale below 2^-16 nor scales of 64
and more. Such channels become a separate ConvInteger or MatMulInteger, then DequantizeLinear and
QuantizeLinear with a scale of 1, which round twice in float32, as QLinearConv does; or Requantize,
if the node has an integer rounding. Concat and Gather restore the order of the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.graph.canonical.quantization import BYTE_TYPES
from amaranth_vta.sw.compiler.graph.channel_scales import channel_parameters
from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    MULTIPLIER_ATTRIBUTES,
    QUOTIENT,
    REQUANTIZE,
    ROUNDING,
    STEPS,
    TWICE,
    multipliers_of,
)
from amaranth_vta.sw.compiler.graph.integer_sums import range_of_sums, scale_of_results
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType
from amaranth_vta.sw.runtime.network.tile_layout import offset

# All channels with scales in this half-open range have parameters.
_LEAST, _END = 2.0**-16, te.SCALE_END
_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul"})


@dataclass(frozen=True)
class _Constants:
    """The constants of a product: its weights as (channels, terms), ``scale`` and ``bias`` as
    (channels,)."""

    weights: Array
    weight_zero: Array
    x_zero: Array
    y_zero: Array
    scale: Array
    bias: Array


def split_unscaled_channels(network: Network, node: Node) -> bool:
    """Compute channels of a QLinearConv or QLinearMatMul for which REQUANTIZE has no parameters as
    integer sums, scaled in float. Only an ungrouped QLinearConv is split; otherwise one such
    channel moves all of them."""
    if node.domain or node.operator not in _PRODUCTS:
        return False
    if node.attributes.get(ROUNDING) in (QUOTIENT, STEPS):
        return False
    found = _constants(network, node)
    if found is None:
        return False
    missing = _missing(found, node)
    shape = network.types[node.outputs[0]].shape
    if not missing or shape is None:
        return False
    convolves = node.operator == "QLinearConv"
    channels, axis = len(found.scale), 1 if convolves else len(shape) - 1
    whole = np.isin(np.arange(channels), missing)
    if not convolves or node.attributes.get("group", 1) != 1:
        whole[:] = True
    made = _Parts(network, node, found, axis)
    if whole.all():
        network.nodes.replace(node, made.in_float(np.arange(channels), node.outputs[0]))
        return True
    order = np.argsort(whole, kind="stable")
    rest, apart = order[: np.count_nonzero(~whole)], order[np.count_nonzero(~whole) :]
    results = [
        made.result(f"{node.name}_{what}", len(part))
        for what, part in (("scaled", rest), ("unscaled", apart))
    ]
    nodes = [made.scaled(rest, results[0]), *made.in_float(apart, results[1])]
    in_order = (order == np.arange(channels)).all()
    joined = node.outputs[0] if in_order else made.result(f"{node.name}_joined", channels)
    nodes.append(Node("Concat", f"{node.name}_joined", tuple(results), (joined,), {"axis": axis}))
    if not in_order:
        places = network.add_constant(f"{node.name}_places", np.argsort(order).astype(np.int64))
        attributes = {"axis": axis}
        nodes.append(
            Node("Gather", f"{node.name}_placed", (joined, places), node.outputs, attributes)
        )
    network.nodes.replace(node, nodes)
    return True


def _constants(network: Network, node: Node) -> _Constants | None:
    """The constants of ``node``; None if one is known only at run time, or if no ONNX operator
    computes the sums."""
    values = [network.constants.get(name) for name in node.inputs[1:8]]
    bias = network.constants.get(node.input(8))
    info = network.types[node.inputs[0]]
    if any(value is None for value in values) or (node.input(8) and bias is None):
        return None
    x_scale, x_zero, weights, w_scale, w_zero, y_scale, y_zero = (np.asarray(v) for v in values)
    if x_scale.size != 1 or y_scale.size != 1 or x_zero.size != 1 or y_zero.size != 1:
        return None
    if info.dtype not in BYTE_TYPES or np.unique(w_zero).size != 1:
        return None
    if node.operator == "QLinearMatMul":
        if weights.ndim != 2:
            return None
        weights = weights.T
    with np.errstate(over="ignore"):
        scale = scale_of_results(x_scale, w_scale, y_scale)
    channels = len(weights)
    if not channels or scale.size not in (1, channels) or not np.isfinite(scale).all():
        return None
    return _Constants(
        weights.reshape(channels, -1),
        w_zero.reshape(-1)[:1].reshape(()),
        x_zero.reshape(()),
        y_zero.reshape(()),
        np.broadcast_to(scale, channels),
        np.zeros(channels, np.int32)
        if bias is None
        else np.broadcast_to(bias.reshape(-1), channels),
    )


def _missing(product: _Constants, node: Node) -> list[int]:
    """The channels for which REQUANTIZE has no parameters."""
    scale = product.scale
    if scale.min() >= _LEAST and scale.max() < _END:
        return []
    limits = np.iinfo(product.x_zero.dtype)
    low, high = (int(end) - int(product.x_zero) for end in (limits.min, limits.max))
    weights = product.weights.astype(np.int64) - int(product.weight_zero)
    bias = product.bias.astype(np.int64)
    least, most = range_of_sums(weights, low, high, bias)
    bounds = (int(product.y_zero) - offset(product.y_zero.dtype), -128, 127)
    if ROUNDING in node.attributes:
        multipliers, shifts = (np.broadcast_to(item, bias.shape) for item in multipliers_of(node))
        twice = node.attributes[ROUNDING] == TWICE
        _, proved = te.parameters_as_tflite(
            bias, multipliers, shifts, bounds, least, most, twice=twice
        )
        return np.flatnonzero(~proved).tolist()
    return channel_parameters(bias, scale, bounds, least, most)[1]


@dataclass(frozen=True)
class _Parts:
    """Products of subsets of the channels of ``node``, which are along ``axis`` of its result."""

    network: Network
    node: Node
    constants: _Constants
    axis: int

    def result(self, name: str, channels: int, dtype: Any = None) -> str:
        """Add a tensor shaped like the result but with ``channels`` channels; returns its name."""
        info = self.network.types[self.node.outputs[0]]
        shape = list(info.shape or ())
        shape[self.axis] = channels
        made = self.network.unused_name(name)
        self.network.types[made] = TensorType(np.dtype(dtype or info.dtype), tuple(shape))
        return made

    def scaled(self, of: Array, result: str) -> Node:
        """The QLinearConv of the channels ``of``."""
        inputs = list(self.node.inputs)
        for at in (3, 4, 5, 8):
            value = self.network.constants.get(self.node.input(at))
            if value is not None and value.size > 1:
                inputs[at] = self.network.add_constant(f"{inputs[at]}_scaled", value[of])
        return replace(
            self.node, inputs=tuple(inputs), outputs=(result,), attributes=self._attributes(of)
        )

    def _attributes(self, of: Array) -> dict[str, Any]:
        """The attributes of the node, for the channels ``of``."""
        attributes = dict(self.node.attributes)
        for name in MULTIPLIER_ATTRIBUTES:
            if len(attributes.get(name, ())) > 1:
                attributes[name] = [attributes[name][channel] for channel in of]
        return attributes

    def in_float(self, of: Array, result: str) -> list[Node]:
        """The sums of the channels ``of``, scaled and quantized in float."""
        network, node, name = self.network, self.node, f"{self.node.name}_unscaled"
        convolves = node.operator == "QLinearConv"
        weights = network.constants[node.inputs[3]]
        weights = weights[of] if convolves else weights[:, of]
        wide = [1] * len(network.types[result].shape or ())
        wide[self.axis] = -1
        one = np.array(1, np.float32)
        constant = {
            what: network.add_constant(f"{name}_{what}", value)
            for what, value in (
                ("x_zero_point", self.constants.x_zero),
                ("weight", weights),
                ("weight_zero_point", self.constants.weight_zero),
                ("bias", self.constants.bias[of].reshape(wide).astype(np.int32)),
                ("scale", self.constants.scale[of]),
                ("one", one),
                ("zero_point", self.constants.y_zero),
            )
        }
        sums, biased, real = (
            self.result(f"{name}_{what}", len(of), dtype)
            for what, dtype in (("sums", np.int32), ("biased", np.int32), ("real", np.float32))
        )
        product = "ConvInteger" if convolves else "MatMulInteger"
        given = (node.inputs[0], *(constant[what] for what in ("weight", "x_zero_point")))
        inputs = (*given, constant["weight_zero_point"])
        attributes = self._attributes(of)
        rounding = {
            key: attributes.pop(key)
            for key in (ROUNDING, *MULTIPLIER_ATTRIBUTES)
            if key in attributes
        }
        channels = {"axis": self.axis}
        nodes = [
            Node(product, name, inputs, (sums,), attributes if convolves else {}),
            Node("Add", biased, (sums, constant["bias"]), (biased,)),
        ]
        if rounding:
            given = (biased, constant["zero_point"])
            rounding |= channels
            return [*nodes, Node(REQUANTIZE, real, given, (result,), rounding, DOMAIN)]
        nodes.append(Node("DequantizeLinear", real, (biased, constant["scale"]), (real,), channels))
        quantized = (real, constant["one"], constant["zero_point"])
        return [*nodes, Node("QuantizeLinear", f"{name}_quantized", quantized, (result,))]
