"""Count the multiply-accumulates (MACs) of a network's operators, on machine or host."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from .network import Network
from .nodes import MICROSOFT, Node

Shape = tuple[int, ...]

# Input position of the second factor, by operator.
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}
_PRODUCTS = frozenset(
    {"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "QGemm", "DynamicQuantizeMatMul"}
    | {"MatMulIntegerToFloat", "FusedMatMul", "FusedGemm", "MatMulNBits", "MatMulBnb4"}
)
# Operators that multiply each element of a sequence by input 1, and each state by input 2.
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
# Positions of the keys, of the past keys and of the past keys among the results, by operator.
_ATTENTION = {
    ("", "Attention"): (1, 4),
    (MICROSOFT, "GroupQueryAttention"): (1, 3),
    (MICROSOFT, "MultiHeadAttention"): (1, 6),
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): (1, 5),
}
# Position of the past keys and values of operators that also project their input.
_PROJECTED_ATTENTION = {"Attention": 4, "QAttention": 8}


def macs(network: Network, node: Node) -> int:
    """The MACs of ``node``; 0 for operators without products, and if shapes are unknown."""

    def shape(name: str) -> Shape:
        info = network.types.get(name)
        return info.shape or () if info is not None else ()

    if not node.outputs:
        return 0
    result, first = shape(node.outputs[0]), shape(node.input(0))
    if node.operator in _CONVOLUTIONS:
        # An average counts only if the canonical form has turned it into a convolution.
        plain = prod(result) * prod(shape(node.input(_CONVOLUTIONS[node.operator]))[1:])
        return network.macs.get(node.name, plain)
    if node.operator == "ConvTranspose":
        return prod(first) * prod(shape(node.input(1))[1:])
    if node.operator in _PRODUCTS:
        return network.macs.get(node.name, prod(result) * _summed(node, first))
    if node.operator in _RECURRENT:
        return prod(first[:2]) * sum(prod(shape(node.input(at))) for at in (1, 2))
    if node.domain == MICROSOFT and node.operator in _PROJECTED_ATTENTION:
        return _projected_attention(node, shape)
    if (node.domain, node.operator) in _ATTENTION:
        return _attention(node, shape)
    return 0


def _summed(node: Node, first: Shape) -> int:
    """Number of terms per sum of a matrix product whose first factor has the shape ``first``."""
    if node.attributes.get("transA", 0) and len(first) > 1:
        return first[-2]
    return first[-1] if first else 0


def _attention(node: Node, shape: Callable[[str], Shape]) -> int:
    """MACs of queries times keys, and of attention weights times values, for all positions, masked
    or not."""
    queries, result = shape(node.input(0)), shape(node.outputs[0])
    keys_at, past_at = _ATTENTION[node.domain, node.operator]
    keys, past = shape(node.input(keys_at)), shape(node.input(past_at))
    if not queries or not result:
        return 0
    present = shape(node.outputs[1]) if len(node.outputs) > 1 else ()
    if present:
        length = present[-2]
    else:
        # Packed queries, keys and values have a fifth axis, or are a single tensor.
        new = keys[1 if len(keys) == 5 else -2] if keys else queries[1]
        length = new + (past[-2] if past else 0)
    packed = len(queries) == 5 or not keys
    return length * (prod(result if packed else queries) + prod(result))


def _projected_attention(node: Node, shape: Callable[[str], Shape]) -> int:
    """MACs of an attention that computes queries, keys and values from one input."""
    given, weights = shape(node.input(0)), shape(node.input(1))
    past, result = shape(node.input(_PROJECTED_ATTENTION[node.operator])), shape(node.outputs[0])
    if len(given) != 3 or len(weights) != 2 or not result:
        return 0
    length = given[1] + (past[-2] if past else 0)
    rows, hidden = prod(given[:2]), weights[1] - result[-1]
    # Queries are as wide as keys, and values as the result.
    return rows * (weights[0] * weights[1] + length * (hidden // 2 + result[-1]))
