"""Poolings with any attributes: the inferred sizes equal those of ONNX Runtime's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.load.pooling_sizes import use_explicit_paddings
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.quantized_forms import FIRST, static

Array = npt.NDArray[Any]


def pooling(operator: str, image: tuple[int, ...], opset: int, **attributes: Any) -> Any:
    """A model of one pooling of float32 (1, 2, ``*image``), without the shape of its result."""
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], **attributes)],
        "pooling",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 2, *image))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def results(model: onnx.ModelProto, seed: int) -> Array:
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    (name,) = (item.name for item in model.graph.output)
    return run_session(exact_session(model.SerializeToString()), [name], {"x": x})[name]


def random_pooling(seed: int) -> Any:
    choose = np.random.default_rng(seed)
    rank = int(choose.integers(1, 4))
    operator = str(choose.choice(["AveragePool", "LpPool", "MaxPool"]))
    opset = int(choose.choice([18, 19, 21, 22] if operator == "LpPool" else [11, 13, 19, 22]))
    kernel = choose.integers(1, 5, rank)
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": choose.integers(1, 6, rank)}
    if choose.random() < 0.5:
        window["pads"] = choose.integers(0, [*kernel, *kernel])
    if operator != "AveragePool" or opset >= 19:
        window["dilations"] = choose.integers(1, 3, rank)
    attributes: dict[str, Any] = {name: values.tolist() for name, values in window.items()}
    attributes["ceil_mode"] = int(choose.integers(0, 2))
    if "pads" not in attributes and choose.random() < 0.5:
        kinds = ["VALID", "SAME_UPPER", "SAME_LOWER"]
        attributes["auto_pad"] = str(choose.choice(kinds))
    if operator == "AveragePool":
        attributes["count_include_pad"] = int(choose.integers(0, 2))
    image = tuple(map(int, choose.integers(3, 12, rank)))
    return pooling(operator, image, opset, **attributes)


def test_inferred_sizes_are_those_that_onnx_runtime_computes() -> None:
    compared = 0
    for seed in range(400):
        model = random_pooling(seed)
        try:
            wanted = results(model, seed)
            use_explicit_paddings(model)
        except ModelError:
            continue
        network = load_network(model, 1)
        assert network.types["y"].shape == wanted.shape, model
        # Different attributes may select another function of ONNX Runtime, with another order of
        # sums.
        np.testing.assert_allclose(results(model, seed), wanted, atol=1e-6, err_msg=str(model))
        compared += 1
    assert compared > 300


def test_the_sizes_of_a_pooling_are_those_of_the_next() -> None:
    """If only the first pooling's size were corrected, the second pooling's would be wrong."""
    model = pooling("MaxPool", (9, 10), 13, kernel_shape=[1, 3], strides=[2, 3], ceil_mode=1)
    second = helper.make_node("MaxPool", ["y"], ["z"])
    second.attribute.extend(model.graph.node[0].attribute)
    model.graph.node.append(second)
    model.graph.output[0].name = "z"
    wanted = results(model, 0)
    assert load_network(model, 1).types["z"].shape == wanted.shape == (1, 2, 3, 2)


def test_windows_without_a_padding_that_auto_pad_defines_are_refused() -> None:
    attributes = {"kernel_shape": [4, 2], "strides": [2, 1], "dilations": [2, 1]}
    model = pooling("MaxPool", (6, 11), 18, auto_pad="VALID", **attributes)
    with pytest.raises(ModelError, match="MaxPool y has windows that reach beyond the image"):
        load_network(model, 1)


@pytest.mark.parametrize("operator", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("opset", [13, 19, 22])
@pytest.mark.parametrize(
    "window",
    [
        "kernel_shape=[3,1], strides=[2,3]",
        "kernel_shape=[1,3], strides=[3,2]",
        "kernel_shape=[2,2], strides=[3,2], pads=[0,1,1,0]",
        "kernel_shape=[3,2], strides=[2,4], pads=[1,1,0,0]",
    ],
)
def test_windows_empty_along_one_axis_are_left_out(operator: str, opset: int, window: str) -> None:
    text = f"{FIRST} z = {operator}<{window}, ceil_mode=1>(a) y = Conv(z, w(4,8,1,1))"
    model = static(text, (1, 8, 4, 6), opset)
    x = np.random.default_rng(0).normal(size=(1, 8, 4, 6)).astype(np.float32)
    (wanted,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        on_host = {layer.operator for layer in session.layers if layer.placed_on == "host"}
    assert report.ok
    assert report.outputs["y"].shape == wanted.shape
    assert on_host <= {"QuantizeLinear", "DequantizeLinear", "layout"}
    assert np.abs(report.outputs["y"] - wanted).max() <= 0.03 * np.abs(wanted).max()
