"""Ranges of tensors, from which 8-bit scales follow: `tensor_ranges`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from amaranth_vta.sw.runtime.network.tile_layout import Array

from .calibration import Distribution

Range = tuple[Array, Array]


def tensor_ranges(
    graph: onnx.GraphProto, distributions: Mapping[str, Distribution], percentile: float | None
) -> dict[str, Range]:
    """The range of each finite tensor of ``graph``: its smallest and largest value, or those of
    ``percentile`` percent of its values.

    A Softmax has the range 0 to 1. For a tensor that is zero in all samples the range is guessed:
    the quantizer would choose scale 1 and zero point 0, and this range would not clip negative
    values as the Relu does that the quantizer removes. All parts of a cache have one range.
    """
    makers = {name: node for node in graph.node for name in node.output}
    ranges = {}
    for name, values in distributions.items():
        if values.is_huge:
            continue
        maker = makers.get(name)
        if maker is not None and maker.op_type == "Softmax":
            low, high = 0.0, 1.0
        elif values.is_zero:
            low, high = _guess(graph, maker, distributions)
        else:
            low, high = values.range(percentile)
        ranges[name] = np.array(low, values.dtype), np.array(high, values.dtype)
    for cache in _caches(graph):
        known = [ranges[name] for name in cache if name in ranges]
        if known:
            lows, highs = zip(*known, strict=True)
            ranges |= dict.fromkeys(cache & ranges.keys(), (np.min(lows), np.max(highs)))
    return ranges


def _caches(graph: onnx.GraphProto) -> Iterator[set[str]]:
    """Yield the tensors of each cache: a graph input, the rows that Concat appends to it, and the
    result, an output, which the next run reads as the input. Rows that keep their scale are written
    to a cache once.
    """
    inputs, outputs = ({item.name for item in items} for items in (graph.input, graph.output))
    copies = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "Identity"}
    for node in graph.node:
        if node.op_type == "Concat" and inputs.intersection(node.input[:1]):
            (result,) = node.output
            following = {result, copies.get(result, result)}
            if outputs & following:
                yield {*node.input, *following}


def _guess(
    graph: onnx.GraphProto, maker: onnx.NodeProto | None, distributions: Mapping[str, Distribution]
) -> tuple[float, float]:
    """A range for a tensor that is zero in all samples: the magnitude of the input of its Relu or
    Clip, clipped to the bounds of that operator.
    """
    if maker is None or maker.op_type not in ("Relu", "Clip"):
        return -1.0, 1.0
    source = distributions.get(maker.input[0])
    reach = 0.0 if source is None or source.is_huge else source.reach
    low, high = bounds(graph, maker)
    return max(low, -reach or -1.0), min(high, reach or 1.0)


def bounds(graph: onnx.GraphProto, activation: onnx.NodeProto) -> tuple[float, float]:
    """The smallest and the largest possible result of a Relu or a Clip; NaN for a bound that is not
    constant.
    """
    if activation.op_type == "Relu":
        return 0.0, np.inf
    constants = {item.name: item for item in graph.initializer}
    found = [-np.inf, np.inf]
    for index, name in enumerate(activation.input[1:]):
        if name:
            known = constants.get(name)
            found[index] = np.nan if known is None else numpy_helper.to_array(known).item()
    return found[0], found[1]
