"""Separate the projection of ONNX Runtime's QAttention and Attention from the attention itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.canonical.quantization import parameters_of
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .fused_products import scaled_sums
from .replacement import Replacement

# Attributes that MultiHeadAttention has too, with the same meaning.
_KEPT = frozenset({"num_heads", "mask_filter_value", "scale", "unidirectional"})
_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class _Operands:
    """Positions of the inputs of an operator; -1 for those that it does not have."""

    mask: int
    past: int
    bias_of_scores: int


_OPERANDS = {"QAttention": _Operands(5, 8, -1), "Attention": _Operands(3, 4, 5)}


def split_projection(network: Network, node: Node) -> bool:
    """Replace QAttention, and Attention of dequantized factors, by the product that projects the
    input to queries, keys and values, and MultiHeadAttention, which has equal results."""
    if node.domain != MICROSOFT or node.operator not in _OPERANDS:
        return False
    at = _OPERANDS[node.operator]
    given, weights, result = (
        network.types[name].shape for name in (*node.inputs[:2], node.outputs[0])
    )
    if given is None or weights is None or result is None or len(weights) != 2:
        return False
    if not _is_supported(network, node, at, given):
        return False
    sizes = [(weights[1] - result[-1]) // 2] * 2 + [result[-1]]
    made = Replacement(network, node)
    projected = _projection(made, node, TensorType(_FLOAT, (*given[:2], weights[1])))
    parts = made.add_all(
        *("Split", "projected", (projected, made.constant("sizes", np.array(sizes, np.int64)))),
        [TensorType(_FLOAT, (*given[:2], size)) for size in sizes],
        axis=2,
    )
    past, present = _past(made, node.input(at.past), result, sizes, node.attributes["num_heads"])
    attributes = {name: value for name, value in node.attributes.items() if name in _KEPT}
    operands = (*parts, "", node.input(at.mask), _input(node, at.bias_of_scores), *past)
    types = [made.type, *(present if past or len(node.outputs) > 1 else ())]
    results = made.add_all(
        "MultiHeadAttention", "attended", operands, types, domain=MICROSOFT, **attributes
    )
    if len(node.outputs) > 1 and node.outputs[1]:
        results[1:] = [_joined(made, results[1:], network.types[node.outputs[1]])]
    made.put("MultiHeadAttention", *results[: len(node.outputs)])
    return True


def _input(node: Node, at: int) -> str:
    return node.input(at) if at >= 0 else ""


def _is_supported(network: Network, node: Node, at: _Operands, given: tuple[int, ...]) -> bool:
    """Whether the factors are integers, and MultiHeadAttention has all that ``node`` uses."""
    others = node.attributes.keys() - _KEPT - {"qkv_hidden_sizes"}
    if any(node.attributes[name] for name in others):
        return False
    if node.operator == "Attention":
        makers = [network.maker(name) for name in node.inputs[:2]]
        if any(parameters_of(network, maker, "DequantizeLinear") is None for maker in makers):
            return False
        if network.types[node.outputs[0]].dtype != _FLOAT or node.input(6):
            return False
    if not node.input(at.mask):
        return True
    mask = network.types[node.input(at.mask)].shape
    return mask is not None and (mask == given[:1] or len(mask) in (2, 3))


def _projection(made: Replacement, node: Node, info: TensorType) -> str:
    """Add the product and its bias; returns the name of the result."""
    if node.operator == "Attention":
        (result,) = made.add_all("MatMul", "projection", node.inputs[:2], [info])
        if node.input(2):
            (result,) = made.add_all("Add", "projection_biased", (result, node.inputs[2]), [info])
        return result
    x, weights, bias, *scales = node.inputs[:5]
    product = (x, weights, node.input(6), node.input(7))
    return scaled_sums(made, product, (scales[0], scales[1]), bias, info)


def _past(
    made: Replacement, past: str, result: tuple[int, ...], sizes: list[int], heads: int
) -> tuple[list[str], list[TensorType]]:
    """Split the tensor ``past`` into keys and values, if there is one; returns their names, and the
    types of all keys and all values."""
    known = made.network.types[past].shape if past else None
    length = result[1] + (known[3] if known else 0)
    types = [TensorType(_FLOAT, (result[0], heads, length, size // heads)) for size in sizes[1:]]
    if known is None:
        return [], types
    names = []
    for at, what in enumerate(("keys", "values")):
        position = made.constant(f"position_of_{what}", np.array(at, np.int64))
        one = [TensorType(_FLOAT, known[1:])]
        names += made.add_all("Gather", f"past_{what}", (past, position), one, axis=0)
    return names, types


def _joined(made: Replacement, parts: list[str], info: TensorType) -> str:
    """Join the keys and the values to one tensor, with an axis for both in front."""
    axes = made.constant("axes", np.array([0], np.int64))
    one = [replace(info, shape=None if info.shape is None else (1, *info.shape[1:]))]
    wide = [made.add_all("Unsqueeze", "wide", (part, axes), one)[0] for part in parts]
    return made.add_all("Concat", "present", wide, [info], axis=0)[0]
