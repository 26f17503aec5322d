"""The canonical form of a quantized network: operators on integers wherever it says the same.

Files say with DequantizeLinear, a float operator and QuantizeLinear (QDQ) what one operator on
integers does. Here

- DequantizeLinear → Conv | Gemm | MatMul → [Relu | Clip] → QuantizeLinear becomes QLinearConv
  (Gemm and MatMul as a 1×1 convolution, other MatMul as QLinearMatMul), then Clip on integers,
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

from .integer_averages import fuse_average
from .integer_products import fuse_product
from .load_model import infer
from .network import Network, Node
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
        _cancel,
        fuse_product,
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
    if node.operator not in _MOVES or node.domain or len(node.outputs) != 1:
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
    if parameters is None or move is None or move.operator not in _MOVES or move.domain:
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
