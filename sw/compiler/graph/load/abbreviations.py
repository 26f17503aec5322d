"""Writes out what a file abbreviates: functions that it defines, and constants that are sparse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import prod

import numpy as np
import onnx
from onnx import inliner, numpy_helper

from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

# Functions that call functions twice make 2^n nodes of n lines.
_MOST_NODES = 1 << 20
# Domain, name and overload.
_Key = tuple[str, str, str]


def written_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model``, or a copy in which the bodies of its functions take the place of their calls, and
    sparse constants are dense.

    Raises `ModelError` for functions that make too many nodes or cannot be put in place, and
    `FileLimitError` for constants that are too large.
    """
    if model.functions:
        model = _without_functions(model)
    if model.graph.sparse_initializer:
        model = _without_sparse_constants(model)
    return model


def _without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    _require_few_nodes(model)
    try:
        inlined = inliner.inline_local_functions(model)
    except RuntimeError as error:
        raise ModelError(f"the model's functions cannot be put in place: {error}") from None
    if inlined.functions:
        name = inlined.functions[0].name
        raise ModelError(f"the model's function {name} uses another opset than the model")
    return inlined


def _require_few_nodes(model: onnx.ModelProto) -> None:
    """Raises `ModelError` if ``model``, in which no function calls itself, becomes too large."""
    known = {_key(item.domain, item.name, item.overload): item for item in model.functions}

    @cache
    def count(key: _Key) -> int:
        return total(known[key].node) if key in known else 1

    def total(nodes: Iterable[onnx.NodeProto]) -> int:
        keys = (_key(node.domain, node.op_type, node.overload) for node in _with_inner(nodes))
        return sum(map(count, keys))

    if (made := total(model.graph.node)) > _MOST_NODES:
        raise ModelError(f"the model's functions make {made:,} nodes; {_MOST_NODES:,} are allowed")


def _with_inner(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """``nodes`` and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _with_inner(inner.node)


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def _without_sparse_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    for item in model.graph.sparse_initializer:
        values = numpy_helper.to_array(item.values)
        name, shape = item.values.name, tuple(item.dims)
        require_within_limit(f"constant {name}", prod(shape) * values.dtype.itemsize)
        places = numpy_helper.to_array(item.indices)
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), shape)
        whole = np.zeros(prod(shape), values.dtype)
        whole[places] = values
        dense.graph.initializer.append(numpy_helper.from_array(whole.reshape(shape), name))
    del dense.graph.sparse_initializer[:]
    return dense
