"""Operators of the host in exported C, against ONNX Runtime, on the functional model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.export.export_error import ExportError
from amaranth_vta.export.network import export
from amaranth_vta.networks import generate_tiny
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sw.runtime.network.network_program import RunHost
from tests.support.exported_c import exported

IMAGES, FEATURES, CLASSES = 3, 6, 5
SCALES = (0.0625, 0.125)
# Bounds of the float32 Softmax: of C, and of ONNX Runtime's own error.
SOFTMAX_BOUND = 2.0**-21


def network(
    nodes: list[onnx.NodeProto], outputs: dict[str, Any], opset: int = 18, shape: Any = None
) -> onnx.ModelProto:
    """A quantized matrix product ``dense``, float32 (IMAGES, CLASSES), followed by ``nodes``."""
    rng = np.random.default_rng(7)
    weights = rng.integers(-128, 128, (FEATURES, CLASSES)).astype(np.int8)
    constants = {
        "in_scale": np.float32(SCALES[0]),
        "in_zero": np.int8(3),
        "weights": weights,
        "w_scale": np.float32(2.0**-6),
        "w_zero": np.int8(0),
        "out_scale": np.float32(SCALES[1]),
        "out_zero": np.int8(-5),
        "c_scale": np.linspace(0.1, 0.2, CLASSES).astype(np.float32),
        "c_zero": np.arange(-2, CLASSES - 2).astype(np.int8),
        "table": rng.integers(-100, 100, (2, CLASSES, 3)).astype(np.float32),
        "axes": np.array([0], np.int64),
        "first": np.array([1, -4], np.int64),
        "last": np.array([99, -1], np.int64),
        "both": np.array([1, 0], np.int64),
        "ahead": np.array([2, 1], np.int64),
        "back": np.array([-1, 1], np.int64),
        "flat": np.array([-1], np.int64),
    }
    product = [
        ("QuantizeLinear", ["x", "in_scale", "in_zero"], "xq"),
        ("DequantizeLinear", ["xq", "in_scale", "in_zero"], "xd"),
        ("DequantizeLinear", ["weights", "w_scale", "w_zero"], "wd"),
        ("MatMul", ["xd", "wd"], "product"),
        ("QuantizeLinear", ["product", "out_scale", "out_zero"], "pq"),
        ("DequantizeLinear", ["pq", "out_scale", "out_zero"], "dense"),
    ]
    made = [helper.make_node(kind, given, [result], result) for kind, given, result in product]
    graph = helper.make_graph(
        [*made, *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape or [IMAGES, FEATURES])],
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), None
            )
            for name, kind in outputs.items()
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def ties() -> np.ndarray:
    """Inputs of which half lie between two steps of the quantization, and some saturate."""
    rng = np.random.default_rng(1)
    values = rng.integers(-400, 400, (IMAGES, FEATURES)) / 2 * SCALES[0]
    return np.asarray(values, np.float32)


def results(model: onnx.ModelProto, folder: Path, x: np.ndarray) -> tuple[list[Any], list[Any]]:
    """The outputs in C and of ONNX Runtime."""
    program, in_c = exported(model.SerializeToString(), "tiny-extended", folder)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return in_c.run([x], [*program.outputs.values()]), session.run(None, {"x": x})


def node(kind: str, result: str, *given: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(given), [result], result, **attributes)


EXACT: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "scores": ([node("Identity", "y", "dense")], {"y": np.float32}),
    "classes": ([node("ArgMax", "y", "dense", axis=1)], {"y": np.int64}),
    "images": ([node("ArgMax", "y", "dense", axis=0, keepdims=0)], {"y": np.int64}),
    "last": ([node("ArgMax", "y", "dense", axis=-1, select_last_index=1)], {"y": np.int64}),
    "of integers": ([node("ArgMax", "y", "pq", axis=1)], {"y": np.int64}),
    "as int32": (
        [node("ArgMax", "i", "dense", axis=1), node("Cast", "y", "i", to=TensorProto.INT32)],
        {"y": np.int32},
    ),
    "transposed": ([node("Transpose", "y", "dense", perm=[1, 0])], {"y": np.float32}),
    "reshaped": (
        [node("Unsqueeze", "u", "dense", "axes"), node("Reshape", "y", "u", "flat")],
        {"y": np.float32},
    ),
    "a part": ([node("Slice", "y", "dense", "first", "last")], {"y": np.float32}),
    "every other": (
        [node("Slice", "y", "dense", "first", "last", "both", "ahead")],
        {"y": np.float32},
    ),
    "selected": (
        [
            node("ArgMax", "i", "dense", axis=1, keepdims=0),
            node("Gather", "y", "table", "i", axis=1),
        ],
        {"y": np.float32},
    ),
    "quantized by channel": (
        [
            node("QuantizeLinear", "q", "dense", "c_scale", "c_zero", axis=1),
            node("DequantizeLinear", "y", "q", "c_scale", "c_zero", axis=-1),
            node("QuantizeLinear", "z", "dense", "c_scale"),
        ],
        {"q": np.int8, "y": np.float32, "z": np.uint8},
    ),
    "two outputs": (
        [node("ArgMax", "y", "dense", axis=1), node("Flatten", "z", "dense")],
        {"z": np.float32, "y": np.int64},
    ),
}


@pytest.mark.parametrize("what", EXACT)
def test_integers_and_moved_elements_are_exact(what: str, tmp_path: Path) -> None:
    for found, wanted in zip(*results(network(*EXACT[what]), tmp_path, ties()), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("axis", "opset"), [(1, 18), (0, 18), (0, 11)])
def test_softmax_has_a_bounded_error(axis: int, opset: int, tmp_path: Path) -> None:
    model = network([node("Softmax", "y", "dense", axis=axis)], {"y": np.float32}, opset)
    (found,), (wanted,) = results(model, tmp_path, ties())
    np.testing.assert_allclose(found, wanted, rtol=2 * SOFTMAX_BOUND, atol=0)
    sums = found.sum() if opset < 13 else found.sum(axis)
    np.testing.assert_allclose(sums, 1, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "config", "message"),
    [
        (
            [node("Tanh", "y", "dense")],
            "tiny-extended",
            r"cannot run Tanh y of the host \(its result is not quantized .*\): change the .*",
        ),
        (
            [node("Erf", "a", "dense"), node("Sin", "y", "a")],
            "tiny-extended",
            r"cannot run Erf a and 1 more operators of the host",
        ),
        (
            [node("Slice", "y", "dense", "last", "first", "both", "back")],
            "tiny-extended",
            r"cannot run Slice y of the host \(it has a negative step\): change the network",
        ),
    ],
)
def test_other_operators_are_named_with_what_to_do(
    nodes: list[onnx.NodeProto], config: str, message: str
) -> None:
    model = network(nodes, {"y": np.float32})
    program = compile_network(model, config).program
    with pytest.raises(ExportError, match=message):
        export(program)


def test_a_missing_extension_is_named() -> None:
    program = compile_network(generate_tiny("mlperf-keywords"), "tiny").program
    with pytest.raises(ExportError, match=r"compile the network for a machine with REQUANTIZE"):
        export(program)


def test_a_damaged_model_is_refused() -> None:
    program = compile_network(network(*EXACT["scores"]), "tiny-extended").program
    steps = tuple(
        replace(step, model=step.model[:-9]) if isinstance(step, RunHost) else step
        for step in program.steps
    )
    with pytest.raises(ExportError, match="is not an ONNX model"):
        export(replace(program, steps=steps))


def test_a_softmax_of_another_version_is_refused() -> None:
    """Of a network whose expansion of SOFTMAX differs in one constant."""
    program = compile_network(generate_tiny("mlperf-keywords"), "pynq-extended").program
    last = program.steps[-1]
    assert isinstance(last, RunHost)
    model = onnx.load_model_from_string(last.model)
    (half,) = [
        item
        for item in model.graph.initializer
        if numpy_helper.to_array(item).tolist() == 1515870810
    ]
    half.CopyFrom(numpy_helper.from_array(np.array(1515870811), half.name))
    changed = replace(last, model=model.SerializeToString())
    with pytest.raises(ExportError, match="Softmax .* was compiled by another version"):
        export(replace(program, steps=(*program.steps[:-1], changed)))
