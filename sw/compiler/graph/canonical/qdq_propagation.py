"""Canonicalization rules for operators that only move or choose elements.

They commute with quantization, which is monotone and the same for every element, so they move from
float tensors to the integers before or after them.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

from .quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    clip_node,
    integer_limits,
    is_clamp,
    parameters_of,
    quantized_after,
)

_MOVES = frozenset(
    {"DepthToSpace", "Expand", "Flatten", "Identity", "MaxPool", "Reshape", "SpaceToDepth"}
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
# Operators that drop elements: QuantizeLinear takes longer before them than after them.
CHOICES = frozenset({"Gather", "Slice"})

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def pad_all_axes(network: Network, node: Node) -> bool:
    """Replace Pad of some axes by Pad of all axes, with amounts of 0 for the others."""
    if node.domain or node.operator != "Pad" or not node.input(3):
        return False
    pads, axes = (network.constants.get(node.inputs[at]) for at in (1, 3))
    shape = network.types[node.inputs[0]].shape
    if pads is None or axes is None or shape is None or pads.size != 2 * axes.size:
        return False
    whole = np.zeros((2, len(shape)), np.int64)
    whole[:, axes.reshape(-1)] = pads.reshape(2, -1)
    name = network.add_constant(f"{node.name}_pads", whole.reshape(-1))
    network.nodes.replace(node, [replace(node, inputs=(node.inputs[0], name, *node.inputs[2:3]))])
    return True


def sink_dequantize(network: Network, node: Node) -> bool:
    """DequantizeLinear → move becomes move → DequantizeLinear."""
    chosen = node.operator in CHOICES and not node.domain
    if not (chosen or is_move(node)) or len(node.outputs) != 1:
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    if parameters.zero.dtype not in BYTE_TYPES:
        return False
    moved = network.unused_name(f"{node.outputs[0]}_integer")
    network.types[moved] = replace(network.types[node.outputs[0]], dtype=parameters.zero.dtype)
    network.nodes.replace(
        node,
        [
            replace(node, inputs=(dequantize.inputs[0], *node.inputs[1:]), outputs=(moved,)),
            replace(
                dequantize,
                name=f"{node.name}_dequantize",
                inputs=(moved, *dequantize.inputs[1:]),
                outputs=node.outputs,
            ),
        ],
    )
    return True


def hoist_quantize(network: Network, node: Node) -> bool:
    """Move → QuantizeLinear becomes QuantizeLinear → move."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    move = network.maker(node.inputs[0]) if parameters else None
    if parameters is None or move is None or not is_move(move):
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return False
    if len(move.outputs) != 1 or network.only_reader(move.outputs[0]) is None:
        return False
    quantized = network.unused_name(f"{move.inputs[0]}_integer")
    network.types[quantized] = replace(network.types[move.inputs[0]], dtype=parameters.zero.dtype)
    network.nodes.replace(
        node, [replace(move, inputs=(quantized, *move.inputs[1:]), outputs=node.outputs)]
    )
    network.nodes.replace(
        move, [replace(node, inputs=(move.inputs[0], *node.inputs[1:]), outputs=(quantized,))]
    )
    return True


