"""Products with float results: the machine hands its unclipped integer sums to the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from amaranth_vta.session import Session
from amaranth_vta.session.comparison import CheckReport

Make = Callable[..., Any]

# Without VNNI, a default session of ONNX Runtime saturates sums of two products of uint8 and int8,
# also after it has converted int8 data to uint8; weights of 7 bits are exact on every processor.
EXACT_EVERYWHERE = 64


def checked(graph: Any, config: str, **options: Any) -> tuple[CheckReport, list[str]]:
    """The comparison with ONNX Runtime, and the operators on the machine."""
    with Session(graph.model(), config, **options) as session:
        report = session.check({"x": graph.images()})
        assert session.report()["summary"]["share_on_machine"] == 1
        return report, [item.operator for item in session.layers if item.placed_on == "machine"]


@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "two"])
def test_products_of_matrices_equal_the_default_session_of_onnx_runtime(
    qdq: Make, kind: str, dtype: Any, config: str
) -> None:
    """ONNX Runtime fuses the products with DequantizeLinear: it sums integers and scales each
    sum."""
    scales = np.linspace(1, 2, 24, dtype=np.float32) * np.float32(2**-7)
    graph = qdq((3, 40), dtype).qdq(0.031, 3)
    if kind == "two":
        first = graph.value
        graph.value = "x"
        graph.quantize(0.05, 9).node("Transpose").dequantize(9)
        second, graph.value = graph.value, first
        graph.node("MatMul", second)
    else:
        weights = graph.weights(40, 24, scale=scales, axis=1, bound=EXACT_EVERYWHERE)
        bias = [graph.bias(24, np.float32(0.031) * scales)] if kind == "Gemm" else []
        graph.node(kind, weights, *bias)
    report, layers = checked(graph, config)
    assert (report.mismatches, report.differs_from_default) == (0, 0)
    assert layers == ["MatMulInteger"]


def in_16_bits(graph: Any) -> Any:
    graph.dtype = np.int16
    return graph.qdq(0.01)


FOLLOWING: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda graph: graph,
    "a function": lambda graph: graph.node("Sigmoid").qdq(0.01),
    "16 bits": in_16_bits,
}


@pytest.mark.parametrize("follows", FOLLOWING)
@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((1, 5, 7, 6), (9, 5, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((1, 8, 7, 6), (8, 1, 3, 3), {"group": 8, "strides": [2, 2]}),
        ((1, 8, 16), (9, 8, 3), {}),
        ((1, 40, 1, 1), (9, 40, 1, 1), {}),
    ],
)
def test_convolutions_without_a_quantization_behind_them(
    qdq: Make, shape: Any, kernel: Any, attributes: Any, follows: str
) -> None:
    graph = qdq(shape).qdq(0.031)
    weights = graph.weights(*kernel, scale=np.linspace(1, 2, kernel[0]) * 2**-7)
    graph.node("Conv", weights, graph.constant(np.arange(kernel[0]), np.float32), **attributes)
    with Session(FOLLOWING[follows](graph).model(21), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        operators = [item.operator for item in session.layers if item.placed_on == "machine"]
    assert operators == ["ConvInteger"]


def test_a_residual_addition_in_float_follows_whole_sums(qdq: Make) -> None:
    graph = qdq((1, 4, 6, 6), np.uint8).qdq(0.031, 128)
    branch = graph.value
    graph.conv(4, 4, 1).node("Add", branch).node("Relu").qdq(0.5).conv(4, 4, 1).qdq(0.9)
    report, layers = checked(graph, "tiny-extended")
    assert report.ok
    assert layers == ["ConvInteger", "QLinearConv"]


def test_sums_are_whole_on_the_rtl(qdq: Make) -> None:
    graph = qdq((3, 12)).qdq(0.031, 3)
    report, _ = checked(graph.node("Gemm", graph.weights(12, 9)), "tiny", device="rtl")
    assert report.ok


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("operator", ["QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_fused_products_of_onnx_runtime(qdq: Make, operator: str, biased: bool) -> None:
    """Their elements, which the same operators in a default session give."""
    graph = qdq((3, 40))
    values = graph.rng.integers(-EXACT_EVERYWHERE, EXACT_EVERYWHERE, (40, 9))
    weights = graph.constant(values, np.int8)
    scales = graph.constant(graph.rng.uniform(0.01, 0.02, 9), np.float32)
    zeros = graph.constant(graph.rng.integers(-5, 5, 9), np.int8)
    given = graph.constant(0.031, np.float32), graph.constant(3, np.int8)
    bias = [graph.constant(graph.rng.normal(size=9), np.float32)]
    if operator != "DynamicQuantizeMatMul":
        graph.quantize(0.031, 3)
    match operator:
        case "QGemm":
            bias = [graph.constant(graph.rng.integers(-999, 999, 9), np.int32)]
            inputs = [*given, weights, scales, zeros]
        case "MatMulIntegerToFloat":
            inputs = [weights, given[0], scales, given[1], zeros]
        case _:
            inputs = [weights, scales, zeros]
    graph.node(operator, *inputs, *(bias if biased else []), domain="com.microsoft")
    report, layers = checked(graph, "tiny")
    assert (report.mismatches, report.differs_from_default) == (0, 0)
    assert layers == ["MatMulInteger"]


def float_network() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (12, 8, 3, 3), "w3": (12, 10), "b3": (10,)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m"], name="third"),
        helper.make_node("Add", ["m", "b3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "floats",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 12, 12))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 10))],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in shapes.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_products_of_dynamically_quantized_networks(
    weights: QuantType, per_channel: bool, tmp_path: Path
) -> None:
    """The zero points of activations are known only at run time; the host corrects the sums."""
    given, made = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(float_network(), given)
    quantize_dynamic(
        given,
        made,
        per_channel=per_channel,
        weight_type=weights,
        reduce_range=True,  # as `EXACT_EVERYWHERE`
        op_types_to_quantize=["Conv", "MatMul"],
    )
    with Session(onnx.load(made), "tiny") as session:
        image = np.random.default_rng(0).normal(0.3, 1, (1, 3, 12, 12)).astype(np.float32)
        report = session.check({"x": image})
        summary = session.report()["summary"]
    assert (report.mismatches, report.differs_from_default) == (0, 0)
    assert (summary["layers_on_machine"], summary["share_on_machine"]) == (3, 1)
