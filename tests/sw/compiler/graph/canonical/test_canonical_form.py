"""The canonical form computes the results of the float model on integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

Make = Callable[..., Any]


def canonical_of(model: onnx.ModelProto) -> Network:
    return canonical(load_network(read_model(model), 1))


def operators(network: Network) -> list[str]:
    return [node.operator for node in network.nodes]


def assert_equal(graph: Any, network: Network) -> None:
    """Assert equal results. Scales are powers of two, so that the model's floats are exact."""
    x = graph.images()
    (want,) = exact_session(graph.model().SerializeToString()).run(None, {"x": x})
    (got,) = exact_session(network.to_onnx().SerializeToString()).run(None, {"x": x})
    assert np.unique(got).size > 3
    np.testing.assert_array_equal(got, want)


def test_a_convolution_between_quantizations_becomes_one_operator(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5, pads=[1, 1, 1, 1]).qdq(2**-3)
    network = canonical_of(graph.model())
    assert operators(network) == ["QuantizeLinear", "QLinearConv", "DequantizeLinear"]
    assert_equal(graph, network)


def test_weights_under_unsigned_data_are_moved_with_their_zero_point(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8), np.uint8).qdq(2**-5, 128).conv(3, 5).qdq(2**-3, 100)
    network = canonical_of(graph.model())
    (conv,) = [node for node in network.nodes if node.operator == "QLinearConv"]
    assert network.constants[conv.inputs[3]].dtype == np.uint8
    assert network.constants[conv.inputs[5]].item() == 128
    assert_equal(graph, network)


def test_weights_of_qgemm_are_moved_likewise(qdq: Make) -> None:
    """ONNX Runtime's QGemm saturates as well on processors without VNNI."""
    graph = qdq((3, 12), np.uint8).quantize(2**-5, 128)
    weights = graph.constant(graph.rng.integers(-64, 64, (12, 9)), np.int8)
    given = [graph.constant(2**-5, np.float32), graph.constant(128, np.uint8)]
    own = [graph.constant(2**-6, np.float32), graph.constant(0, np.int8)]
    made = [graph.constant(2**-3, np.float32), graph.constant(100, np.uint8)]
    bias = graph.constant(np.zeros(9), np.int32)
    graph.node("QGemm", *given, weights, *own, bias, *made)
    graph.nodes[-1].domain, graph.scale = "com.microsoft", 2**-3
    network = canonical_of(graph.dequantize(100).model())
    (gemm,) = [node for node in network.nodes if node.operator == "QGemm"]
    assert network.constants[gemm.inputs[3]].dtype == np.uint8
    assert network.constants[gemm.inputs[5]].item() == 128
    assert_equal(graph, network)


@pytest.mark.parametrize(("zero", "low"), [(0, 0), (-128, None), (7, 7)])
def test_relu_becomes_a_clip_at_the_zero_point(qdq: Make, zero: int, low: int | None) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).node("Relu").qdq(2**-3, zero)
    network = canonical_of(graph.model())
    clips = [node for node in network.nodes if node.operator == "Clip"]
    assert [network.constants[clip.inputs[1]].item() for clip in clips] == (
        [] if low is None else [low]
    )
    assert_equal(graph, network)


def test_clip_becomes_a_clip_of_integers(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5)
    graph.node("Clip", graph.constant(-1.5, np.float32), graph.constant(6.01, np.float32))
    network = canonical_of(graph.qdq(2**-3).model())
    (clip,) = [node for node in network.nodes if node.operator == "Clip"]
    assert [network.constants[name].item() for name in clip.inputs[1:]] == [-12, 48]
    assert_equal(graph, network)


def test_a_clamp_between_equal_quantizations_becomes_a_clip(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5, 3).node("Relu").qdq(2**-5, 3)
    network = canonical_of(graph.model())
    assert operators(network) == ["QuantizeLinear", "Clip", "DequantizeLinear"]
    assert_equal(graph, network)


@pytest.mark.parametrize("transposed", [False, True])
def test_gemm_becomes_a_convolution_of_one_pixel(qdq: Make, transposed: bool) -> None:
    graph = qdq((4, 20)).qdq(2**-5)
    weight = graph.weights(*((7, 20) if transposed else (20, 7)))
    graph.node("Gemm", weight, graph.bias(7, 2**-11), transB=int(transposed)).qdq(2**-3)
    network = canonical_of(graph.model())
    assert operators(network)[1:-1] == ["Reshape", "QLinearConv", "Reshape"]
    assert_equal(graph, network)


