"""A damaged or unsupported TensorFlow Lite file is refused with one sentence that says why."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.load.tflite import file as module
from amaranth_vta.sw.compiler.graph.load.tflite.file import packed, read_file
from amaranth_vta.sw.runtime.array_file import FileLimitError
from amaranth_vta.sw.runtime.network.model_error import ModelError
from tests.support.damaged_tflite import any_word, small_tflite

Change = Callable[[Any, Any], None]
SMALL = small_tflite(keeps_state=False)


def product() -> bytes:
    """One matrix product."""
    file = TfliteFile()
    x, weights = file.input((1, 4), 0.5, name="x"), file.constant(np.ones((3, 4), np.int8), 0.5)
    y = file.tensor((1, 3), 1.0, name="y")
    file.operator("FULLY_CONNECTED", [x, weights], [y])
    file.output(y)
    return file.bytes()


def changed(change: Change, data: bytes = b"") -> bytes:
    """A file after ``change`` of its model and main subgraph."""
    model = schema.ModelT.InitFromPackedBuf(data or product(), 0)
    change(model, model.subgraphs[0])
    return packed(model)


def refusal(data: bytes) -> str:
    with pytest.raises(ModelError) as caught:
        read_model(data)
    return str(caught.value)


def test_a_sound_file_has_the_tensors_and_operators_that_were_written() -> None:
    (graph,) = read_file(product()).subgraphs
    (operator,) = graph.operators
    x, weights, y = graph.tensors
    assert (operator.kind, operator.inputs, operator.outputs) == ("FULLY_CONNECTED", (0, 1), (2,))
    assert (x.name, x.shape, float(x.scale), x.zero_point) == ("x", (1, 4), 0.5, 0)
    assert x.data is None
    assert weights.data is not None
    np.testing.assert_array_equal(weights.data, np.ones((3, 4), np.int8))
    assert (y.name, y.dtype.name) == ("y", "int8")


def test_a_file_that_is_cut_anywhere_is_refused() -> None:
    random = Random(1)
    for length in (8, 9, *(random.randrange(8, len(SMALL) - 1) for _ in range(60))):
        assert refusal(SMALL[:length]).startswith("the model")


def test_wrong_offsets_and_lengths_raise_nothing_else() -> None:
    for seed in range(120):
        try:
            read_file(any_word(Random(seed), SMALL))
        except (ModelError, FileLimitError):
            continue


def tensor(name: str, value: Any) -> Change:
    """Set a field of the tensor y."""
    return lambda _, graph: setattr(graph.tensors[2], name, value)


def quantization(name: str, value: Any) -> Change:
    return lambda _, graph: setattr(graph.tensors[2].quantization, name, value)


def operator(name: str, value: Any) -> Change:
    return lambda _, graph: setattr(graph.operators[0], name, value)


def code(value: int) -> Change:
    return lambda model, _: setattr(model.operatorCodes[0], "builtinCode", value)


CHANGES: dict[str, Change] = {
    "the operator is not supported: HASHTABLE_SIZE": code(schema.BuiltinOperator.HASHTABLE_SIZE),
    "operator 0 is of a kind that the schema does not have": code(9999),
    "operator 0 has kind 7, which is missing": operator("opcodeIndex", 7),
    "operator 0 (FULLY_CONNECTED) has tensor 77, which is missing": operator("inputs", [0, 77]),
    "operator 0 (FULLY_CONNECTED) has tensor -2, which is missing": operator("inputs", [0, -2]),
    "fully_connected_0: input 1 is not a constant": operator("inputs", [0]),
    "an operator lacks a result": operator("outputs", [-1]),
    "the network has tensor 9, which is missing": lambda _, graph: setattr(graph, "outputs", [9]),
    "output x is an input, or is listed twice": lambda _, graph: setattr(graph, "outputs", [0]),
    "output y is an input, or is listed twice": lambda _, graph: setattr(graph, "outputs", [2, 2]),
    "the TensorFlow Lite file has no network": lambda model, _: setattr(model, "subgraphs", []),
    "tensor y has a negative size": tensor("shape", [1, -3]),
    "tensor y has no elements": tensor("shape", [1, 0]),
    "tensor y has more than 8 axes": tensor("shape", [1] * 9),
    "tensor y has the type complex64, which is not supported": tensor("type", 8),
    "tensor y has the type 99, which is not supported": tensor("type", 99),
    "tensor y has buffer 50, which is missing": tensor("buffer", 50),
    "tensor y has 12 bytes of data for the shape (1, 3)": tensor("buffer", 1),
    "tensor y is sparse or of several types, not one array": tensor(
        "sparsity", schema.SparsityParametersT()
    ),
    "tensor y has its data outside of the tables: not supported": tensor("externalBuffer", 1),
    "tensor y has a zero point that is not of int8": quantization("zeroPoint", [128]),
    "tensor y of shape (1, 3) has 2 scales along 0": quantization("scale", [1.0, 2.0]),
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_each_damage_has_a_sentence(sentence: str) -> None:
    assert refusal(changed(CHANGES[sentence])) == f"the model: {sentence}"


@pytest.mark.parametrize("kind", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"filter_height": (1 << 31) - 1}, "has a window of 2,147,483,647 pixels for 4"),
        ({"filter_height": 0}, "has a window or a stride that is not positive"),
        ({"stride_w": -1}, "has a window or a stride that is not positive"),
    ],
)
def test_a_window_that_no_image_has_is_refused(
    kind: str, sizes: dict[str, int], sentence: str
) -> None:
    file = TfliteFile()
    x, y = (make((1, 4, 4, 2), 0.5) for make in (file.input, file.tensor))
    names = ("filter_height", "filter_width", "stride_h", "stride_w")
    file.operator(kind, [x], [y], padding="SAME", **(dict.fromkeys(names, 1) | sizes))
    file.output(y)
    assert refusal(file.bytes()).endswith(sentence)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_positive_and_finite(scale: float) -> None:
    data = changed(quantization("scale", [scale]))
    assert refusal(data).endswith("tensor y has a scale that is not positive and finite")


def test_all_operators_that_are_not_supported_are_named_once() -> None:
    file = TfliteFile()
    x = file.input((1, 4), 0.5)
    for operator in ("FLOOR", "COS", "FLOOR"):
        y = file.tensor((1, 4), 0.5)
        file.operator(operator, [x], [y])
    file.output(y)
    assert refusal(file.bytes()).endswith("the operators are not supported: FLOOR, COS")


def test_a_custom_operator_is_named() -> None:
    def custom(model: Any, _: Any) -> None:
        code = model.operatorCodes[0]
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.customCode = "AudioSpectrogram"

    assert refusal(changed(custom)).endswith("operator 0 is a custom operator, AudioSpectrogram")


def test_operands_that_do_not_fit_together_are_a_damage() -> None:
    file = TfliteFile()
    x, y = file.input((1, 4), 0.5), file.tensor((1, 4), 0.5)
    file.operator("ADD", [x], [y])
    file.output(y)
    assert "add_0 is damaged: its operands, shapes and options do" in refusal(file.bytes())


def test_a_tensor_that_no_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", "1M")
    data = changed(tensor("shape", [1 << 15, 1 << 15]))
    with pytest.raises(FileLimitError, match="tensor y takes 1,073,741,824 bytes"):
        read_model(data)


def test_tables_that_share_their_bytes_do_not_multiply() -> None:
    """Each of 2,000 subgraphs is the same table, whose 2,000 tensors are one."""
    count = 2000
    builder = flatbuffers.Builder(1024)
    schema.TensorStart(builder)
    tensor = schema.TensorEnd(builder)
    schema.SubGraphStartTensorsVector(builder, count)
    for _ in range(count):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensors)
    graph = schema.SubGraphEnd(builder)
    schema.ModelStartSubgraphsVector(builder, count)
    for _ in range(count):
        builder.PrependUOffsetTRelative(graph)
    graphs = builder.EndVector()
    schema.ModelStart(builder)
    schema.ModelAddSubgraphs(builder, graphs)
    builder.Finish(schema.ModelEnd(builder), b"TFL3")
    data = bytes(builder.Output())
    assert len(data) < 1 << 15
    assert refusal(data).endswith("is damaged: its tables share their bytes")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ModelError("install the extra tflite")

    monkeypatch.setattr(module, "schema", missing)
    assert refusal(product()).endswith("install the extra tflite")
