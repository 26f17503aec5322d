"""Input positions of the second factor of integer products. The first factor is always input 0, and
its zero point input 2."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node

# Input positions of the second factor and its zero point, by domain and operator.
SECOND_FACTOR = {
    **dict.fromkeys((("", "ConvInteger"), ("", "MatMulInteger")), (1, 3)),
    **dict.fromkeys((("", "QLinearConv"), ("", "QLinearMatMul"), (MICROSOFT, "QGemm")), (3, 5)),
}


def matrix_swap(dimensions: int) -> list[int]:
    """The order of a Transpose that exchanges the last two ``dimensions``, and no others."""
    *leading, rows, columns = range(dimensions)
    return [*leading, columns, rows]


def swaps_matrices(node: Node) -> bool:
    """Whether ``node`` exchanges the last two dimensions, and no others."""
    order = list(node.attributes.get("perm", ()))
    is_transpose = node.operator == "Transpose" and not node.domain
    return is_transpose and len(order) > 1 and order == matrix_swap(len(order))


def is_symmetric_factor(network: Network, name: str) -> bool:
    """Whether a tensor is read only as second factor of QLinearMatMul with zero points of 0."""
    readers = network.nodes.readers(name)
    return (
        bool(readers)
        and name not in network.outputs
        and all(
            (reader.domain, reader.operator) == ("", "QLinearMatMul")
            and reader.inputs[3] == name
            and reader.inputs[0] != name
            and all(_is_zero(network, reader.inputs[place]) for place in (2, 5))
            for reader in readers
        )
    )


def _is_zero(network: Network, name: str) -> bool:
    value = network.constants.get(name)
    return value is not None and value.dtype.name == "int8" and not value.any()
