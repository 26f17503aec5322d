"""The operators that 8 bits would spoil: `kept_in_float`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from .calibration import Distribution
from .tensor_ranges import bounds

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_SOFTMAX = frozenset({"LogSoftmax", "Softmax"})
# Operators that put a mask into scores, or a bias.
_MASKING = frozenset({"Add", "Max", "Min", "Sub", "Where"})
# Operators between a product and a Softmax, and those that make masks.
_BETWEEN = _MASKING | {
    *("Cast", "Clip", "Concat", "Div", "Expand", "Gather", "Identity", "Mul", "Neg", "Pad"),
    *("Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
# Operators whose constants, such as the bounds of a Clip, the quantizer leaves alone.
_BOUNDED = frozenset({"Clip", "Pad", "Resize"})


def kept_in_float(
    graph: onnx.GraphProto, distributions: Mapping[str, Distribution]
) -> Iterator[str]:
    """The names of the nodes of ``graph`` that are not to be quantized: those between a product
    and the Softmax of its masked result, and those with a tensor of which 8 bits would keep only
    what a mask has put there, or whose values are not finite. Likewise a Clip whose bounds the
    range of its result, which always has a zero, cannot replace."""
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
    """The nodes between a product and a Softmax, and the Softmax, where one of them masks: a scale
    for the mask, which calibration may not even have met, leaves nothing for the scores."""
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
    """The nodes with an operand that may be a mask: one that depends on no product with weights,
    unless it is a constant within the range of the other operands, such as a bias."""
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