def test_a_matrix_product_and_the_addition_of_a_bias_are_one(qdq: Make) -> None:
    graph = qdq((4, 20)).qdq(2**-5)
    graph.node("MatMul", graph.weights(20, 7)).node("Add", graph.bias(7, 2**-11)).node("Relu")
    network = canonical_of(graph.qdq(2**-3).model())
    assert operators(network)[1:-1] == ["Reshape", "QLinearConv", "Clip", "Reshape"]
    assert_equal(graph, network)


def test_a_matrix_product_of_stacks_stays_one(qdq: Make) -> None:
    graph = qdq((2, 4, 20)).qdq(2**-5)
    network = canonical_of(graph.node("MatMul", graph.weights(20, 7)).qdq(2**-3).model())
    assert operators(network)[1:-1] == ["QLinearMatMul"]
    assert_equal(graph, network)


def test_a_float_bias_is_quantized(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    bias = graph.constant(np.array([0.5, -0.25, 3.0]), np.float32)
    network = canonical_of(graph.node("Conv", graph.weights(3, 3, 1, 1), bias).qdq(2**-3).model())
    (conv,) = [node for node in network.nodes if node.operator == "QLinearConv"]
    assert network.constants[conv.inputs[8]].tolist() == [1024, -512, 6144]
    assert_equal(graph, network)


def test_scales_of_channels_are_kept(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    weight = graph.weights(4, 3, 3, 3, scale=[2**-6, 2**-7, 2**-5, 2**-6])
    network = canonical_of(graph.node("Conv", weight).qdq(2**-3).model())
    (conv,) = [node for node in network.nodes if node.operator == "QLinearConv"]
    assert network.constants[conv.inputs[4]].shape == (4,)
    assert_equal(graph, network)


def test_data_is_pooled_and_reshaped_as_integers(qdq: Make) -> None:
    """The operators are quantized on both sides, only after, or only before."""
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 4, pads=[1, 1, 1, 1]).node("Relu")
    graph.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2]).qdq(2**-3)
    graph.node("MaxPool", kernel_shape=[2, 2]).qdq(2**-3).node("Flatten")
    graph.node("Gemm", graph.weights(6, 36), transB=1).qdq(2**0)
    network = canonical_of(graph.model())
    assert operators(network) == [
        "QuantizeLinear",
        *("QLinearConv", "Clip", "MaxPool", "MaxPool"),
        *("Reshape", "QLinearConv", "Reshape"),
        "DequantizeLinear",
    ]
    assert_equal(graph, network)


def test_constants_are_folded(qdq: Make) -> None:
    graph = qdq((2, 3, 4, 4)).qdq(2**-5)
    shape = graph.constant([2, -1], np.int64)
    graph.nodes.append(onnx.helper.make_node("Identity", [shape], ["same_shape"]))
    network = canonical_of(graph.node("Reshape", "same_shape").model())
    assert "Identity" not in operators(network)
    assert network.types["y"].shape == (2, 48)


def left_in_float(graph: Any) -> Counter[str]:
    return Counter(operators(canonical_of(graph.model())))


def test_a_gemm_that_changes_the_sign_is_left_in_float(qdq: Make) -> None:
    graph = qdq((4, 20)).qdq(2**-5)
    graph.node("Gemm", graph.weights(20, 7), alpha=-0.5).qdq(2**-3)
    assert left_in_float(graph)["Gemm"] == 1


def test_a_result_that_is_also_read_in_float_is_a_sum_of_integers(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 3, 1)
    floats = graph.value
    graph.qdq(2**-3).node("Add", floats)
    kinds = left_in_float(graph)
    assert (kinds["ConvInteger"], kinds["Conv"], kinds["QLinearConv"]) == (1, 0, 0)


def test_a_change_of_scale_is_kept(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).qdq(2**-4)
    assert left_in_float(graph) == {"QuantizeLinear": 2, "DequantizeLinear": 2}


def test_weights_under_unsigned_data_are_unsigned(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8), np.uint8).quantize(2**-5, 120)
    x = graph.constant(2**-5, np.float32), graph.constant(120, np.uint8)
    w = graph.constant([[[[2]], [[-128]], [[127]]]] * 2, np.int8)
    scales = graph.constant([2**-7, 2**-6], np.float32), graph.constant([0, 0], np.int8)
    y = graph.constant(2**-4, np.float32), graph.constant(100, np.uint8)
    graph.node("QLinearConv", *x, w, *scales, *y)
    graph.scale = 2**-4
    graph.dequantize(100)
    network = canonical_of(graph.model())
    (node,) = [item for item in network.nodes if item.operator == "QLinearConv"]
    assert network.constants[node.inputs[3]][0].ravel().tolist() == [130, 0, 255]
    assert network.constants[node.inputs[5]].tolist() == [128, 128]
    assert_equal(graph, network)
