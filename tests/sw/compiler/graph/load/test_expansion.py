"""Functions and sparse constants of a file are expanded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.runtime.array_file import FileLimitError
from amaranth_vta.sw.runtime.network.model_error import ModelError

Make = Callable[..., Any]


def _function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], list(nodes), opsets)


def _calling(qdq: Make, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    """A model that computes y = f(x) between quantizations; f is the first function."""
    graph = qdq((1, 4, 5, 5)).qdq(2**-5).conv(4, 8, 1).qdq(2**-3)
    name = functions[0].name
    graph.nodes.append(helper.make_node(name, [graph.value], ["called"], domain="own"))
    graph.value = "called"
    model: onnx.ModelProto = graph.qdq(2**-3).model()
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.extend(functions)
    return model


def test_functions_that_call_functions_are_put_in_place(qdq: Make) -> None:
    inner = _function("Inner", helper.make_node("Relu", ["x"], ["y"]))
    outer = _function(
        "Outer",
        helper.make_node("Inner", ["x"], ["r"], domain="own"),
        helper.make_node("Neg", ["r"], ["y"]),
    )
    with Session(_calling(qdq, outer, inner), "tiny-extended") as session:
        assert session.check({"x": np.full((1, 4, 5, 5), 0.5, np.float32)}).ok
        placed = {layer.operator for layer in session.layers if layer.placed_on == "machine"}
    assert placed == {"QLinearConv+Neg"}, "the function follows the product's sums by a table"


def test_functions_of_another_opset_are_converted(qdq: Make) -> None:
    old = _function("Old", helper.make_node("Neg", ["x"], ["y"]))
    old.opset_import[0].version = 13
    model = read_model(_calling(qdq, old))
    assert [node.op_type for node in model.graph.node].count("Neg") == 1


def test_functions_that_make_too_much_or_call_themselves_are_refused(qdq: Make) -> None:
    names = [f"Twice{n}" for n in range(40)]
    doubling = [
        _function(
            name,
            helper.make_node(after, ["x"], ["t"], domain="own"),
            helper.make_node(after, ["t"], ["y"], domain="own"),
        )
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    ]
    with pytest.raises(
        ModelError, match="the model is damaged: Cycle detected in model-local function"
    ):
        read_model(_calling(qdq, *doubling))
    doubling[-1] = _function(names[-1], helper.make_node("Relu", ["x"], ["y"]))
    with pytest.raises(
        ModelError, match="functions make 549,755,813,[0-9]+ nodes; 1,048,576 are allowed"
    ):
        read_model(_calling(qdq, *doubling))


@pytest.mark.parametrize("by_axes", [False, True])
def test_sparse_constants_become_dense(qdq: Make, by_axes: bool) -> None:
    graph = qdq((1, 4, 5, 5)).qdq(2**-5).conv(4, 8, 1).qdq(2**-3)
    model = graph.model()
    names = {item.name for item in model.graph.initializer}
    (weights,) = [
        item for item in model.graph.initializer if len(item.dims) == 4 and np.prod(item.dims) == 32
    ]
    values = numpy_helper.to_array(weights)
    places = np.argwhere(values) if by_axes else np.flatnonzero(values)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values[values != 0], weights.name),
        numpy_helper.from_array(places.astype(np.int64)),
        values.shape,
    )
    model.graph.initializer.remove(weights)
    model.graph.sparse_initializer.append(sparse)
    read = {item.name: numpy_helper.to_array(item) for item in read_model(model).graph.initializer}
    assert read.keys() == names
    np.testing.assert_array_equal(read[weights.name], values)


def test_a_sparse_constant_that_is_huge_when_dense_is_refused() -> None:
    values = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [5])
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1 << 20, 1 << 20]))
    with pytest.raises(FileLimitError, match="w"):
        read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]))