def hoist_requantize(network: Network, node: Node) -> bool:
    """Move that repeats elements → DequantizeLinear → QuantizeLinear becomes DequantizeLinear →
    QuantizeLinear → move: fewer elements are rescaled."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    dequantize = network.maker(node.inputs[0]) if parameters else None
    given = parameters_of(network, dequantize, "DequantizeLinear")
    if parameters is None or dequantize is None or given is None:
        return False
    if not (parameters.per_tensor and given.per_tensor):
        return False
    if not {parameters.zero.dtype, given.zero.dtype} <= {*BYTE_TYPES}:
        return False
    name = dequantize.inputs[0]
    move = network.maker(name)
    if move is None or not is_move(move) or not _repeats(network, move):
        return False
    if network.only_reader(name) is None or network.only_reader(node.inputs[0]) is None:
        return False
    source = move.inputs[0]
    moved, rescaled = (network.unused_name(f"{name}_{what}") for what in ("moved", "rescaled"))
    info = network.types[source]
    network.types[moved] = replace(info, dtype=network.types[node.inputs[0]].dtype)
    network.types[rescaled] = replace(info, dtype=parameters.zero.dtype)
    before = [
        replace(dequantize, inputs=(source, *dequantize.inputs[1:]), outputs=(moved,)),
        replace(node, inputs=(moved, *node.inputs[1:]), outputs=(rescaled,)),
    ]
    network.nodes.remove(dequantize)
    network.nodes.replace(
        node, [replace(move, inputs=(rescaled, *move.inputs[1:]), outputs=node.outputs)]
    )
    network.nodes.replace(move, before)
    return True


def _repeats(network: Network, move: Node) -> bool:
    """Whether a move has more results than operands."""
    shapes = [network.types[name].shape for name in (move.inputs[0], move.outputs[0])]
    counts = [prod(shape) for shape in shapes if shape is not None]
    return len(counts) == 2 and len(move.outputs) == 1 and counts[0] < counts[1]


def hoist_clamp(network: Network, node: Node) -> bool:
    """Hoist Relu or Clip over a move if it is on integers (except over MaxPool, which leaves fewer
    elements to clamp) or if its result is quantized."""
    move = network.maker(node.inputs[0]) if is_clamp(network, node) else None
    if move is None or not is_move(move) or len(move.outputs) != 1:
        return False
    name = move.outputs[0]
    if network.only_reader(name) is not node:
        return False
    of_bytes = network.types[name].dtype in BYTE_TYPES and move.operator != "MaxPool"
    if not of_bytes and quantized_after(network, name) is None:
        return False
    clamped = network.unused_name(f"{move.inputs[0]}_clamped")
    network.types[clamped] = network.types[move.inputs[0]]
    network.nodes.replace(
        node, [replace(move, inputs=(clamped, *move.inputs[1:]), outputs=node.outputs)]
    )
    network.nodes.replace(
        move, [replace(node, inputs=(move.inputs[0], *node.inputs[1:]), outputs=(clamped,))]
    )
    return True


def hoist_over_concatenation(network: Network, node: Node) -> bool:
    """Concat → QuantizeLinear becomes QuantizeLinear of each operand → Concat."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    concat = network.maker(node.inputs[0]) if parameters else None
    if parameters is None or concat is None or concat.operator != "Concat" or concat.domain:
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return False
    if network.only_reader(concat.outputs[0]) is None:
        return False
    operands = []
    for number, name in enumerate(concat.inputs):
        operands.append(network.unused_name(f"{node.name}_{number}_integer"))
        network.types[operands[-1]] = replace(network.types[name], dtype=parameters.zero.dtype)
    network.nodes.replace(node, [replace(concat, inputs=tuple(operands), outputs=node.outputs)])
    network.nodes.replace(
        concat,
        [
            replace(node, name=operand, inputs=(name, *node.inputs[1:]), outputs=(operand,))
            for name, operand in zip(concat.inputs, operands, strict=True)
        ],
    )
    return True


