"""Operators that fit are placed on the machine; the others get a reason."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.layers.support.layer import HostNode, Layer
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.plan.placement import place
from amaranth_vta.sw.runtime.network.model_error import ModelError

Make = Callable[..., Any]
EXTENDED = PRESETS["pynq-extended"]


def placed(model: onnx.ModelProto, config: Config = PRESETS["pynq"]) -> dict[str, str]:
    """For each operator except quantizations: ``machine``, or the reason why it is on the host."""
    placement = place(canonical(load_network(model, config.batch)), config)
    result = {}
    for item in placement.items:
        if isinstance(item, Layer):
            result[item.operator] = "machine"
        elif not item.node.operator.endswith("quantizeLinear"):
            result[item.node.operator] = item.reason
    return {name: what for name, what in result.items() if name != "QuantizeLinear"}


def convolution(qdq: Make, output_scale: float = 2**-3, zero: int = 0) -> Any:
    return qdq((1, 3, 8, 8)).qdq(2**-5, zero).conv(3, 5).node("Relu").qdq(output_scale)


def test_a_convolution_with_its_clip_is_on_the_machine(qdq: Make) -> None:
    assert placed(convolution(qdq).model()) == {"QLinearConv": "machine"}


@pytest.mark.parametrize(
    ("output_scale", "reason"),
    [
        (0.1, "its scale 0.00488281 is not a power of two"),
        (2**-13, "its scale 2^2 is not within 2^-16 and 1"),
        (2**6, "its scale 2^-17 is not within 2^-16 and 1"),
    ],
)
def test_scales_that_no_shift_gives_are_the_hosts(
    qdq: Make, output_scale: float, reason: str
) -> None:
    assert placed(convolution(qdq, output_scale).model()) == {
        "QLinearConv": reason,
        "Clip": "it follows an operator on the host",
    }


def test_scales_that_differ_between_channels_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    graph.node("Conv", graph.weights(2, 3, 3, 3, scale=[2**-6, 2**-7])).qdq(2**-3)
    assert placed(graph.model()) == {
        "QLinearConv": "its scale differs per channel, and the machine has no REQUANTIZE"
    }


def test_any_scale_is_the_machines_if_it_requantizes(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(0.031)
    graph.node("Conv", graph.weights(2, 3, 3, 3, scale=[0.013, 0.017])).node("Relu").qdq(0.1, 7)
    assert placed(graph.model(), EXTENDED) == {"QLinearConv": "machine"}
    # Fixed-point products equal those in float32 unless a scale is too large or too small; then the
    # machine stores the unscaled sums.
    graph = qdq((1, 3, 8, 8)).qdq(1e3).conv(3, 5).qdq(1e-3)
    assert placed(graph.model(), EXTENDED) == {"ConvInteger": "machine"}
    # ONNX's integer operators support only one zero point of the weights.
    graph = qdq((1, 3, 8, 8)).qdq(1e3)
    weights = graph.weights(2, 3, 3, 3, scale=[0.01, 0.02], zero=[1, 2])
    reason = placed(graph.node("Conv", weights).qdq(1e-3).model(), EXTENDED)["QLinearConv"]
    assert reason.startswith("REQUANTIZE by the scale ")
    assert " of channel 0 differs from float32 for sums from -" in reason


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_zero_points_go_into_the_bias(qdq: Make, dtype: Any) -> None:
    """Also on the base machine, unless the result's zero point is odd: ties would be rounded to
    odd.
    """
    low = np.iinfo(dtype).min
    assert_exact(qdq((1, 3, 8, 8), dtype).qdq(2**-5, low + 3).conv(3, 5).qdq(2**-3, low + 130))
    graph = qdq((1, 3, 8, 8), dtype).qdq(2**-5).conv(3, 5).qdq(2**-3, low + 131)
    reason = "the zero point 3 is odd: halves would be rounded to odd"
    assert placed(graph.model()) == {"QLinearConv": reason}


def test_padding_with_a_zero_point_needs_a_machine_that_can(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).qdq(2**-3, 4)
    graph.conv(5, 4, pads=[1, 1, 1, 1]).qdq(2**-1)
    model = graph.model()
    reason = "it pads with its zero point, and the machine with zeros"
    assert placed(model) == {"QLinearConv": reason}
    assert placed(model, EXTENDED) == {"QLinearConv": "machine"}


@pytest.mark.parametrize("zero", [1, -100, -128, 100])
@pytest.mark.parametrize("groups", [1, 2])
def test_zero_points_of_weights_are_taken_off(qdq: Make, zero: int, groups: int) -> None:
    """Nine-bit weights, which may result, are split into sums of two or three int8 values."""
    graph = qdq((1, 4, 8, 8)).qdq(0.031, 3)
    weights = graph.weights(6, 4 // groups, 3, 2, zero=zero, scale=0.02)
    graph.node("Conv", weights, group=groups, pads=[1, 0, 1, 1]).qdq(0.9)
    assert_exact(graph, config="tiny-extended")


@pytest.mark.parametrize("zero", [-128, 30])
def test_zero_points_of_matrices_are_taken_off(qdq: Make, zero: int) -> None:
    graph = qdq((5, 20)).qdq(0.031, 3)
    graph.node("MatMul", graph.weights(20, 9, zero=zero, scale=0.02)).qdq(0.7, 5)
    assert_exact(graph, config="tiny-extended")


@pytest.mark.parametrize(("channels", "groups"), [(4, 2), (12, 12), (9, 3), (8, 4)])
@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_groups_are_exact(qdq: Make, channels: int, groups: int, config: str) -> None:
    graph = qdq((1, channels, 8, 8)).qdq(2**-5)
    weights = graph.weights(2 * channels, channels // groups, 3, 3)
    graph.node("Conv", weights, group=groups, pads=[1, 1, 0, 1], strides=[2, 1]).qdq(2**-3)
    assert_exact(graph, config=config)


AVERAGES: list[tuple[str, dict[str, Any]]] = [
    ("GlobalAveragePool", {}),
    ("ReduceMean", {"axes": [2, 3]}),
    ("ReduceMean", {"axes": [-1, -2], "keepdims": 0}),
    ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 1]}),
    ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
]


@pytest.mark.parametrize(("operator", "attributes"), AVERAGES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_averages_are_exact(qdq: Make, operator: str, attributes: Any, dtype: Any) -> None:
    graph = qdq((1, 3, 8, 8), dtype).qdq(0.031).conv(3, 6).node("Relu").qdq(0.07, 21)
    graph.node(operator, **attributes).qdq(0.043, 17)
    assert_exact(graph, config="tiny-extended")


@pytest.mark.parametrize("attributes", [{"axes": [2]}, {"axes": [-1], "keepdims": 0}])
def test_averages_of_sequences_are_exact(qdq: Make, attributes: Any) -> None:
    graph = qdq((1, 3, 20)).qdq(0.031)
    graph.node("Conv", graph.weights(6, 3, 5)).qdq(0.07, 21)
    graph.node("ReduceMean", **attributes).qdq(0.043, 17)
    assert_exact(graph, {"QLinearConv+QLinearConv"}, "tiny-extended")
    assert "ReduceMean" not in placed(graph.model())


def test_functions_whose_result_stays_in_float_are_the_hosts(qdq: Make) -> None:
    graph = convolution(qdq).node("Neg").node("Sin")
    reason = "its result is not quantized to 8 bits at one scale"
    assert placed(graph.model())["Neg"] == reason


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("clamp", [[], [0.0, 2.5], [0.0]])
@pytest.mark.parametrize("config", ["tiny", "tiny-extended"])
def test_additions_are_exact(qdq: Make, dtype: Any, clamp: list[float], config: str) -> None:
    graph = qdq((1, 3, 8, 8), dtype).qdq(2**-5).conv(3, 5).qdq(2**-3)
    branch = graph.value
    graph.conv(5, 5, 1).qdq(2**0, 6)
    graph.node("Add", branch)
    if clamp:
        bounds = [graph.constant(bound, np.float32) for bound in clamp]
        graph.node("Clip", *bounds)
    graph.qdq(0.61, 9)
    assert_exact(graph, {"QLinearConv", "QLinearConv+Add"}, config)


def test_operands_from_the_host_are_read_as_it_has_them(qdq: Make) -> None:
    graph = qdq((1, 5, 8, 8)).qdq(2**-5)
    branch = graph.value
    graph.node("Sigmoid").qdq(2**-7).node("Add", branch).qdq(2**-4)
    with Session(graph.model(), "tiny") as session:
        assert session.check({"x": graph.images(1)}).ok
        assert not [layer for layer in session.layers if layer.operator == "layout"]
        assert {layer.placed_on for layer in session.layers if layer.operator == "Add"} == {
            "machine"
        }


def test_additions_that_the_machine_cannot_do_have_a_reason(qdq: Make) -> None:
    graph = convolution(qdq)
    graph.node("Add", graph.value)
    assert placed(graph.model())["Add"] == "its result is not quantized to 8 bits at one scale"
    graph = convolution(qdq)
    branch = graph.value
    kernel = {"kernel_shape": [1, 6]}
    graph.node("MaxPool", **kernel).qdq(2**-3).node("Add", branch).qdq(2**-3)
    assert placed(graph.model())["Add"] == (
        "its operands have different shapes: (1, 5, 6, 1) and (1, 5, 6, 6)"
    )


def test_float_operators_and_unknown_ones_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    graph.node("Conv", graph.constant(np.ones((3, 3, 1, 1)), np.float32)).node("Sin")
    result = placed(graph.model())
    assert result["Conv"] == "Conv is in float: its weights are constants in float"
    assert result["Sin"] == "its operand conv2 is in float"


@pytest.mark.parametrize(("first", "second"), [(np.int8, np.uint8), (np.uint8, np.int8)])
def test_a_product_may_be_quantized_to_the_other_type(qdq: Make, first: Any, second: Any) -> None:
    """The machine represents both types by the same integers, so the change needs no layer."""
    graph = qdq((1, 3, 8, 8), first).qdq(0.031, 3).conv(3, 5).node("Relu")
    graph.dtype = second
    graph.qdq(0.9, 5).conv(5, 7, 1)
    graph.dtype = first
    graph.qdq(0.9, 3).node("AveragePool", kernel_shape=[2, 2])
    graph.dtype = second
    assert graph.qdq(0.3, 3).on_machine() == ["QLinearConv", "QLinearConv", "QLinearConv"]


def test_what_a_function_reads_may_be_read_in_float_too(qdq: Make) -> None:
    """The layer of the function quantizes its result, so the host computes the float result
    again."""
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 5).qdq(0.9).node("Elu")
    floats = graph.value
    graph.qdq(0.8).node("Sin").node("Add", floats)
    assert_exact(graph, {"QLinearConv, Elu"}, "tiny-extended")


SLICES: list[dict[str, Any]] = [
    {"starts": [0], "ends": [5], "axes": [1]},
    {"starts": [4, 1, -5], "ends": [9, 99, -2], "axes": [1, 2, 3]},
    {"starts": [2], "ends": [6], "axes": [-3]},
    {"starts": [9], "ends": [1], "axes": [1], "steps": [-2]},
    {"starts": [2, 1], "ends": [6, 8], "axes": [1, 2]},
    {"starts": [5], "ends": [0], "axes": [2], "steps": [-1]},
]


@pytest.mark.parametrize("bounds", SLICES)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_slices_are_on_the_machine(qdq: Make, bounds: dict[str, Any], dtype: Any) -> None:
    """Slices work on integers, wherever the file quantizes."""
    graph = qdq((1, 3, 8, 8), dtype).qdq(0.03).conv(3, 10).qdq(0.9)
    graph.node("Slice", *(graph.constant(value, np.int64) for value in bounds.values()))
    step = bounds.get("steps", [1])[0]
    channels = len(range(10)[slice(bounds["starts"][0], bounds["ends"][0], step)])
    channels = channels if bounds["axes"][0] in (1, -3) else 10
    graph.conv(channels, 4, 2).qdq(0.8)
    tiny = PRESETS["tiny-extended"]
    assert placed(graph.model(), tiny)["Slice"] == "machine"
    with Session(graph.model(), tiny) as session:
        assert session.check({"x": graph.images(2)}).ok


def test_parts_of_a_split_are_read_where_they_are_stored(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(0.03).conv(3, 10).qdq(0.9)
    sizes, given = graph.constant([4, 6], np.int64), graph.value
    graph.nodes.append(onnx.helper.make_node("Split", [given, sizes], ["a", "b"], axis=1))
    graph.value = "a"
    graph.conv(4, 6, 1).qdq(0.8).node("Add", "b").qdq(0.9)
    assert_exact(graph, {"QLinearConv", "QLinearConv+Add"}, "tiny-extended")


def test_integers_of_16_bits_and_volumes_are_the_hosts(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8), np.int16).qdq(2**-5)
    graph.node("Conv", graph.weights(4, 3, 1, 1)).qdq(2**-3)
    reason = "Conv is in float: its input is of int16, not int8 or uint8"
    assert placed(graph.model(21)) == {"Conv": reason}
    graph = qdq((1, 3, 4, 4, 4)).qdq(2**-5)
    graph.node("Conv", graph.weights(4, 3, 1, 1, 1)).qdq(2**-3)
    assert placed(graph.model()) == {"Conv": "its images have 3 dimensions; the machine's have two"}


def test_relu_of_16_bits_stays_in_float(qdq: Make) -> None:
    """ONNX Runtime has no Clip of int16."""
    graph = qdq((1, 12), np.int16).qdq(2**-5).node("Relu").qdq(2**-5)
    with Session(graph.model(21), EXTENDED) as session:
        assert session.check({"x": graph.images()}).ok


def test_the_host_brings_what_the_machine_has_into_the_shape_of_a_product(qdq: Make) -> None:
    """Convolutions have channels after the batch, matrix products have them last."""
    graph = qdq((1, 3, 5, 6)).qdq(0.03)
    graph.node("Conv", graph.weights(4, 3, 3, 2)).qdq(0.9)
    graph.node("MatMul", graph.weights(5, 7)).qdq(0.8)
    graph.node("Conv", graph.weights(2, 4, 1, 1)).qdq(0.7)
    assert_exact(graph, {"QLinearConv", "QLinearMatMul"}, "tiny-extended")


def test_sums_that_could_wrap_are_the_hosts(qdq: Make) -> None:
    narrow = replace(PRESETS["tiny"], log_acc_width=4, log_acc_buff_size=10)
    assert placed(convolution(qdq).model(), narrow)["QLinearConv"] == (
        "its sums can exceed 16-bit accumulators"
    )


def test_integers_wider_than_the_machines_are_the_hosts(qdq: Make) -> None:
    assert placed(convolution(qdq).model(), PRESETS["int4"])["QLinearConv"] == (
        "integers of 8 bits do not fit the 4-bit inputs of this machine"
    )


def test_pooling_with_padding_needs_values_that_are_not_negative(qdq: Make) -> None:
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).node("MaxPool", **pads)
    reason = "it pads with the least integer, and the machine with zeros"
    assert placed(graph.qdq(2**-5).model()) == {"MaxPool": reason}
    extended = {"MaxPool": "machine"}
    assert placed(graph.model(), PRESETS["pynq-extended"]) == extended
    graph = convolution(qdq).node("MaxPool", **pads).node("MaxPool", **pads)
    assert placed(graph.qdq(2**-3).model()) == {"QLinearConv": "machine", "MaxPool": "machine"}


@pytest.mark.parametrize("strides", [[1, 1], [2, 2]])
def test_pooling_over_gaps_is_exact(qdq: Make, strides: list[int]) -> None:
    pool = {"kernel_shape": [2, 2], "dilations": [2, 2], "strides": strides}
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).qdq(2**-3).node("MaxPool", **pool).qdq(2**-3)
    assert_exact(graph, {"QLinearConv", "MaxPool"})


def test_weights_for_other_channels_are_refused(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(4, 5).qdq(2**-3)
    with pytest.raises(ModelError, match="conv.*: its weights are for 4 channels, its input .* 3"):
        placed(graph.model())


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}])
def test_automatic_padding_is_what_onnx_runtime_makes_of_it(qdq: Make, attributes: Any) -> None:
    graph = qdq((1, 3, 8, 7)).qdq(2**-5)
    weight = graph.weights(5, 3, 4, 2)
    graph.node("Conv", weight, graph.bias(5, 2**-11), strides=[2, 1], **attributes).qdq(2**-3)
    assert_exact(graph, {"QLinearConv"})


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize(
    ("rows", "operators"), [(2, {"QLinearConv+MaxPool"}), (3, {"QLinearConv", "MaxPool"})]
)
def test_pooling_with_a_last_window_beyond_the_edge_is_exact(
    qdq: Make, size: int, rows: int, operators: set[str]
) -> None:
    graph = qdq((1, 3, size, size)).qdq(2**-5).conv(3, 5).node("Relu").qdq(2**-3)
    graph.node("MaxPool", kernel_shape=[rows, 3], strides=[2, 2], ceil_mode=1).qdq(2**-3)
    assert_exact(graph, operators)


def test_a_network_that_goes_back_and_forth_is_exact(qdq: Make) -> None:
    """Machine, host, machine; the first result has a second consumer."""
    graph = qdq(("n", 3, 8, 8)).qdq(2**-5).conv(3, 5, pads=[1, 1, 1, 1]).qdq(2**-3)
    branch = graph.value
    graph.node("Sigmoid").qdq(0.007).conv(5, 5, 1).node("Relu").qdq(2**-4)
    graph.node("Add", branch).qdq(2**-3).conv(5, 6).qdq(2**-1)
    graph.node("Flatten")
    graph.node("Gemm", graph.weights(9, 216), transB=1).qdq(2**3)
    assert_exact(graph, {"QLinearConv", "Add"})


def assert_exact(
    graph: Any, on_machine: Collection[str] = frozenset({"QLinearConv"}), config: str = "tiny"
) -> None:
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images(2)})
        placed = {layer.operator for layer in session.layers if layer.placed_on == "machine"}
    assert report.ok
    assert np.unique(report.outputs["y"]).size > 3
    assert placed == on_machine


def test_pooling_of_negative_values_is_exact_where_padding_has_a_value(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 7)).qdq(2**-5).conv(3, 5).qdq(2**-3)
    graph.node("MaxPool", kernel_shape=[3, 2], pads=[2, 1, 1, 0]).qdq(2**-3)
    assert_exact(graph, {"QLinearConv", "MaxPool"}, "tiny-extended")


def test_a_reshape_that_moves_elements_between_channels_is_the_hosts(qdq: Make) -> None:
    graph = convolution(qdq)
    graph.node("Reshape", graph.constant([1, 9, 5, 4], np.int64))
    model = graph.qdq(2**-3).model()
    assert placed(model)["Reshape"] == "it changes the layout"


def test_a_flattened_image_is_another_name_for_it(qdq: Make) -> None:
    graph = convolution(qdq).node("Flatten")
    graph.node("Gemm", graph.weights(9, 180), transB=1).qdq(2**-1)
    network = canonical(load_network(graph.model(), 1))
    placement = place(network, PRESETS["pynq"])
    assert not [
        item
        for item in placement.items
        if isinstance(item, HostNode) and item.node.operator in ("Flatten", "Reshape")
    ]
    (dense,) = [item for item in placement.items if isinstance(item, Layer) and item.macs == 1620]
    assert dense.sources[0].image == (1, 5, 6, 6)


@pytest.mark.parametrize("config", ["tiny", "pynq", "batch2", "tiny-extended"])
@pytest.mark.parametrize("convolved", [False, True])
def test_a_layer_whose_results_are_all_the_same_reads_nothing(
    qdq: Make, config: str, convolved: bool
) -> None:
    """For example the difference of a tensor and itself: no instruction uses the operand."""
    graph = qdq((2, 8, 4, 4)).qdq(2**-5)
    if convolved:
        graph.conv(8, 8, 1).node("Clip", *(graph.constant(1, np.float32) for _ in range(2)))
    else:
        graph.node("Sub", graph.value)
    graph.qdq(2**-3)
    with Session(graph.model(), config) as session:
        report = session.check({"x": graph.images(2)})
        layers = {layer.operator: layer.placed_on for layer in session.layers}
    assert report.ok
    assert layers["QLinearConv" if convolved else "Sub"] == "machine"
