"""Files without 8-bit activations are refused, with their kind and how to convert them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile, TfliteTensor
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.runtime.network.model_error import ModelError

HOW = (
    ": convert the model with full integer quantization to int8 (TFLITE_BUILTINS_INT8, with a "
    "representative dataset)"
)


def refusal(file: TfliteFile) -> str:
    with pytest.raises(ModelError) as caught:
        read_model(file.bytes())
    return str(caught.value)


def product(of_x: str, of_weights: str) -> TfliteFile:
    """A matrix product of activations and weights of these types."""
    file = TfliteFile()
    x = activation(file, (1, 4), of_x, is_input=True)
    scale: Any = None if of_weights == "float32" else 0.5
    weights = file.constant(np.ones((3, 4), of_weights), scale)
    y = activation(file, (1, 3), of_x)
    file.operator("FULLY_CONNECTED", [x, weights], [y])
    file.output(y)
    return file


def activation(
    file: TfliteFile, shape: tuple[int, ...], dtype: str, is_input: bool = False
) -> TfliteTensor:
    make = file.input if is_input else file.tensor
    return make(shape, None if dtype == "float32" else 0.5, dtype=dtype)


def test_a_float_model_is_named() -> None:
    assert refusal(product("float32", "float32")) == f"the model: it is a float model{HOW}"


def test_weights_of_float16_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from amaranth_vta.networks import tflite_file

    monkeypatch.setitem(tflite_file._TYPES, "float16", 1)
    file = TfliteFile()
    x = file.input((1, 4), dtype="float32")
    weights = file.tensor((3, 4), dtype="float32")
    file.operator("DEQUANTIZE", [file.constant(np.ones((3, 4), np.float16))], [weights])
    y = file.tensor((1, 3), dtype="float32")
    file.operator("FULLY_CONNECTED", [x, weights], [y])
    file.output(y)
    wanted = f"the model: it is a float model, with weights of float16{HOW}"
    assert refusal(file) == wanted


def test_a_model_of_quantized_weights_only_is_named() -> None:
    assert refusal(product("float32", "int8")) == (
        "the model: it is quantized in its weights only (dynamic-range quantization), and computes "
        f"in float{HOW}"
    )


def test_activations_of_16_bits_are_named() -> None:
    wanted = f"the model: its activations are integers of 16 bits{HOW}"
    assert refusal(product("int16", "int8")) == wanted


def test_a_float_operator_among_integers_is_named() -> None:
    file = TfliteFile()
    x = file.input((1, 4), 0.5)
    parts = [file.tensor((1, 4), dtype="float32", name=name) for name in ("a", "b")]
    file.operator("DEQUANTIZE", [x], [parts[0]])
    file.operator("LOGISTIC", [parts[0]], [parts[1]])
    z = file.tensor((1, 4), 0.5)
    file.operator("QUANTIZE", [parts[1]], [z])
    y = file.tensor((1, 4), 0.5)
    file.operator("RELU", [z], [y])
    file.output(y)
    assert refusal(file) == f"the model: logistic_1 works on float32 (a){HOW}"


def test_an_8_bit_tensor_without_a_scale_is_named() -> None:
    file = TfliteFile()
    x, y = file.input((1, 4), name="x"), file.tensor((1, 4), 0.5)
    file.operator("LOGISTIC", [x], [y])
    file.output(y)
    assert refusal(file) == "the model: logistic_0 works on x, which has no scale"


def test_float_inputs_and_outputs_of_an_integer_network_are_read() -> None:
    file = TfliteFile()
    x, y = (file.input((1, 4), dtype="float32"), file.tensor((1, 4), dtype="float32"))
    q, r = file.tensor((1, 4), 0.5), file.tensor((1, 4), 0.25)
    file.operator("QUANTIZE", [x], [q])
    file.operator("RELU6", [q], [r])
    file.operator("DEQUANTIZE", [r], [y])
    file.output(y)
    assert len(read_model(file.bytes()).graph.node) == 3
