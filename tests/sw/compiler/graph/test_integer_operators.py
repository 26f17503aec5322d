"""Integer operators have, in ONNX Runtime, the results of LiteRT's reference kernels; an error in
any rounding is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.sw.compiler.graph import integer_operators
from amaranth_vta.sw.compiler.graph.integer_operators import ONCE, ROUNDING, TWICE
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.tflite_operators import operator_case

Change = Callable[[dict[str, Any]], None]
OPERATORS = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL"),
    *("AVERAGE_POOL_2D", "MEAN", "SUM", "ADD", "SUB", "MUL", "PRELU", "LEAKY_RELU", "HARD_SWISH"),
    *("LOGISTIC", "TANH", "ELU", "GELU", "SOFTMAX", "QUANTIZE", "DEQUANTIZE", "RESIZE_BILINEAR"),
    *("RESIZE_NEAREST_NEIGHBOR", "CONCATENATION", "REDUCE_MAX", "MIRROR_PAD", "PADV2"),
)
RNG = np.random.default_rng(1)


def different(network: Network, run: list[Any], wanted: list[Any]) -> int:
    """The number of elements in which ONNX Runtime's results are not the ``wanted`` ones."""
    session = exact_session(network.to_onnx().SerializeToString())
    found = run_session(session, network.outputs, dict(zip(network.inputs, run, strict=True)))
    pairs = zip(network.outputs, wanted, strict=True)
    return sum(int((found[name] != values).sum()) for name, values in pairs)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_has_the_results_of_the_reference_kernel(operator: str) -> None:
    compared = 0
    for seed in range(12):
        case = operator_case(operator, 1000 * seed)
        try:
            network = Network.from_onnx(read_model(case.model))
        except ModelError:  # of a form that is refused
            continue
        compared += 1
        for run, wanted in zip(case.runs, case.wanted, strict=True):
            assert different(network, run, wanted) == 0, case.name
        if compared == 2:
            return
    raise AssertionError(f"{operator} is refused")


def convolution() -> TfliteFile:
    """Results that often lie halfway between integers."""
    file = TfliteFile()
    x = file.input((1, 16, 16, 4), 2.0**-4)
    weights = file.constant(RNG.integers(-127, 128, (16, 1, 1, 4), np.int8), 2.0**-4)
    y = file.tensor((1, 16, 16, 16), 2.0)
    bias = file.constant(RNG.integers(-999, 999, 16, np.int32), 2.0**-8)
    file.operator("CONV_2D", [x, weights, bias], [y], padding="VALID", stride_w=1, stride_h=1)
    file.output(y)
    return file


def product() -> TfliteFile:
    file = TfliteFile()
    x = file.input((256, 4), 2.0**-4)
    weights = file.constant(RNG.integers(-127, 128, (16, 4), np.int8), 2.0**-4)
    y = file.tensor((256, 16), 2.0)
    file.operator("FULLY_CONNECTED", [x, weights], [y])
    file.output(y)
    return file


def matrix_product() -> TfliteFile:
    file = TfliteFile()
    x, w = file.input((1, 64, 4), 2.0**-4), file.input((1, 4, 64), 2.0**-4)
    y = file.tensor((1, 64, 64), 2.0)
    file.operator("BATCH_MATMUL", [x, w], [y])
    file.output(y)
    return file


def pooling() -> TfliteFile:
    file = TfliteFile()
    x, y = file.input((1, 16, 16, 4), 0.5), file.tensor((1, 8, 8, 4), 0.5)
    sizes = dict.fromkeys(("stride_w", "stride_h", "filter_width", "filter_height"), 2)
    file.operator("AVERAGE_POOL_2D", [x], [y], padding="VALID", **sizes)
    file.output(y)
    return file


def mean() -> TfliteFile:
    file = TfliteFile()
    x, y = file.input((1, 4, 4, 256), 0.5), file.tensor((1, 256), 0.25)
    axes = file.constant(np.array([1, 2], np.int32))
    file.operator("MEAN", [x, axes], [y], keep_dims=False)
    file.output(y)
    return file


def halves() -> TfliteFile:
    """Floats half of which lie halfway between integers."""
    file = TfliteFile()
    x, y = file.input((1, 512), dtype="float32"), file.tensor((1, 512), 8.0)
    file.operator("QUANTIZE", [x], [y])
    file.output(y)
    return file


def inputs_of(network: Network) -> list[Any]:
    return [
        RNG.integers(-128, 128, network.types[name].shape).astype(network.types[name].dtype)
        for name in network.inputs
    ]


def planted(network: Network, change: Change) -> Network:
    """``network`` with changed attributes of its nodes that have a rounding."""
    for node in list(network.nodes):
        if ROUNDING in node.attributes:
            attributes = dict(node.attributes)
            change(attributes)
            wrong = Node(node.operator, node.name, node.inputs, node.outputs, attributes)
            network.nodes.replace(node, [wrong])
    return network


ERRORS: dict[str, tuple[Callable[[], TfliteFile], Change]] = {
    "twice as once": (convolution, lambda item: item.update(rounding=ONCE)),
    "once as twice": (product, lambda item: item.update(rounding=TWICE)),
    "products twice as once": (matrix_product, lambda item: item.update(rounding=ONCE)),
    "a multiplier": (convolution, lambda item: item.update(multipliers=[(1 << 30) + (1 << 18)])),
    "a shift": (convolution, lambda item: item.update(shifts=[item["shifts"][0] - 1])),
    "a count": (pooling, lambda item: item.update(count=item["count"] + 1)),
    "a quotient as a factor": (
        pooling,
        lambda item: item.update(rounding=TWICE, multipliers=[1 << 30], shifts=[-1]),
    ),
    "a step": (mean, lambda item: item.update(begins=[begin + 1 for begin in item["begins"]])),
    "the lowest result": (mean, lambda item: item.update(lowest=item["lowest"] + 1)),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_a_rounding_is_seen(error: str) -> None:
    make, change = ERRORS[error]
    data = make().bytes()
    network = Network.from_onnx(read_model(data))
    run = inputs_of(network)
    wanted = reference(data, *run)
    assert different(network, run, wanted) == 0
    assert different(planted(network, change), run, wanted) > 0


def test_floats_are_rounded_half_away_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    data = halves().bytes()
    network = Network.from_onnx(read_model(data))
    run = [np.arange(-256, 256, dtype=np.float32).reshape(1, 512) * 4]
    wanted = reference(data, *run)
    assert different(network, run, wanted) == 0

    def to_even(made: Any, node: Node, types: Any) -> None:
        x, scale, zero = node.inputs
        steps = made.apply(node, "Round", made.apply(node, "Div", x, scale))
        integers = made.cast(node, steps, np.int64)
        made.saturated(node, integers, zero, types[node.outputs[0]].dtype)

    monkeypatch.setitem(integer_operators._EXPANSIONS, integer_operators.QUANTIZE, to_even)
    assert different(network, run, wanted) > 100
