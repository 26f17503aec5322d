"""Channels with scales beyond REQUANTIZE: the machine computes all of their MACs, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session

_SMALL = 5.7e-6


def product(
    dtype: Any, scales: Any, operator: str = "QLinearConv", zeros: Any = 0, groups: int = 1
) -> onnx.ModelProto:
    """A product of 2,000 terms with weights of one sign, whose sums exceed 2^25."""
    rng, outputs = np.random.default_rng(0), 8
    convolves = operator == "QLinearConv"
    shape = (outputs, 2000 // groups, 1, 1) if convolves else (2000, outputs)
    weights = rng.integers(100, 127, shape).astype(dtype)
    values = {
        "x_s": np.float32(0.02),
        "x_z": dtype(np.iinfo(dtype).min),
        "w": weights,
        "w_s": np.asarray(scales, np.float32),
        "w_z": np.asarray(zeros, dtype),
        "y_s": np.float32(0.05),
        "y_z": dtype(np.iinfo(dtype).min + 3),
    }
    attributes: dict[str, Any] = {"group": groups} if convolves else {}
    biased = ["b"] if convolves else []
    if convolves:
        values["b"] = rng.integers(-(10**6), 10**6, outputs).astype(np.int32)
    kind = TensorProto.INT8 if dtype == np.int8 else TensorProto.UINT8
    given, made = ([1, 2000, 3, 2], [1, outputs, 3, 2]) if convolves else ([6, 2000], [6, outputs])
    node = helper.make_node(operator, ["x", *list(values)[:7], *biased], ["y"], "p", **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", kind, given)],
        [helper.make_tensor_value_info("y", kind, made)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def assert_on_the_machine(model: onnx.ModelProto, products: dict[str, int]) -> None:
    """Assert exact results; ``products`` are the expected operators on the machine."""
    with Session(model, "pynq-extended") as session:
        (info,) = session.inputs.values()
        shape, limits = [size or 1 for size in info.shape], np.iinfo(info.dtype)
        rng = np.random.default_rng(1)
        for low in (limits.min, limits.max - 40):
            x = rng.integers(low, limits.max + 1, shape).astype(info.dtype)
            report = session.check({"x": x})
            assert report.ok
            assert report.file is not None
            assert all(item.of_range == 0 for item in report.file.outputs.values())
        macs = [layer for layer in session.layers if layer.macs_per_run or layer.host_macs]
        assert all(layer.placed_on == "machine" for layer in macs)
        found = [layer.operator for layer in macs if "Gather" not in layer.operator]
        assert {name: found.count(name) for name in found} == products


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_only_the_channels_beyond_requantize_leave_as_sums(dtype: Any) -> None:
    scales = np.full(8, 1e-4)
    scales[[2, 5]] = _SMALL
    assert_on_the_machine(product(dtype, scales), {"QLinearConv": 1, "ConvInteger": 1})


@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearMatMul"])
def test_all_channels_of_a_small_scale_are_sums(operator: str) -> None:
    whole = "ConvInteger" if operator == "QLinearConv" else "MatMulInteger"
    assert_on_the_machine(product(np.uint8, _SMALL, operator), {whole: 1})


def test_groups_stay_together() -> None:
    scales = np.full(8, 1e-4)
    scales[2] = 2e-6
    assert_on_the_machine(product(np.int8, scales, groups=2), {"ConvInteger": 1})


def test_scales_too_large_for_requantize_are_sums_too() -> None:
    scales = np.full(8, 1e-4)
    scales[7] = 1e3
    assert_on_the_machine(product(np.int8, scales), {"QLinearConv": 1, "ConvInteger": 1})
