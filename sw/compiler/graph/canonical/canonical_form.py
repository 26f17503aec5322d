"""The canonical form of a quantized network: operators on integers wherever it says the same.

Files say with DequantizeLinear, a float operator and QuantizeLinear (QDQ) what one operator on
integers does. Here

- DequantizeLinear → Conv | Gemm | MatMul → [Relu | Clip] → QuantizeLinear becomes QLinearConv
  (Gemm and MatMul as a 1×1 convolution, other MatMul as QLinearMatMul), then Clip on integers,
- QLinearConv and QLinearMatMul of uint8 have weights of uint8,
- DequantizeLinear → AveragePool | GlobalAveragePool | ReduceMean → [Relu | Clip] → QuantizeLinear
  becomes QLinearConv with weights of one, then Clip,
- operators that only move or choose elements move or choose integers instead,
- QuantizeLinear of what DequantizeLinear with the same parameters gives is nothing.

This form, run by ONNX Runtime without its optimizations, is what a result is compared with; what
is in no such form is left as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from amaranth_vta.sw.compiler.graph.load.onnx_model import infer
from amaranth_vta.sw.compiler.graph.network import Network, Node

from .integer_averages import fuse_average
from .integer_products import fuse_product, match_weights
from .quantization import INT8, clip_node, integer_limits, is_clamp, only_reader, parameters_of

# They commute with (de)quantization, which is monotone and the same for every element.
_MOVES = frozenset(
    {"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def canonical(network: Network) -> Network:
    """The canonical form of ``network``, which is left as it is."""
    work = replace(network, nodes=list(network.nodes), constants=dict(network.constants))
    work.types = dict(network.types)
    rules: list[Callable[[Network, Node], bool]] = [
        _sink_dequantize,
        _hoist_quantize,
        _hoist_over_concatenation,
        _hoist_over_padding,
        _cancel,
        fuse_product,
        match_weights,
        fuse_average,
        _clamp_integers,
    ]
    while any(_applied(rule, work) for rule in rules):
        work.drop_unused()
    work.sort()
    return infer(work)


def _applied(rule: Callable[[Network, Node], bool], network: Network) -> bool:
    # A rule changes the list of nodes: start again after each success.
    return any(rule(network, node) for node in list(network.nodes))


def _sink_dequantize(network: Network, node: Node) -> bool:
    """DequantizeLinear → move becomes move → DequantizeLinear."""
    if not _is_move(node) or len(node.outputs) != 1:
        return False
    dequantize = network.producers().get(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    if parameters.zero.dtype not in INT8:
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
    parameters = parameters_of(network, node, "QuantizeLinear")
    move = network.producers().get(node.inputs[0]) if parameters else None
    if parameters is None or move is None or not _is_move(move):
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in INT8:
        return False
    if len(move.outputs) != 1 or not only_reader(network, move.outputs[0]):
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


def _hoist_over_concatenation(network: Network, node: Node) -> bool:
    """Concat → QuantizeLinear becomes QuantizeLinear of each operand → Concat."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    concat = network.producers().get(node.inputs[0]) if parameters else None
    if parameters is None or concat is None or concat.operator != "Concat" or concat.domain:
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in INT8:
        return False
    if not only_reader(network, concat.outputs[0]):
        return False
    operands = []
    for number, name in enumerate(concat.inputs):
        operands.append(network.unused_name(f"{node.name}_{number}_integer"))
        network.types[operands[-1]] = replace(network.types[name], dtype=parameters.zero.dtype)
    network.nodes[network.nodes.index(node)] = replace(
        concat, inputs=tuple(operands), outputs=node.outputs
    )
    position = network.nodes.index(concat)
    network.nodes[position : position + 1] = [
        replace(node, name=operand, inputs=(name, *node.inputs[1:]), outputs=(operand,))
        for name, operand in zip(concat.inputs, operands, strict=True)
    ]
    return True


def _hoist_over_padding(network: Network, node: Node) -> bool:
    """Pad with a constant → QuantizeLinear becomes QuantizeLinear → Pad."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    pad = network.producers().get(node.inputs[0]) if parameters else None
    if parameters is None or pad is None or pad.operator != "Pad" or pad.domain:
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in INT8:
        return False
    if pad.attributes.get("mode", "constant") != "constant" or pad.input(3):
        return False
    if not only_reader(network, pad.outputs[0]):
        return False
    value = 0.0
    if pad.input(2):
        if pad.input(2) not in network.constants:
            return False
        value = network.constants[pad.input(2)].item()
    held = np.array(parameters.quantize(value), parameters.zero.dtype)
    quantized = network.unused_name(f"{pad.inputs[0]}_integer")
    network.types[quantized] = replace(network.types[pad.inputs[0]], dtype=parameters.zero.dtype)
    constant = network.add_constant(f"{pad.name}_value", held)
    network.nodes[network.nodes.index(node)] = replace(
        pad, inputs=(quantized, pad.inputs[1], constant), outputs=node.outputs
    )
    network.nodes[network.nodes.index(pad)] = replace(
        node, inputs=(pad.inputs[0], *node.inputs[1:]), outputs=(quantized,)
    )
    return True


def _is_move(node: Node) -> bool:
    if node.operator == "Resize" and not node.domain:
        crop = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return node.attributes.get("mode", "nearest") == "nearest" and not crop
    return node.operator in _MOVES and not node.domain


def _cancel(network: Network, node: Node) -> bool:
    """DequantizeLinear → QuantizeLinear with the same parameters becomes nothing."""
    after = parameters_of(network, node, "QuantizeLinear")
    dequantize = network.producers().get(node.inputs[0]) if after else None
    before = parameters_of(network, dequantize, "DequantizeLinear")
    if after is None or before is None or dequantize is None or not after.same_as(before):
        return False
    if node.outputs[0] in network.outputs:
        return False
    network.nodes.remove(node)
    network.rename(node.outputs[0], dequantize.inputs[0])
    return True


def _clamp_integers(network: Network, node: Node) -> bool:
    """DequantizeLinear → Relu | Clip → QuantizeLinear of the same parameters becomes Clip."""
    if not is_clamp(network, node) or not only_reader(network, node.outputs[0]):
        return False
    dequantize = network.producers().get(node.inputs[0])
    (quantize,) = network.consumers()[node.outputs[0]]
    before = parameters_of(network, dequantize, "DequantizeLinear")
    after = parameters_of(network, quantize, "QuantizeLinear")
    if before is None or after is None or dequantize is None or not before.same_as(after):
        return False
    low, high = integer_limits(network, [node], after)
    position = network.nodes.index(node)
    network.nodes[position] = clip_node(
        network, node.name, dequantize.inputs[0], quantize.outputs[0], low, high, after.zero.dtype
    )
    network.nodes.remove(quantize)
    return True
