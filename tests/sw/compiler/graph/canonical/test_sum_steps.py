"""Scales of sums: biases become exact, or nearly so within the reported bound, for all sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.canonical.quantization import QuantizationParameters
from amaranth_vta.sw.compiler.graph.canonical.sum_steps import ResultLimits, SumSteps, sum_steps
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.few_bits import FewBits
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]


def parameters(scale: Any, zero: Any = 0, dtype: Any = np.int8) -> QuantizationParameters:
    scale = np.asarray(scale, np.float32)
    return QuantizationParameters(scale, np.broadcast_to(np.array(zero, dtype), scale.shape), 0)


def steps_of(
    weights: Array,
    bias: Array,
    weight: QuantizationParameters,
    data: QuantizationParameters | None = None,
    limits: ResultLimits | None = None,
) -> SumSteps:
    network = Network.from_onnx(helper.make_model(helper.make_graph([], "empty", [], [])))
    name = network.add_constant("bias", bias.astype(np.float32))
    limits = limits or ResultLimits(0.1, -128, 127)
    found = sum_steps(network, name, weights, data or parameters(0.4), weight, limits)
    assert found is not None
    return found


def moved(weights: Array, bias: Array, weight: QuantizationParameters, found: SumSteps) -> float:
    """The largest difference between exact and approximate sums that are not clipped, in result
    steps of 0.1. Each channel has a single weight.
    """
    x = np.arange(-128, 128) * 0.4
    most = 0.0
    for channel in range(len(weights)):
        old = np.broadcast_to(weight.scale, len(weights))[channel]
        new = np.broadcast_to(found.parameters.scale, len(weights))[channel]
        exact = x * float(old) * weights[channel].sum() + bias[channel]
        sums = x / 0.4 * found.weights[channel].sum() + found.bias[channel]
        made = sums * 0.4 * float(new)
        most = max(most, np.abs(exact - made)[np.abs(exact) < 12.8].max(initial=0) / 0.1)
    return most


@each_seed(range(20))
def test_the_bound_holds_and_weights_stay_in_their_type(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = int(rng.integers(2, 9))
    weights = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), (6, 1)).astype(np.int16)
    # For scales of at least a 64th of a step, all sums are tried instead.
    scale = rng.uniform(0.001, 0.1 / 0.4 / 64, 6 if seed % 2 else ())
    bias, weight = rng.normal(0, 2, 6).astype(np.float32), parameters(scale)
    found = steps_of(weights, bias, weight)
    zero = found.parameters.zero.reshape(-1, 1).astype(np.int16)
    assert np.abs(found.weights + zero).max() <= 128
    assert moved(weights, bias, weight, found) <= found.moved < 1 / 64


@each_seed(range(20))
def test_no_result_of_few_bits_changes(seed: int) -> None:
    """Weights of two bits can be scaled up to fit any bias; every sum is tried."""
    rng = np.random.default_rng(seed)
    weights = rng.choice([-1, 1], (8, 1)).astype(np.int16)
    bias, weight = rng.normal(0, 2, 8).astype(np.float32), parameters(0.2)
    found = steps_of(weights, bias, weight)
    x = np.arange(-128, 128)
    for channel in range(8):
        exact = (x * weights[channel] * 0.4 * np.float64(np.float32(0.2)) + bias[channel]) / 0.1
        scale = np.broadcast_to(found.parameters.scale, 8)[channel]
        sums = x * found.weights[channel] + found.bias[channel]
        wanted, got = (np.clip(np.rint(v), -128, 127) for v in (exact, sums * (0.4 * scale / 0.1)))
        assert (wanted == got).all()
    assert found.moved < 1e-3


def test_a_bias_that_is_exact_leaves_weights_as_they_are() -> None:
    weights, weight = np.ones((3, 4), np.int16), parameters(0.5)
    found = steps_of(weights, np.array([0.25, -1.5, 0]), weight, parameters(0.5))
    assert found.weights is weights
    assert found.bias.tolist() == [1, -6, 0]


def test_weights_of_eight_bits_have_no_room() -> None:
    weights = np.array([[127, -128], [3, 1]], np.int16)
    found = steps_of(weights, np.array([0.3, 0.3]), parameters(1.0), parameters(1.0))
    assert found.weights[0].tolist() == [127, -128]
    assert found.weights[1, 0] > 3
    assert found.moved > 1


def test_one_power_of_two_stays_one() -> None:
    """Machines without REQUANTIZE need a power of two; the bias is accurate to a 64th of a step."""
    weights = np.ones((4, 2), np.int16)
    found = steps_of(
        weights,
        np.linspace(0.1, 1, 4),
        parameters(2**-6),
        parameters(2**-3),
        ResultLimits(2**-4, -8, 7),
    )
    assert found.parameters.scale.shape == ()
    assert found.moved <= 1 / 64 + 1e-3


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_multiplied_weights_keep_their_values_without_zero_points(dtype: Any) -> None:
    weights = np.array([[-3, 2], [1, 0]], np.int16)
    weight = parameters([0.2, 0.3], [5, 7], dtype)
    found = steps_of(weights, np.array([0.111, 0.222]), weight)
    factors = found.weights[:, 0] / weights[:, 0]
    assert (found.weights == weights * factors[:, None]).all()
    assert found.parameters.scale == pytest.approx(weight.scale / factors)
    assert set(found.parameters.zero.tolist()) == {128 if dtype == np.uint8 else 0}


def test_channels_that_are_always_clipped_do_not_move() -> None:
    weights = np.full((1, 2), 127, np.int16)
    found = steps_of(weights, np.array([1e6]), parameters(1.0), parameters(1.0))
    assert found.moved == 0


def test_networks_hold_the_bounds_of_their_products() -> None:
    bounds = canonical(load_network(FewBits(4, 4).model(), 1)).rounding.bounds
    assert len(bounds) == 3
    assert 0 < max(bounds.values()) < 1 / 64


def _coarse(bias: float) -> Any:
    """A product whose sums have twice the step size of its result."""
    values: dict[str, Array] = {
        "w": np.array([[127, 5], [3, 127]], np.int8),
        "b": np.full(2, bias, np.float32),
        "zero": np.array(0, np.int8),
    }
    scales = {"x_s": 0.4, "w_s": 0.5, "y_s": 0.1}
    values |= {name: np.array(value, np.float32) for name, value in scales.items()}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "x_s", "zero"], ["x_q"]),
            helper.make_node("DequantizeLinear", ["x_q", "x_s", "zero"], ["x_r"]),
            helper.make_node("DequantizeLinear", ["w", "w_s", "zero"], ["w_r"]),
            helper.make_node("Gemm", ["x_r", "w_r", "b"], ["p"], "product"),
            helper.make_node("QuantizeLinear", ["p", "y_s", "zero"], ["y"]),
        ],
        "coarse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [1, 2])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_more_than_half_a_step_keeps_a_product_whole_unless_allowed() -> None:
    network = canonical(load_network(_coarse(0.3), 1))
    assert "QLinearConv" not in {node.operator for node in network.nodes}
    assert network.rounding.refused == {"product": pytest.approx(1, abs=1e-3)}
    network = canonical(load_network(_coarse(0.3), 1), allow_rounding=True)
    assert "QLinearConv" in {node.operator for node in network.nodes}
    assert not network.rounding.refused
    assert network.rounding.bounds == {"product": pytest.approx(1, abs=1e-3)}
    # 0.4 is two steps of the sum.
    network = canonical(load_network(_coarse(0.4), 1))
    assert network.rounding.bounds["product"] < 1e-3


def test_a_dead_channel_leaves_the_others_their_finer_steps() -> None:
    weights = np.ones((3, 2), np.int16)
    found = steps_of(weights, np.array([0.111, 5.0, 0.123]), parameters([0.2, 1e-9, 0.2]))
    assert (found.weights[[0, 2]] > 1).all()
    assert found.weights[1].tolist() == [0, 0]
    assert found.moved < 1 / 64


def test_sums_beyond_int32_do_not_wrap() -> None:
    """As of a nearly dead channel whose int32 bias a quantizer has saturated."""
    rng = np.random.default_rng(6)
    values: dict[str, Array] = {
        "w": rng.integers(-127, 128, (16, 4)).astype(np.int8),
        "w_s": np.array([0.01, 2e-9, 0.01, 2e-9], np.float32),
        "b": np.array([200, -(2**31), 7, 2**31 - 1], np.int32),
        "zeros": np.zeros(4, np.int8),
        "none": np.zeros(4, np.int32),
    }
    values["b_s"] = np.float32(0.5) * values["w_s"]
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (int8[8, 16] x) => (int8[8, 4] y)
        <float s = {0.5}, float t = {0.1}, int8 z = {0}>
        {
            xr = DequantizeLinear(x, s, z)  wr = DequantizeLinear<axis = 1>(w, w_s, zeros)
            br = DequantizeLinear<axis = 0>(b, b_s, none)
            p = MatMul(xr, wr)  a = Add(p, br)  y = QuantizeLinear(a, t, z)
        }
    """)
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in values.items()
    )
    feeds = {"x": rng.integers(-128, 128, (8, 16)).astype(np.int8)}
    network = canonical(load_network(model, 1))
    assert "QLinearConv" in {node.operator for node in network.nodes}
    results = [
        run_session(exact_session(item.SerializeToString()), ["y"], feeds)["y"].astype(int)
        for item in (model, network.to_onnx())
    ]
    assert abs(results[0] - results[1]).max() <= 1
