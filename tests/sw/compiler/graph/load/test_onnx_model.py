"""An invalid model is refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.load.input_shapes import (
    open_batch,
    sizes_of,
    with_dimensions,
)
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network, read_model
from amaranth_vta.sw.compiler.graph.load.opsets import conversion
from amaranth_vta.sw.runtime.network.model_error import ModelError

Make = Callable[..., Any]
DIGITS = Path(__file__).parents[5] / "examples/digits/digits.onnx"


def test_an_open_first_dimension_becomes_the_batch() -> None:
    model = read_model(DIGITS)
    assert open_batch(model)
    network = load_network(model, 4)
    assert network.types["image"].shape == (4, 1, 8, 8)
    assert network.types["logits"].shape == (4, 10)


def test_a_model_can_be_given_as_bytes_and_as_an_object() -> None:
    model = read_model(DIGITS.read_bytes())
    assert read_model(model) is model


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.onnx cannot be read: No such file"):
        read_model(tmp_path / "none.onnx")


@pytest.mark.parametrize("data", [b"hello", b"\x00" * 100, DIGITS.read_bytes()[:1000]])
def test_what_is_not_a_model_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"bad\.onnx is (not an ONNX model|damaged)"):
        read_model(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(ModelError, match="is not an ONNX model: it is empty"):
        read_model(path)


@pytest.mark.parametrize("opset", [6, 99])
def test_an_opset_that_is_not_supported_is_refused(qdq: Make, opset: int) -> None:
    model = qdq((1, 4)).qdq(2**-5).model(opset)
    with pytest.raises(ModelError, match=rf"the model uses opset {opset} of ONNX; 7 to "):
        read_model(model)


@pytest.mark.parametrize("opset", [10, 11, 12, 27, 28])
def test_an_opset_that_the_compiler_does_not_know_is_converted(qdq: Make, opset: int) -> None:
    known = 13 if opset < 13 else 26
    graph = qdq((1, 3, 6, 6)).qdq(2**-5)
    graph.nodes.append(helper.make_node("Conv", [graph.value, graph.weights(4, 3, 3, 3)], ["c"]))
    graph.nodes.append(helper.make_node("Squeeze", ["c"], ["s"], axes=[0]))
    if opset > 12:
        graph.nodes[-1] = helper.make_node("Squeeze", ["c", graph.constant([0], np.int64)], ["s"])
    graph.value = "s"
    model = read_model(graph.qdq(2**-3).model(opset))
    assert conversion(model) == (f"The model was converted from opset {opset} of ONNX to {known}.")
    with Session(model, "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert session.macs == 4 * 4 * 4 * 27


def test_quantization_of_com_microsoft_is_that_of_onnx(qdq: Make) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(2**-5).conv(3, 4).qdq(2**-3)
    model = graph.model()
    for node in model.graph.node:
        if node.op_type.endswith("quantizeLinear") or node.op_type == "QuantizeLinear":
            node.domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = load_network(read_model(model), 1)
    assert {node.domain for node in network.nodes if node.operator == "QuantizeLinear"} == {""}


@pytest.mark.parametrize(
    ("operator", "sentence"),
    [
        ("Convolve", r"has an operator that ONNX does not define: Convolve \(node convolve0\)$"),
        ("Gelu", r"uses opset 17 of ONNX, and Gelu \(node gelu0\) came to ONNX with opset 20$"),
        (
            "Upsample",
            r"uses opset 17 of ONNX, which does not have Upsample \(node upsample0\) any more: "
            "it ended with opset 10$",
        ),
    ],
)
def test_an_operator_that_onnx_does_not_have_is_refused_by_name(
    qdq: Make, operator: str, sentence: str
) -> None:
    model = qdq((1, 4)).qdq(1).model(17)
    model.graph.node[-1].op_type, model.graph.node[-1].name = operator, f"{operator.lower()}0"
    with pytest.raises(ModelError, match=f"^the model {sentence}"):
        read_model(model)


def test_an_operator_that_only_onnx_runtime_has_in_an_old_opset_brings_a_newer_one(
    qdq: Make,
) -> None:
    graph = qdq((1, 16, 4, 4)).qdq(2**-5).conv(16, 16).qdq(2**-3)
    graph = graph.node("LayerNormalization", graph.constant(np.ones(2, np.float32)))
    model = read_model(graph.model(13))
    assert conversion(model) == "The model was converted from opset 13 of ONNX to 17."
    with Session(model, "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok


def test_com_microsoft_needs_no_version(qdq: Make) -> None:
    graph = qdq((1, 16, 4, 4)).qdq(2**-5).conv(16, 16).qdq(2**-3)
    model = graph.node("Gelu").model()
    model.graph.node[-1].domain = "com.microsoft"
    assert {item.domain for item in read_model(model).opset_import} == {"", "com.microsoft"}


@pytest.mark.parametrize("domain", ["com.microsoft", "my.domain"])
def test_an_operator_that_nothing_can_run_is_named(qdq: Make, domain: str) -> None:
    model = qdq((1, 16, 4, 4)).qdq(2**-5).node("Bogus").model()
    model.graph.node[-1].domain = domain
    model.opset_import.append(helper.make_opsetid(domain, 1))
    sentence = rf"ONNX Runtime has the operator Bogus of domain {domain} \(node bogus\d\), so that"
    with pytest.raises(ModelError, match=sentence):
        Session(model, "tiny-extended")


def test_outputs_that_are_neither_numbers_nor_sequences_are_refused(qdq: Make) -> None:
    model = qdq((1, 16, 4, 4)).qdq(2**-5).node("Optional").model()
    (output,) = model.graph.output
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    output.type.CopyFrom(helper.make_optional_type_proto(tensor))
    message = f"^output {output.name} is neither a tensor nor a sequence of tensors$"
    with pytest.raises(ModelError, match=message):
        read_model(model)
    text = qdq((1, 16, 4, 4)).qdq(2**-5).model()
    text.graph.initializer.append(numpy_helper.from_array(np.array(["a"], object), "name"))
    text.graph.output.append(helper.make_tensor_value_info("name", TensorProto.STRING, [1]))
    with pytest.raises(ModelError, match="^output name is a constant of text; outputs are numbers"):
        Session(text, "tiny-extended")


def test_constants_that_are_inputs_as_well_and_inputs_that_are_outputs_are_known(
    qdq: Make,
) -> None:
    graph = qdq((1, 16, 4, 4)).qdq(2**-5).conv(16, 16).qdq(2**-3)
    model = graph.model(13)
    model.ir_version = 3
    for item in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        )
    model.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 4, 4)))
    with Session(model, "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok


def test_a_tensor_without_elements_is_the_host_s(qdq: Make) -> None:
    graph = qdq((1, 16, 4, 4)).qdq(2**-5).conv(16, 16).qdq(2**-3)
    none = [graph.constant([item], np.int64) for item in (0, 0, 1)]
    graph = graph.node("Slice", *none).qdq(2**-3)
    with Session(graph.model(), "tiny-extended") as session:
        assert session.check({"x": graph.images()}).ok
        assert "has no elements" in session.plan_table(explain=True)


def test_a_node_that_reads_what_is_not_there_is_refused(qdq: Make) -> None:
    with pytest.raises(ModelError, match=r"the model is damaged: .*ghost"):
        read_model(qdq((1, 4)).node("Add", "ghost").model())


def test_an_open_size_of_images_is_refused(qdq: Make) -> None:
    model = qdq((1, 3, "height", 8)).qdq(2**-5).model()
    with pytest.raises(
        ModelError, match=r"input x: dimension 2 \(height\) is open; give its size: --dim height="
    ):
        load_network(model, 1)


def test_named_dimensions_get_sizes(qdq: Make) -> None:
    model = qdq(("batch", 3, "height", 8)).qdq(2**-5).model()
    sized = with_dimensions(model, {"height": 4})
    assert open_batch(sized)
    assert load_network(sized, 2).types["x"].shape == (2, 3, 4, 8)
    assert sizes_of(model, {"x": (1, 3, 6, 8)}) == {"height": 6}
    with pytest.raises(ModelError, match="no input has an open dimension width; open dimensions:"):
        with_dimensions(model, {"width": 4})
    with pytest.raises(ModelError, match="the dimension height cannot be -1"):
        with_dimensions(model, {"height": -1})


def test_inputs_that_disagree_on_a_dimension_are_refused() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, length] x, float[n, length] z) => (float[n, length] y) { y = Add(x, z) }
    """)
    with pytest.raises(ModelError, match="the dimension length is 4 in the input x and 5 in z"):
        sizes_of(model, {"x": (1, 4), "z": (1, 5)})


