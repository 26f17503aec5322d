"""Expand local functions and sparse constants of a file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import prod

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper

from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .undefined_operators import nodes_of

# A chain of n functions, each calling the next one twice, expands to 2^n nodes.
_MOST_NODES = 1 << 20
# Domain, name and overload.
_Key = tuple[str, str, str]


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model``, or a copy with its functions inlined and its sparse constants dense.

    Raises `ModelError` for functions that expand to too many nodes or cannot be inlined, and
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
    if not inlined.functions:
        return inlined
    try:
        return inliner.inline_local_functions(_with_types(inlined), convert_version=True)
    except RuntimeError:
        name = inlined.functions[0].name
        raise ModelError(
            f"the model's function {name} uses another opset than the model, and cannot be "
            "converted to that"
        ) from None


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``model`` with tensor types, which opset conversion needs."""
    typed = onnx.shape_inference.infer_shapes(model)
    typed.graph.value_info.extend(
        helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        for item in typed.graph.initializer
    )
    return typed


def _require_few_nodes(model: onnx.ModelProto) -> None:
    """Raise `ModelError` if inlining the functions of ``model``, none of which is recursive, would
    result in too many nodes."""
    known = {_key(item.domain, item.name, item.overload): item for item in model.functions}

    @cache
    def count(key: _Key) -> int:
        return total(known[key].node) if key in known else 1

    def total(nodes: Iterable[onnx.NodeProto]) -> int:
        keys = (_key(node.domain, node.op_type, node.overload) for node in nodes_of(nodes))
        return sum(map(count, keys))

    if (made := total(model.graph.node)) > _MOST_NODES:
        raise ModelError(f"the model's functions make {made:,} nodes; {_MOST_NODES:,} are allowed")


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
