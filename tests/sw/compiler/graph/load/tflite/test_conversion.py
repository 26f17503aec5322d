"""The conversion moves channels only where an operator needs it, and keeps all results."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.tflite_files import DrawnNetwork
from tests.support.tflite_graphs import random_graph


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def assert_exact(net: DrawnNetwork) -> onnx.ModelProto:
    """ONNX Runtime has the results of LiteRT; returns the converted model."""
    data = net.bytes()
    model = read_model(data)
    network = Network.from_onnx(model)
    given = net.random_inputs(uniform=True)
    session = exact_session(network.to_onnx().SerializeToString())
    feeds = dict(zip(network.inputs, given, strict=True))
    found = run_session(session, network.outputs, feeds)
    for name, wanted in zip(network.outputs, reference(data, *given), strict=True):
        np.testing.assert_array_equal(found[name], wanted)
    return model


def test_convolutions_and_what_is_between_them_keep_channels_first() -> None:
    net = DrawnNetwork(3)
    x = net.given(1, 6, 6, 3)
    y = net.depthwise(net.conv(x, 4, (3, 3)), (3, 3))
    y = net.apply("ADD", y, net.conv(y, 4), fused_activation_function="RELU")
    y = net.apply("HARD_SWISH", y)
    y = net.apply("PAD", y, net.constant(np.array([[0, 0], [1, 1], [0, 0], [0, 0]], np.int32)))
    y = net.apply("CONCATENATION", y, y, axis=3)
    net.output(net.conv(y, 2))
    model = assert_exact(net)
    first, *_, last = model.graph.node
    assert (first.op_type, last.op_type) == ("Transpose", "Transpose")
    assert operators(model)["Transpose"] == 2


def test_an_image_of_one_pixel_or_channel_is_reshaped_instead_of_transposed() -> None:
    for shape in ((1, 1, 1, 5), (1, 4, 3, 1)):
        net = DrawnNetwork(4)
        net.output(net.conv(net.given(*shape), 1))
        assert "Transpose" not in operators(assert_exact(net))


def test_weights_behind_a_flattened_image_are_reordered() -> None:
    net = DrawnNetwork(5)
    y = net.conv(net.given(1, 4, 3, 3), 5)
    net.output(net.dense(net.apply("RESHAPE", y, net.values([1, 60])), 7))
    assert operators(assert_exact(net))["Transpose"] == 1


def test_a_flattened_image_with_another_reader_is_transposed_once() -> None:
    net = DrawnNetwork(6)
    y = net.conv(net.given(1, 4, 3, 3), 5)
    flat = net.apply("RESHAPE", y, net.values([1, 60]))
    net.output(net.dense(flat, 7), net.apply("RELU", flat))
    assert operators(assert_exact(net))["Transpose"] == 2


def test_constants_and_buffers_may_be_shared() -> None:
    net = DrawnNetwork(7)
    x = net.given(1, 4)
    weights = net.weights((4, 4), 0, 1.0, per_channel=False)
    again = net.constant(weights.data, weights.scale, 0, share=weights)
    y = net.apply("FULLY_CONNECTED", x, weights, None)
    net.output(net.apply("FULLY_CONNECTED", y, weights), net.apply("FULLY_CONNECTED", y, again))
    assert_exact(net)


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_have_the_results_of_the_reference_kernels(seed: int) -> None:
    case = random_graph(seed)
    network = Network.from_onnx(read_model(case.model))
    session = exact_session(network.to_onnx().SerializeToString())
    for run, wanted in zip(case.runs, case.wanted, strict=True):
        feeds = dict(zip(network.inputs, run, strict=True))
        found = run_session(session, network.outputs, feeds)
        for name, values in zip(network.outputs, wanted, strict=True):
            np.testing.assert_array_equal(found[name], values)


def test_a_tensor_that_nothing_computes_is_named() -> None:
    file = TfliteFile()
    x, y, z = file.input((1, 4), 0.5), file.tensor((1, 4), 0.5, name="y"), file.tensor((1, 4), 0.5)
    file.operator("RELU", [y], [z])
    file.operator("RELU", [x], [y])
    file.output(z)
    with pytest.raises(ModelError, match="tensor y is read before it is computed"):
        read_model(file.bytes())


def test_a_shape_that_an_operator_does_not_have_is_refused() -> None:
    file = TfliteFile()
    x = file.input((1, 4, 4, 2), 0.5)
    y = file.tensor((1, 4, 4, 2), 0.5, name="y")
    sizes = dict.fromkeys(("stride_w", "stride_h", "filter_width", "filter_height"), 2)
    file.operator("MAX_POOL_2D", [x], [y], padding="VALID", **sizes)
    file.output(y)
    with pytest.raises(ModelError, match=r"y_first has the shape \(1, 2, 4, 4\) instead of \(1, 2"):
        read_model(file.bytes())


def test_a_result_of_another_shape_is_refused() -> None:
    file = TfliteFile()
    a, b = file.input((1, 4), 0.5), file.input((3, 1), 0.5)
    y = file.tensor((1, 4), 0.5)
    file.operator("MUL", [a, b], [y])
    file.output(y)
    with pytest.raises(ModelError, match=r"shape \(1, 4\) instead of \(3, 4\)"):
        read_model(file.bytes())