def test_a_size_that_is_negative_is_open(qdq: Make) -> None:
    model = qdq((-1, 3, 8, 8)).qdq(2**-5).model()
    assert open_batch(model)
    assert load_network(read_model(model), 2).types["x"].shape == (2, 3, 8, 8)


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_the_graph_computes_are_known(batch: int) -> None:
    """PyTorch's exporter computes shapes from the dynamic batch, some of them in several steps."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[n, 6, 4] x) => (float[n, a, b] y)
        <int64 zero = {0}, int64[1] first = {0}, int64[2] rest = {3, 8}> {
            sizes = Shape(x)
            images = Gather(sizes, zero)
            count = Unsqueeze(images, first)
            wanted = Concat <axis = 0> (count, rest)
            reshaped = Reshape(x, wanted)
            others = Shape <start = 1> (reshaped)
            last = Gather(others, zero)
            along = Unsqueeze(last, first)
            swapped = Concat <axis = 0> (count, along, along)
            other = ConstantOfShape(swapped)
            y = MatMul(other, reshaped)
        }
    """)
    network = load_network(read_model(model), batch)
    assert [node.operator for node in network.nodes] == ["Reshape", "MatMul"]
    assert network.types["y"].shape == (batch, 3, 8)


def test_an_input_without_a_shape_is_refused(qdq: Make) -> None:
    model = qdq((1, 3)).qdq(2**-5).model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="input x has no shape"):
        load_network(model, 1)


