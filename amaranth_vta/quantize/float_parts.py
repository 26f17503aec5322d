"""Selects the operators to leave in float: `kept_in_float`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .calibration import Distribution
from .tensor_ranges import bounds

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_SOFTMAX = frozenset({"LogSoftmax", "Softmax"})
# Operators that add a mask, or a bias, to scores.
_MASKING = frozenset({"Add", "Max", "Min", "Sub", "Where"})
# Operators between a product and a Softmax, and operators that compute masks.
_BETWEEN = _MASKING | {
    *("Cast", "Clip", "Concat", "Div", "Expand", "Gather", "Identity", "Mul", "Neg", "Pad"),
    *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# Operators with constants that are not quantized, such as the bounds of a Clip.
_BOUNDED = frozenset({"Clip", "Pad", "Resize"})


def kept_in_float(
    graph: onnx.GraphProto, distributions: Mapping[str, Distribution]
) -> Iterator[str]:
    """Yield the names of the nodes of ``graph`` to leave in float.

    These are the nodes between a product and a masked Softmax; nodes with a tensor whose 8-bit
    scale would be determined by a mask alone, or whose values are not finite; and a Clip whose
    bounds exclude zero: the range of a quantized tensor always includes zero, and so cannot replace
    this Clip.
    """
    yield from _before_softmax(graph, distributions)
    huge = {name for name, item in distributions.items() if item.is_huge}
    masked = {name for name, item in distributions.items() if item.is_masked}
    huge_constants = set(_huge_constants(graph))
    for node in graph.node:
        names = {*node.input, *node.output}
        if (
            names & huge
            or (node.op_type not in PRODUCTS and names & masked)
            or (node.op_type not in _BOUNDED and names & huge_constants)
            or (node.op_type == "Clip" and not _includes_zero(bounds(graph, node)))
        ):
            yield node.name


def _includes_zero(bounds: tuple[float, float]) -> bool:
    return bounds[0] <= 0 <= bounds[1]


def _huge_constants(graph: onnx.GraphProto) -> Iterator[str]:
    for item in graph.initializer:
        if item.data_type in _FLOATS:
            values = Distribution()
            values.add(numpy_helper.to_array(item))
            if values.counts.size and values.is_huge:
                yield item.name


def _before_softmax(
    graph: onnx.GraphProto, distributions: Mapping[str, Distribution]
) -> Iterator[str]:
    """Yield each Softmax that reads masked scores, and the nodes between the product and the
    Softmax.

    The mask would determine the scale of masked scores and leave no resolution for the scores; a
    mask that no sample uses would saturate instead.
    """
    makers = {name: node for node in graph.node for name in node.output}
    masking = {node.name for node in graph.node if node.op_type in _MASKING}
    masking &= set(_masked(graph, distributions))
    for node in graph.node:
        if node.op_type not in _SOFTMAX:
            continue
        between = {node.name}
        tensors = [node.input[0]]
        while tensors:
            maker = makers.get(tensors.pop())
            if maker is not None and maker.op_type in _BETWEEN and maker.name not in between:
                between.add(maker.name)
                tensors += maker.input
        if between & masking:
            yield from between


def _masked(graph: onnx.GraphProto, distributions: Mapping[str, Distribution]) -> Iterator[str]:
    """Yield the nodes with an operand that may be a mask.

    A mask does not depend on a product with weights. A constant within the range of the other
    operands, such as a bias, is not a mask.
    """
    constants = {
        item.name: float(np.abs(numpy_helper.to_array(item)).max(initial=0))
        for item in graph.initializer
        if item.data_type in _FLOATS
    }
    learned: set[str] = set()
    for node in graph.node:
        weighted = node.op_type in PRODUCTS and not constants.keys().isdisjoint(node.input)
        if weighted or not learned.isdisjoint(node.input):
            learned.update(node.output)
        operands = node.input[1:] if node.op_type == "Where" else node.input
        scores = [
            distributions[name].reach for name in operands if name in learned & distributions.keys()
        ]
        reach = max(scores, default=0.0)
        if any(constants.get(name, np.inf) > reach for name in operands if name not in learned):
            yield node.name
