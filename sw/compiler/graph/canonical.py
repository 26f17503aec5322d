"""The canonical form of a quantized network: operators on integers wherever it says the same.

Files say with DequantizeLinear, a float operator and QuantizeLinear (QDQ) what one operator on
integers does. Here

- DequantizeLinear → Conv | Gemm | MatMul → [Relu | Clip] → QuantizeLinear becomes QLinearConv
  (Gemm and MatMul as a 1×1 convolution, other MatMul as QLinearMatMul), then Clip on integers,
- operators that only move or choose elements move or choose integers instead,
- QuantizeLinear of what DequantizeLinear with the same parameters gives is nothing.

This form, run by ONNX Runtime without its optimizations, is what a result is compared with; what
is in no such form is left as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from .load_model import infer
from .network import Array, Network, Node

# They commute with (de)quantization, which is monotone and the same for every element.
_MOVES = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
_INT8 = (np.dtype(np.int8), np.dtype(np.uint8))


def canonical(network: Network) -> Network:
    """The canonical form of ``network``, which is left as it is."""
    work = replace(network, nodes=list(network.nodes), constants=dict(network.constants))
    work.types = dict(network.types)
    rules: list[Callable[[Network, Node], bool]] = [
        _sink_dequantize,
        _hoist_quantize,
        _cancel,
        _fuse_anchor,
        _clamp_integers,
    ]
    while any(_applied(rule, work) for rule in rules):
        work.drop_unused()
    work.sort()
    return infer(work)


def _applied(rule: Callable[[Network, Node], bool], network: Network) -> bool:
    # A rule changes the list of nodes: start again after each success.
    return any(rule(network, node) for node in list(network.nodes))


@dataclass(frozen=True)
class _Parameters:
    """What a QuantizeLinear or DequantizeLinear does; scale float32 and zero point, of one
    element or of one a channel along ``axis``."""

    scale: Array
    zero: Array
    axis: int

    @property
    def per_tensor(self) -> bool:
        return self.scale.size == 1

    def same_as(self, other: _Parameters) -> bool:
        return (
            self.per_tensor
            and other.per_tensor
            and self.scale.item() == other.scale.item()
            and self.zero.item() == other.zero.item()
            and self.zero.dtype == other.zero.dtype
        )

    def quantize(self, value: float) -> int:
        limits = np.iinfo(self.zero.dtype)
        steps = np.rint(np.float32(value) / np.float32(self.scale.item()))
        return int(np.clip(steps + int(self.zero.item()), limits.min, limits.max))


def _parameters(network: Network, node: Node | None, operator: str) -> _Parameters | None:
    """Those of ``node`` if it is the ``operator`` asked for and they are constant float32."""
    if node is None or node.operator != operator or node.domain:
        return None
    if node.attributes.get("block_size") or node.input(1) not in network.constants:
        return None
    scale = network.constants[node.input(1)]
    integer = node.outputs[0] if operator == "QuantizeLinear" else node.inputs[0]
    if integer not in network.types or scale.dtype != np.float32:
        return None
    dtype = network.types[integer].dtype
    zero = np.zeros(scale.shape, dtype)
    if node.input(2):
        if node.input(2) not in network.constants:
            return None
        zero = network.constants[node.input(2)]
    return _Parameters(scale, zero, int(node.attributes.get("axis", 1)))


def _sink_dequantize(network: Network, node: Node) -> bool:
    """DequantizeLinear → move becomes move → DequantizeLinear."""
    if node.operator not in _MOVES or node.domain or len(node.outputs) != 1:
        return False
    dequantize = network.producers().get(node.inputs[0])
    parameters = _parameters(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    if parameters.zero.dtype not in _INT8:
        return False
    moved = network.unused_name(f"{node.outputs[0]}_integer")
    network.types[moved] = replace(network.types[node.outputs[0]], dtype=parameters.zero.dtype)
    position = network.nodes.index(node)
    network.nodes[position : position + 1] = [
        replace(node, inputs=(dequantize.inputs[0], *node.inputs[1:]), outputs=(moved,)),
        replace(
            dequantize,
            name=f"{node.name}_dequantize",
            inputs=(moved, *dequantize.inputs[1:]),
            outputs=node.outputs,
        ),
    ]
    return True


def _hoist_quantize(network: Network, node: Node) -> bool:
    """Move → QuantizeLinear becomes QuantizeLinear → move."""
    parameters = _parameters(network, node, "QuantizeLinear")
    move = network.producers().get(node.inputs[0]) if parameters else None
    if parameters is None or move is None or move.operator not in _MOVES or move.domain:
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in _INT8:
        return False
    if len(move.outputs) != 1 or not _only_reader(network, move.outputs[0]):
        return False
    quantized = network.unused_name(f"{move.inputs[0]}_integer")
    network.types[quantized] = replace(network.types[move.inputs[0]], dtype=parameters.zero.dtype)
    network.nodes[network.nodes.index(node)] = replace(
        move, inputs=(quantized, *move.inputs[1:]), outputs=node.outputs
    )
    network.nodes[network.nodes.index(move)] = replace(
        node, inputs=(move.inputs[0], *node.inputs[1:]), outputs=(quantized,)
    )
    return True


def _cancel(network: Network, node: Node) -> bool:
    """DequantizeLinear → QuantizeLinear with the same parameters becomes nothing."""
    after = _parameters(network, node, "QuantizeLinear")
    dequantize = network.producers().get(node.inputs[0]) if after else None
    before = _parameters(network, dequantize, "DequantizeLinear")
    if after is None or before is None or dequantize is None or not after.same_as(before):
        return False
    if node.outputs[0] in network.outputs:
        return False
    network.nodes.remove(node)
    network.rename(node.outputs[0], dequantize.inputs[0])
    return True


def _clamp_integers(network: Network, node: Node) -> bool:
    """DequantizeLinear → Relu | Clip → QuantizeLinear of the same parameters becomes Clip."""
    if not _is_clamp(network, node) or not _only_reader(network, node.outputs[0]):
        return False
    dequantize = network.producers().get(node.inputs[0])
    (quantize,) = network.consumers()[node.outputs[0]]
    before = _parameters(network, dequantize, "DequantizeLinear")
    after = _parameters(network, quantize, "QuantizeLinear")
    if before is None or after is None or dequantize is None or not before.same_as(after):
        return False
    low, high = _limits(network, [node], after)
    position = network.nodes.index(node)
    network.nodes[position] = _clip(
        network, node.name, dequantize.inputs[0], quantize.outputs[0], low, high, after.zero.dtype
    )
    network.nodes.remove(quantize)
    return True


@dataclass(frozen=True)
class _Anchor:
    """A float Conv, Gemm or MatMul with what is around it, all of which becomes integers."""

    node: Node
    data: Node  # DequantizeLinear
    weight: Node  # DequantizeLinear
    bias: str  # a constant or the output of a DequantizeLinear; empty if there is none
    clamps: list[Node]
    quantize: Node
    absorbed: list[Node]  # what `quantize` ends and `node` begins


def _fuse_anchor(network: Network, node: Node) -> bool:
    anchor = _anchor(network, node)
    if anchor is None:
        return False
    made = _integer_nodes(network, anchor)
    if made is None:
        return False
    position = network.nodes.index(anchor.quantize)
    network.nodes[position : position + 1] = made
    gone = {id(item) for item in anchor.absorbed}
    network.nodes = [item for item in network.nodes if id(item) not in gone]
    return True


def _anchor(network: Network, node: Node) -> _Anchor | None:
    if node.operator not in ("Conv", "Gemm", "MatMul") or node.domain:
        return None
    producers = network.producers()
    data, weight = (producers.get(node.input(index)) for index in (0, 1))
    if data is None or weight is None:
        return None
    absorbed, bias, last = [node], node.input(2), node
    clamps: list[Node] = []
    while _only_reader(network, last.outputs[0]):
        (reader,) = network.consumers()[last.outputs[0]]
        if reader.operator == "QuantizeLinear" and reader.inputs[0] == last.outputs[0]:
            return _Anchor(node, data, weight, bias, clamps, reader, absorbed)
        if reader.operator == "Add" and node.operator == "MatMul" and last is node:
            bias = next(name for name in reader.inputs if name != last.outputs[0])
        elif _is_clamp(network, reader):
            clamps.append(reader)
        else:
            return None
        absorbed.append(reader)
        last = reader
    return None


def _integer_nodes(network: Network, anchor: _Anchor) -> list[Node] | None:
    node, quantize = anchor.node, anchor.quantize
    data = _parameters(network, anchor.data, "DequantizeLinear")
    weight = _parameters(network, anchor.weight, "DequantizeLinear")
    out = _parameters(network, quantize, "QuantizeLinear")
    if data is None or weight is None or out is None:
        return None
    if not data.per_tensor or not out.per_tensor:
        return None
    if data.zero.dtype not in _INT8 or out.zero.dtype != data.zero.dtype:
        return None
    if weight.zero.dtype not in _INT8:
        return None
    source = anchor.data.inputs[0]
    low, high = _limits(network, anchor.clamps, out)
    data_shape = network.types[source].shape
    values = network.constants.get(anchor.weight.inputs[0])
    if data_shape is None:
        return None
    if values is None or (node.operator == "MatMul" and not len(data_shape) == values.ndim == 2):
        return _matrix_product(network, anchor, data, weight, out, (low, high))
    if node.operator != "Conv" and (
        len(data_shape) != 2
        or node.attributes.get("transA", 0)
        or node.attributes.get("alpha", 1.0) != 1.0
        or node.attributes.get("beta", 1.0) != 1.0
    ):
        return None
    if node.operator == "Conv" and len(data_shape) != 4:
        return None
    # Weights (output channels, …), with the axis of their scales moved likewise.
    axis = weight.axis % values.ndim
    if node.operator == "MatMul" or (node.operator == "Gemm" and not node.attributes.get("transB")):
        values, axis = values.T, 1 - axis
    if not weight.per_tensor and axis != 0:
        return None
    bias = _integer_bias(network, anchor.bias, data, weight, len(values))
    if bias is None:
        return None
    kernel = values.reshape(*values.shape, 1, 1) if values.ndim == 2 else values
    kernel, zero = _like_data(kernel, weight.zero, data.zero.dtype)
    attributes = dict(node.attributes) if node.operator == "Conv" else {"kernel_shape": [1, 1]}
    name = node.name
    inputs = (
        *(source, *anchor.data.inputs[1:2]),
        network.add_constant(f"{name}_x_zero_point", data.zero.reshape(())),
        network.add_constant(f"{name}_weight", kernel),
        network.add_constant(f"{name}_weight_scale", _vector(weight.scale)),
        network.add_constant(f"{name}_weight_zero_point", _vector(zero)),
        quantize.inputs[1],
        network.add_constant(f"{name}_y_zero_point", out.zero.reshape(())),
        *([network.add_constant(f"{name}_bias", bias)] if anchor.bias else []),
    )
    if node.operator == "Conv":
        made = [Node("QLinearConv", name, inputs, quantize.outputs, attributes)]
        return _clamped(network, made, out, low, high)
    return _clamped(
        network,
        _between_reshapes(network, name, inputs, quantize.outputs[0], data_shape[0], attributes),
        out,
        low,
        high,
    )


def _between_reshapes(
    network: Network,
    name: str,
    inputs: tuple[str, ...],
    output: str,
    rows: int,
    attributes: dict[str, list[int]],
) -> list[Node]:
    """A matrix product as a convolution of 1×1 images."""
    tall, flat = (network.unused_name(f"{name}_{what}") for what in ("images", "result"))
    columns = network.constants[inputs[3]].shape[1]
    shapes = [
        network.add_constant(f"{name}_{what}_shape", np.array(shape, np.int64))
        for what, shape in (
            ("images", (rows, columns, 1, 1)),
            ("result", (rows, network.constants[inputs[3]].shape[0])),
        )
    ]
    return [
        Node("Reshape", f"{name}_images", (inputs[0], shapes[0]), (tall,)),
        Node("QLinearConv", name, (tall, *inputs[1:]), (flat,), attributes),
        Node("Reshape", f"{name}_result", (flat, shapes[1]), (output,)),
    ]


def _matrix_product(
    network: Network,
    anchor: _Anchor,
    data: _Parameters,
    weight: _Parameters,
    out: _Parameters,
    limits: tuple[int, int],
) -> list[Node] | None:
    """QLinearMatMul, which has no bias."""
    if anchor.node.operator != "MatMul" or anchor.bias or not weight.per_tensor:
        return None
    if weight.zero.dtype != data.zero.dtype:
        return None
    name = anchor.node.name
    inputs = (
        *(anchor.data.inputs[0], anchor.data.inputs[1]),
        network.add_constant(f"{name}_a_zero_point", data.zero.reshape(())),
        *(anchor.weight.inputs[0], anchor.weight.inputs[1]),
        network.add_constant(f"{name}_b_zero_point", weight.zero.reshape(())),
        anchor.quantize.inputs[1],
        network.add_constant(f"{name}_y_zero_point", out.zero.reshape(())),
    )
    made = [Node("QLinearMatMul", name, inputs, anchor.quantize.outputs)]
    return _clamped(network, made, out, *limits)


def _clamped(
    network: Network, made: list[Node], out: _Parameters, low: int, high: int
) -> list[Node]:
    """``made``, with Clip behind its anchor if that does anything."""
    limits = np.iinfo(out.zero.dtype)
    if (low, high) == (limits.min, limits.max):
        return made
    position = next(i for i, node in enumerate(made) if node.operator.startswith("QLinear"))
    anchor = made[position]
    inner = network.unused_name(f"{anchor.outputs[0]}_unclipped")
    clip = _clip(
        network, f"{anchor.name}_clip", inner, anchor.outputs[0], low, high, out.zero.dtype
    )
    return [
        *made[:position],
        replace(anchor, outputs=(inner,)),
        clip,
        *made[position + 1 :],
    ]


def _clip(
    network: Network, name: str, data: str, output: str, low: int, high: int, dtype: np.dtype
) -> Node:
    bounds = [
        network.add_constant(f"{name}_{what}", np.array(value, dtype))
        for what, value in (("low", low), ("high", high))
    ]
    return Node("Clip", name, (data, *bounds), (output,))


def _is_clamp(network: Network, node: Node) -> bool:
    if node.domain or node.operator not in ("Relu", "Clip"):
        return False
    return all(name in network.constants for name in node.inputs[1:] if name)


def _limits(network: Network, clamps: list[Node], out: _Parameters) -> tuple[int, int]:
    """The integers between which clamping in float and then quantizing leaves a value."""
    limits = np.iinfo(out.zero.dtype)
    low, high = int(limits.min), int(limits.max)
    for node in clamps:
        floor = 0.0 if node.operator == "Relu" else _constant(network, node.input(1), -np.inf)
        ceiling = _constant(network, node.input(2), np.inf)
        # As Clip does it where its bounds cross: the upper one wins.
        low, high = (max(item, out.quantize(floor)) for item in (low, high))
        low, high = (min(item, out.quantize(ceiling)) for item in (low, high))
    return low, high


def _constant(network: Network, name: str, otherwise: float) -> float:
    return float(network.constants[name].item()) if name else otherwise


def _integer_bias(
    network: Network, name: str, data: _Parameters, weight: _Parameters, channels: int
) -> Array | None:
    """Bias as int32 multiples of data scale × weight scale; None if it is not one."""
    if not name:
        return np.zeros(channels, np.int32)
    scale = (np.float32(data.scale.item()) * weight.scale).reshape(-1)
    node = network.producers().get(name)
    if node is not None:
        parameters = _parameters(network, node, "DequantizeLinear")
        values = network.constants.get(node.inputs[0])
        if parameters is None or values is None or parameters.zero.any():
            return None
        if values.dtype != np.int32 or not np.all(parameters.scale.reshape(-1) == scale):
            return None
    elif name in network.constants:
        rounded = np.rint(network.constants[name].astype(np.float32) / scale)
        limits = np.iinfo(np.int32)
        values = np.clip(rounded.astype(np.float64), limits.min, limits.max).astype(np.int32)
    else:
        return None
    if values.size != channels or max(values.shape, default=1) != values.size:
        return None
    return values.reshape(channels)


def _like_data(weight: Array, zero: Array, dtype: np.dtype) -> tuple[Array, Array]:
    """Weights and zero point in the type of the data, which says the same: both are moved."""
    if weight.dtype == dtype:
        return weight, zero
    offset = 128 if dtype == np.uint8 else -128
    moved = [(item.astype(np.int16) + offset).astype(dtype) for item in (weight, zero)]
    return moved[0], moved[1]


def _vector(value: Array) -> Array:
    return value.reshape(()) if value.size == 1 else value.reshape(-1)


def _only_reader(network: Network, name: str) -> bool:
    return name not in network.outputs and len(network.consumers().get(name, [])) == 1