def test_shapes_that_contradict_each_other_are_refused(qdq: Make) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5)
    model = graph.node("Add", graph.weights(5)).model()
    with pytest.raises(ModelError, match=r"the model's shapes contradict each other: .*add"):
        load_network(model, 1)


def test_weights_in_a_file_that_is_missing_are_reported(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    path = tmp_path / "model.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(
        ModelError,
        match="keeps tensor w in data.bin, and .*data.bin cannot be read",
    ):
        read_model(path)


def test_constants_need_not_be_inputs_whatever_the_format(qdq: Make) -> None:
    """Quantizers add constants that are not inputs to files of a format version that requires
    it."""
    model = qdq((1, 4)).qdq(2**-5).model()
    model.ir_version = 3
    assert read_model(model).ir_version == 4
    assert model.ir_version == 3


def test_an_output_whose_shape_comes_of_constants_is_known_once_they_are_folded(qdq: Make) -> None:
    graph = qdq((1, 1, 4)).qdq(2**-5)
    graph.nodes.append(helper.make_node("Identity", [graph.constant([1], np.int64)], ["axes"]))
    model = graph.node("Squeeze", "axes").model()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert load_network(read_model(model), 1).types["y"].shape == (1, 4)


@pytest.mark.parametrize("shape", [(1, 3, 5, 5), (1, 3, 5)])
@pytest.mark.parametrize(("size", "pad"), [(1, 0), (2, 1), (2, 0)])
def test_poolings_have_no_windows_behind_the_image(
    qdq: Make, shape: tuple[int, ...], size: int, pad: int
) -> None:
    """Shape inference counts such windows where sizes are rounded up."""
    axes = len(shape) - 2
    graph = qdq(shape).qdq(0.03)
    graph.node("Conv", graph.weights(4, 3, *[1] * axes)).qdq(0.4)
    pads = [pad] * axes + [0] * axes
    window = {"kernel_shape": [size] * axes, "strides": [3] * axes, "pads": pads}
    graph.node("MaxPool", **window, ceil_mode=1).qdq(0.4)
    with Session(graph.model(), "tiny-extended") as session:
        report = session.check({"x": graph.images()})
    assert report.ok
    assert report.outputs["y"].shape[2:] == (2,) * axes
