"""Parameters of QuantizeLinear and DequantizeLinear, and integer bounds of the clamps between
them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node

BYTE_TYPES = (np.dtype(np.int8), np.dtype(np.uint8))


@dataclass(frozen=True)
class QuantizationParameters:
    """Parameters of a QuantizeLinear or DequantizeLinear: float32 ``scale`` and ``zero`` point,
    each with one element, or one per channel along ``axis``."""

    scale: Array
    zero: Array
    axis: int

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == 1

    def same_as(self, other: QuantizationParameters) -> bool:
        return (
            self.per_tensor
            and other.per_tensor
            and self.scale.item() == other.scale.item()
            and self.zero.item() == other.zero.item()
            and self.zero.dtype == other.zero.dtype
        )

    def dequantize(self, values: Array) -> Array:
        """Dequantize integers to float32; per-channel parameters apply along ``axis``."""
        scale, zero = self.scale, self.zero
        if not self.per_tensor and values.ndim > 1:
            along = [1] * values.ndim
            along[self.axis] = -1
            scale, zero = scale.reshape(along), zero.reshape(along)
        return (values.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale

    def quantize(self, value: float) -> int:
        return int(self._steps(np.float32(value)))

    def quantize_all(self, values: Array) -> Array:
        """Quantize float32 values with one scale."""
        return np.asarray(self._steps(values)).astype(self.zero.dtype)

    def _steps(self, values: Array | np.float32) -> Array | np.float32:
        limits = np.iinfo(self.zero.dtype)
        steps = np.rint(values / np.float32(self.scale.item()))
        return np.clip(steps + int(self.zero.item()), limits.min, limits.max)


def parameters_of(
    network: Network, node: Node | None, operator: str
) -> QuantizationParameters | None:
    """The parameters of ``node``; None if it is not an ``operator``, or if its scale is not
    constant, float32, finite and positive (DequantizeLinear also allows 0), or if there are not as
    many zero points."""
    if node is None or node.operator != operator or node.domain:
        return None
    if node.attributes.get("block_size") or node.input(1) not in network.constants:
        return None
    scale = network.constants[node.input(1)]
    integer = node.outputs[0] if operator == "QuantizeLinear" else node.inputs[0]
    if integer not in network.types or scale.dtype != np.float32 or not np.isfinite(scale).all():
        return None
    least = 0 if operator == "DequantizeLinear" else np.finfo(np.float32).smallest_subnormal
    if scale.size and scale.min() < least:
        return None
    dtype = network.types[integer].dtype
    zero = np.zeros(scale.shape, dtype)
    if node.input(2):
        if node.input(2) not in network.constants:
            return None
        zero = network.constants[node.input(2)]
    if zero.size != scale.size:
        return None
    return QuantizationParameters(scale, zero, int(node.attributes.get("axis", 1)))


def is_clamp(network: Network, node: Node) -> bool:
    if node.domain or node.operator not in ("Relu", "Clip"):
        return False
    bounds = [network.constants.get(name) for name in node.inputs[1:] if name]
    # A NaN bound is left to the float operator, with ONNX Runtime's semantics.
    return all(
        bound is not None and bound.size == 1 and not np.isnan(bound).any() for bound in bounds
    )


def integer_limits(
    network: Network, clamps: list[Node], out: QuantizationParameters
) -> tuple[int, int]:
    """The range of the integers after ``clamps`` in float and quantization by ``out``."""
    limits = np.iinfo(out.zero.dtype)
    low, high = int(limits.min), int(limits.max)
    for node in clamps:
        floor = 0.0 if node.operator == "Relu" else _constant(network, node.input(1), -np.inf)
        ceiling = _constant(network, node.input(2), np.inf)
        # If the bounds of a Clip cross, the upper one wins, as in ONNX.
        low, high = (max(item, out.quantize(floor)) for item in (low, high))
        low, high = (min(item, out.quantize(ceiling)) for item in (low, high))
    return low, high


def _constant(network: Network, name: str, otherwise: float) -> float:
    return float(network.constants[name].item()) if name else otherwise


def quantized_after(
    network: Network, name: str
) -> tuple[list[Node], Node, QuantizationParameters] | None:
    """The clamps and the QuantizeLinear after ``name``, each the only reader of its input, and the
    parameters; None unless the chain quantizes to 8 bits with one scale."""
    clamps: list[Node] = []
    while (reader := network.only_reader(name)) is not None:
        out = parameters_of(network, reader, "QuantizeLinear")
        if out is not None and reader.inputs[0] == name:
            known = out.per_tensor and out.zero.dtype in BYTE_TYPES
            return (clamps, reader, out) if known else None
        if not is_clamp(network, reader) or reader.inputs[0] != name:
            return None
        clamps.append(reader)
        name = reader.outputs[0]
    return None


def clip_node(
    network: Network, name: str, data: str, output: str, low: int, high: int, dtype: np.dtype
) -> Node:
    """A Clip of integers of ``dtype``."""
    bounds = [
        network.add_constant(f"{name}_{what}", np.array(value, dtype))
        for what, value in (("low", low), ("high", high))
    ]
    return Node("Clip", name, (data, *bounds), (output,))


def clipped(
    network: Network, made: list[Node], out: QuantizationParameters, low: int, high: int
) -> list[Node]:
    """Insert a Clip after the integer operator in ``made``, or after the Where that ends it, unless
    the bounds are those of the type."""
    limits = np.iinfo(out.zero.dtype)
    if (low, high) == (limits.min, limits.max):
        return made
    last = made[-1].operator == "Where"
    anchors = (i for i, node in enumerate(made) if node.operator.startswith("QLinear"))
    position = len(made) - 1 if last else next(anchors)
    anchor = made[position]
    inner = network.unused_name(f"{anchor.outputs[0]}_unclipped")
    network.types[inner] = network.types[anchor.outputs[0]]
    clip = clip_node(
        network, f"{anchor.name}_clip", inner, anchor.outputs[0], low, high, out.zero.dtype
    )
    return [
        *made[:position],
        replace(anchor, outputs=(inner,)),
        clip,
        *made[position + 1 :],
    ]
