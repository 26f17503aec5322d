"""Single-operator networks with com.microsoft operators, as ONNX Runtime's quantizer writes them,
with any parameters: on the machine, and every element equal to ONNX Runtime's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
ELEMENTS = {np.int8: TensorProto.INT8, np.uint8: TensorProto.UINT8}


class Operator:
    """One operator of com.microsoft; ``inputs`` name tensors of the network or are constants."""

    def __init__(self, operator: str, dtype: Any, **attributes: Any) -> None:
        self.operator, self.dtype, self.attributes = operator, dtype, attributes
        self.inputs: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: dict[str, Array] = {}

    def tensor(self, *shape: int) -> None:
        name = f"x{len(self.shapes)}"
        self.shapes[name] = shape
        self.inputs.append(name)

    def constant(self, value: Any, dtype: Any) -> None:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        self.inputs.append(name)

    def quantized(self, scale: Any, zero: Any, dtype: Any = None) -> None:
        self.constant(scale, np.float32)
        self.constant(zero, dtype or self.dtype)

    def model(self, shape: tuple[int, ...]) -> onnx.ModelProto:
        node = helper.make_node(
            self.operator, self.inputs, ["y"], domain="com.microsoft", **self.attributes
        )
        element = ELEMENTS[self.dtype]
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, element, s) for n, s in self.shapes.items()],
            [helper.make_tensor_value_info("y", element, shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def assert_exact(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        limits = np.iinfo(self.dtype)
        inputs = {
            name: rng.integers(limits.min, limits.max, size, self.dtype, endpoint=True)
            for name, size in self.shapes.items()
        }
        with Session(self.model(shape), "tiny-extended", "functional") as session:
            report = session.check(inputs)
            host = {layer.operator for layer in session.layers if layer.placed_on == "host"}
            assert host <= {"layout"}
        assert report.histogram == {}
        assert np.unique(report.outputs["y"]).size > 2


def zero_point(rng: np.random.Generator, dtype: Any) -> int:
    limits = np.iinfo(dtype)
    return int(rng.choice(np.array([0, limits.min, rng.integers(limits.min, limits.max)])))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@each_seed(range(8))
def test_quantized_additions_are_exact(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(1, 20)), int(rng.integers(1, 9)), int(rng.integers(1, 9)))
    add, step = Operator("QLinearAdd", dtype), rng.uniform(0.001, 1)
    for _ in range(2):
        add.tensor(*shape)
        add.quantized(step * rng.uniform(0.2, 1.2), zero_point(rng, dtype))
    add.quantized(step, zero_point(rng, dtype))
    add.assert_exact(rng, shape)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("transposed", [0, 1])
@each_seed(range(4))
def test_quantized_gemms_are_exact(seed: int, transposed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    rows, inner, columns = (int(n) for n in rng.integers(1, 30, 3))
    gemm, x, y = Operator("QGemm", dtype, transB=transposed), rng.uniform(0.01, 1), 20.0
    gemm.tensor(rows, inner)
    gemm.quantized(x, zero_point(rng, dtype))
    shape = (columns, inner) if transposed else (inner, columns)
    gemm.constant(rng.integers(-90, 90, shape), np.int8)
    scales = rng.uniform(0.01, 0.1, columns if seed % 2 else ())
    gemm.quantized(scales, np.zeros(scales.shape), np.int8)
    gemm.constant(rng.integers(-3000, 3000, columns), np.int32)
    gemm.quantized(x * y, zero_point(rng, dtype))
    gemm.assert_exact(rng, (rows, columns))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@each_seed(range(8))
def test_quantized_global_averages_are_exact(seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    batch, channels, height, width = (int(n) for n in rng.integers(1, [3, 20, 10, 10]))
    pool, x = Operator("QLinearGlobalAveragePool", dtype), rng.uniform(0.01, 1)
    pool.tensor(batch, channels, height, width)
    middle = 0 if dtype is np.int8 else 128
    for scale in (x, x * rng.uniform(0.3, 1)):
        pool.quantized(scale, middle + rng.integers(-40, 40))
    pool.assert_exact(rng, (batch, channels, 1, 1))


def test_what_follows_an_operator_that_onnx_does_not_define_is_on_the_machine() -> None:
    """The shape of its result comes from ONNX Runtime."""
    rng = np.random.default_rng(0)
    leaky = Operator("QLinearLeakyRelu", np.uint8, alpha=0.1)
    leaky.tensor(1, 4, 3, 3)
    leaky.quantized(0.1, 100)
    leaky.quantized(0.1, 10)
    model = leaky.model((1, 4, 1, 1))
    model.graph.node[0].output[0] = "leaky"
    pool = helper.make_node("MaxPool", ["leaky"], ["y"], kernel_shape=[3, 3])
    model.graph.node.append(pool)
    without_tables = replace(PRESETS["tiny-extended"], lookup=0)
    with Session(model, without_tables, "functional") as session:
        report = session.check({"x0": rng.integers(0, 255, (1, 4, 3, 3), np.uint8)})
        assert [layer.placed_on for layer in session.layers] == ["host", "machine"]
    assert report.histogram == {}
