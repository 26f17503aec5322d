"""Count the multiply-accumulates (MACs) of a network's operators, on machine or host."""

from __future__ import annotations

from math import prod

from .network import Network
from .nodes import Node

# Input position of the second factor, by operator.
_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3}
_PRODUCTS = {
    **{"Gemm": 1, "MatMul": 1, "MatMulInteger": 1, "QLinearMatMul": 3, "QGemm": 3},
    **{"DynamicQuantizeMatMul": 1, "MatMulIntegerToFloat": 1, "FusedMatMul": 1, "FusedGemm": 1},
}


def macs(network: Network, node: Node) -> int:
    """The MACs of ``node``; 0 for operators other than products, and if shapes are unknown."""

    def shape(name: str) -> tuple[int, ...]:
        info = network.types.get(name)
        return info.shape or () if info is not None else ()

    if not node.outputs:
        return 0
    if node.operator in _CONVOLUTIONS:
        # An average counts only if the canonical form has turned it into a convolution.
        return prod(shape(node.outputs[0])) * prod(
            shape(node.input(_CONVOLUTIONS[node.operator]))[1:]
        )
    if node.operator == "ConvTranspose":
        return prod(shape(node.input(0))) * prod(shape(node.input(1))[1:])
    if node.operator == "MatMulNBits":
        return prod(shape(node.outputs[0])) * int(node.attributes["K"])
    if node.operator in _PRODUCTS:
        return prod(shape(node.outputs[0])) * _summed(node, shape(node.input(0)))
    return 0


def _summed(node: Node, first: tuple[int, ...]) -> int:
    """Number of terms per sum of a matrix product whose first factor has the shape ``first``."""
    transposed = node.attributes.get("transA", 0) and len(first) == 2
    return 0 if not first else first[0] if transposed else first[-1]
