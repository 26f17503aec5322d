"""Tables are the reference kernels' results, and no file stops the process in a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.load.tflite import ReferenceModel
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.model_error import ModelError


def one(operator: str, scales: tuple[float, ...], **options: Any) -> bytes:
    """A file of an operator on inputs of all ``scales`` but the last, which is the result's."""
    file = TfliteFile()
    inputs = [
        file.input((1, 4), scale, name=f"x{place}") for place, scale in enumerate(scales[:-1])
    ]
    y = file.tensor((1, 4), scales[-1], name="y")
    file.operator(operator, inputs, [y], **options)
    file.output(y)
    return file.bytes()


def table_of(data: bytes) -> Any:
    network = Network.from_onnx(read_model(data))
    (name,) = (name for name in network.constants if name.endswith("_table"))
    return network.constants[name]


def test_a_table_has_a_result_for_each_value() -> None:
    wanted = np.maximum(np.arange(-128, 128), 0)
    np.testing.assert_array_equal(table_of(one("RELU", (0.5, 0.5))), wanted)


def test_a_table_of_two_operands_has_a_row_for_each_value_of_the_first() -> None:
    values = np.arange(-128, 128)
    wanted = np.clip(values[:, None] - values, -128, 127)
    np.testing.assert_array_equal(table_of(one("SUB", (0.5, 0.5, 0.5))), wanted)


def test_constants_that_differ_by_channel_have_a_table_for_each() -> None:
    file = TfliteFile()
    x, y = file.input((1, 2, 2, 3), 0.5), file.tensor((1, 2, 2, 3), 0.5)
    file.operator("ADD", [x, file.constant(np.array([0, 1, -2], np.int8), 0.5)], [y])
    file.output(y)
    values = np.arange(-128, 128)
    wanted = np.clip(values + np.array([[0], [1], [-2]]), -128, 127)
    np.testing.assert_array_equal(table_of(file.bytes()), wanted)


@pytest.mark.parametrize("operator", ["ADD", "SUB", "MUL"])
def test_a_scale_that_would_stop_the_process_is_refused(operator: str) -> None:
    with pytest.raises(ModelError, match="the scale of x0 is 524,288 times, or more, that of y"):
        read_model(one(operator, (0.5, 0.5, 2.0**-20)))
    assert len(read_model(one(operator, (0.5, 0.5, 2.0**-18))).graph.node) == 1


@pytest.mark.parametrize("alpha", [float("nan"), float("inf")])
def test_a_slope_that_is_not_finite_is_refused(alpha: float) -> None:
    with pytest.raises(ModelError, match="leaky_relu_0 has a slope that is not finite"):
        read_model(one("LEAKY_RELU", (0.5, 0.5), alpha=alpha))


@pytest.mark.parametrize("beta", [0.0, -1.0, 1e-9, float("nan"), float("inf")])
def test_a_softmax_that_would_stop_the_process_is_refused(beta: float) -> None:
    with pytest.raises(ModelError, match="softmax_0 has a scale or a beta that is too small"):
        read_model(one("SOFTMAX", (0.5, 1 / 256), beta=beta))


def test_a_model_that_the_kernels_refuse_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match="TensorFlow Lite's kernels do not run the model: "):
        ReferenceModel(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(ModelError, match="joins tensors of different scales"):
        read_model(one("CONCATENATION", (0.5, 0.25, 0.5), axis=0))


def test_a_version_that_no_kernel_has_is_an_error_of_the_model() -> None:
    with pytest.raises(ModelError, match="Didn't find op for builtin opcode 'RELU' version '255'"):
        read_model(one("RELU", (0.5, 0.5), version=255))