def hoist_over_padding(network: Network, node: Node) -> bool:
    """Pad with a constant → QuantizeLinear becomes QuantizeLinear → Pad."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    padded = _padded_with(network, node.inputs[0]) if parameters else None
    if parameters is None or padded is None:
        return False
    if not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return False
    pad, value = padded
    held = np.array(parameters.quantize(value), parameters.zero.dtype)
    quantized = network.unused_name(f"{pad.inputs[0]}_integer")
    network.types[quantized] = replace(network.types[pad.inputs[0]], dtype=parameters.zero.dtype)
    constant = network.add_constant(f"{pad.name}_value", held)
    network.nodes.replace(
        node, [replace(pad, inputs=(quantized, pad.inputs[1], constant), outputs=node.outputs)]
    )
    network.nodes.replace(
        pad, [replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), outputs=(quantized,))]
    )
    return True


def sink_dequantize_of_parts(network: Network, node: Node) -> bool:
    """DequantizeLinear of each operand with equal parameters → Concat becomes Concat →
    DequantizeLinear, unless a QuantizeLinear reads the result."""
    if node.operator != "Concat" or node.domain or not _read_as_it_is(network, node):
        return False
    makers = [network.maker(name) for name in node.inputs]
    found = [parameters_of(network, maker, "DequantizeLinear") for maker in makers]
    first, dequantize = found[0], makers[0]
    if first is None or dequantize is None or first.zero.dtype not in BYTE_TYPES:
        return False
    if any(other is None or not other.same_as(first) for other in found):
        return False
    operands = tuple(maker.inputs[0] for maker in makers if maker is not None)
    _behind(network, node, replace(node, inputs=operands), dequantize)
    return True


def sink_dequantize_of_padded(network: Network, node: Node) -> bool:
    """DequantizeLinear → Pad with a constant that is exact as an integer becomes Pad →
    DequantizeLinear, unless a QuantizeLinear reads the result."""
    if node.operator != "Pad" or node.domain or not _read_as_it_is(network, node):
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    value = _padding_value(network, node) if len(node.inputs) > 1 else None
    if dequantize is None or parameters is None or value is None or not parameters.per_tensor:
        return False
    if parameters.zero.dtype not in BYTE_TYPES:
        return False
    if not _is_held(value, parameters):
        return False
    held = np.array(parameters.quantize(value), parameters.zero.dtype)
    constant = network.add_constant(f"{node.name}_value", held)
    given = (dequantize.inputs[0], node.inputs[1], constant, *node.inputs[3:])
    _behind(network, node, replace(node, inputs=given), dequantize)
    return True


def sink_dequantize_of_clamp(network: Network, node: Node) -> bool:
    """DequantizeLinear → Relu | Clip with bounds that are exact as integers becomes Clip of
    integers → DequantizeLinear, if a product or a move, and no QuantizeLinear, reads the result."""
    if not is_clamp(network, node) or not _read_as_it_is(network, node):
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    readers = network.nodes.readers(node.outputs[0])
    if not any(item.operator in _PRODUCTS or is_move(item) for item in readers):
        return False
    dtype = parameters.zero.dtype
    bounds = [network.constants[name].item() for name in node.inputs[1:] if name]
    if dtype not in BYTE_TYPES or not all(_is_held(bound, parameters) for bound in bounds):
        return False
    low, high = integer_limits(network, [node], parameters)
    data, result = dequantize.inputs[0], node.outputs[0]
    clip = clip_node(network, node.name, data, result, low, high, dtype)
    _behind(network, node, clip, dequantize)
    return True


def hoist_over_extremes(network: Network, node: Node) -> bool:
    """Max | Min of tensors of one shape → QuantizeLinear becomes QuantizeLinear of each, then Max |
    Min of two integer tensors at a time: quantization is monotone."""
    parameters = parameters_of(network, node, "QuantizeLinear")
    extreme = network.maker(node.inputs[0]) if parameters else None
    if parameters is None or extreme is None or extreme.operator not in ("Max", "Min"):
        return False
    if extreme.domain or not parameters.per_tensor or parameters.zero.dtype not in BYTE_TYPES:
        return False
    names = list(dict.fromkeys(extreme.inputs))
    shapes = {network.types[name].shape for name in (*names, extreme.outputs[0])}
    if len(names) < 2 or len(shapes) != 1 or None in shapes:
        return False
    if network.only_reader(extreme.outputs[0]) is None or network.constants.keys() & {*names}:
        return False
    made, operands = [], []
    info = replace(network.types[names[0]], dtype=parameters.zero.dtype)
    for number, name in enumerate(names):
        operands.append(network.unused_name(f"{node.name}_{number}_integer"))
        network.types[operands[-1]] = info
        given = (name, *node.inputs[1:])
        made.append(replace(node, name=operands[-1], inputs=given, outputs=(operands[-1],)))
    last = operands[0]
    for number, operand in enumerate(operands[1:], 1):
        result = node.outputs[0]
        if number < len(names) - 1:
            result = network.unused_name(f"{extreme.name}_{number}_integer")
            network.types[result] = info
        name = extreme.name if number == 1 else f"{extreme.name}_{number}"
        made.append(Node(extreme.operator, name, (last, operand), (result,)))
        last = result
    network.nodes.remove(extreme)
    network.nodes.replace(node, made)
    return True


def _is_held(value: float, parameters: QuantizationParameters) -> bool:
    """Whether ``value`` can be quantized with these ``parameters`` without rounding."""
    if not parameters.scale.item() or not np.isfinite(value):
        return False
    held = np.array(parameters.quantize(value), parameters.zero.dtype)
    return bool(parameters.dequantize(held).item() == value)


def _read_as_it_is(network: Network, node: Node) -> bool:
    """Whether the result of ``node`` has readers, none of which is a QuantizeLinear."""
    readers = network.nodes.readers(node.outputs[0])
    return bool(readers) and all(item.operator != "QuantizeLinear" for item in readers)


def _behind(network: Network, node: Node, moved: Node, dequantize: Node) -> None:
    """Replace ``node`` by ``moved``, which is on integers, followed by ``dequantize``."""
    name = network.unused_name(f"{node.outputs[0]}_integer")
    source = network.types[dequantize.inputs[0]]
    network.types[name] = replace(network.types[node.outputs[0]], dtype=source.dtype)
    given = (name, *dequantize.inputs[1:])
    network.nodes.replace(
        node,
        [
            replace(moved, outputs=(name,)),
            replace(dequantize, name=f"{node.name}_dequantize", inputs=given, outputs=node.outputs),
        ],
    )


def fold_padding(network: Network, node: Node) -> bool:
    """Fold Pad of rows and columns with the zero point into the pads of the QLinearConv after
    it."""
    if node.domain or node.operator != "QLinearConv":
        return False
    padded = _padded_with(network, node.inputs[0])
    if padded is None or node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    pad, value = padded
    zero, amounts = (network.constants.get(name) for name in (node.inputs[2], pad.inputs[1]))
    if zero is None or amounts is None or value != zero.item():
        return False
    begins, ends = np.split(amounts, 2)
    if amounts.min() < 0 or begins[:2].any() or ends[:2].any():
        return False
    added = [*begins[2:].tolist(), *ends[2:].tolist()]
    own = node.attributes.get("pads", [0] * len(added))
    attributes = {key: item for key, item in node.attributes.items() if key != "auto_pad"}
    attributes["pads"] = [one + other for one, other in zip(own, added, strict=True)]
    inputs = (pad.inputs[0], *node.inputs[1:])
    network.nodes.replace(node, [replace(node, inputs=inputs, attributes=attributes)])
    network.nodes.remove(pad)
    return True


def _padded_with(network: Network, name: str) -> tuple[Node, float] | None:
    """The Pad of all axes with a constant that produces ``name``, and that constant; None for other
    producers, or unless ``name`` has exactly one reader."""
    pad = network.maker(name)
    if pad is None or pad.operator != "Pad" or pad.domain or pad.input(3):
        return None
    if pad.attributes.get("mode", "constant") != "constant" or network.only_reader(name) is None:
        return None
    value = _padding_value(network, pad)
    return None if value is None else (pad, value)


def _padding_value(network: Network, pad: Node) -> float | None:
    """The constant that a Pad pads with; None if it is known only at run time."""
    if not pad.input(2):
        return 0.0
    maker = network.maker(pad.input(2))
    parameters = parameters_of(network, maker, "DequantizeLinear")
    if maker is not None and parameters is not None and parameters.per_tensor:
        held = network.constants.get(maker.inputs[0])
        return None if held is None else float(parameters.dequantize(held).item())
    value = network.constants.get(pad.input(2))
    return None if value is None else float(value.item())


def is_move(node: Node) -> bool:
    """Whether all results of ``node`` are elements of its first input, so that it commutes with
    quantization."""
    if node.operator == "Pad" and not node.domain:
        return node.attributes.get("mode", "constant") != "constant"
    if node.operator == "Resize" and not node.domain:
        crop = node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return node.attributes.get("mode", "nearest") == "nearest" and not crop
    return node.operator in _MOVES and not node.domain
