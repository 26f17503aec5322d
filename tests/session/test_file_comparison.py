"""Comparison with the file finds faults of the canonical form, which ONNX Runtime on the canonical
form would share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from amaranth_vta.session.compilation import open_network
from amaranth_vta.session.file_comparison import (
    FileComparison,
    LayerDifference,
    OutputDifference,
    compare_with_file,
)
from amaranth_vta.sw.compiler.graph.canonical import integer_averages, integer_products, sum_steps
from amaranth_vta.sw.compiler.graph.network import Rounding
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from tests.support.few_bits import FewBits
from tests.support.quantized_forms import CONV, FIRST, static

Array = npt.NDArray[Any]
Change = Callable[[dict[str, Array]], None]


def compared(
    model: onnx.ModelProto, x: Array, change: Change = lambda outputs: None
) -> FileComparison:
    """The comparison of the canonical form's results, modified by ``change``."""
    network, _ = open_network(model, len(x))
    session = exact_session(network.to_onnx().SerializeToString())
    outputs = run_session(session, network.outputs, {"x": x})
    change(outputs)
    return compare_with_file(outputs, network, model, len(x), lambda run: run({"x": x}))


def few_bits(weights: int = 4) -> tuple[onnx.ModelProto, Array]:
    form = FewBits(weights, 4, classes=20)
    return form.model(), form.images(16)


def image() -> Array:
    return np.random.default_rng(3).normal(0, 1, (1, 8, 10, 10)).astype(np.float32)


def test_results_are_half_a_step_from_what_the_file_rounds() -> None:
    found = compared(*few_bits())
    assert found.ok
    assert len(found.layers) == 7
    distances = [item.unrounded for item in found.layers.values() if item.unrounded is not None]
    assert 0.4 < max(distances) < 0.51
    (output,) = found.outputs.values()
    assert output.samples == 16
    assert output.same_class == 16


def test_biases_rounded_to_coarse_steps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if weights were not multiplied, and no bound were known."""

    def no_room(self: Any, steps: Array, dtype: Any) -> Array:
        return np.ones(len(steps), np.int64)

    monkeypatch.setattr(sum_steps._Product, "_room", no_room)
    monkeypatch.setattr(sum_steps._Product, "moved", lambda *_: 0.0)
    assert not compared(*few_bits()).ok


@pytest.mark.parametrize("weights", [2, 4, 8])
def test_a_bias_of_one_output_step_too_much_is_found(
    monkeypatch: pytest.MonkeyPatch, weights: int
) -> None:
    right = sum_steps.sum_steps

    def wrong(network: Any, bias: str, values: Array, data: Any, weight: Any, limits: Any) -> Any:
        found = right(network, bias, values, data, weight, limits)
        assert found is not None
        step = limits.scale / (data.scale * found.parameters.scale.min())
        added = np.array(found.bias)
        added[0] += max(1, int(0.2 * step))
        return replace(found, bias=added)

    monkeypatch.setattr(integer_products, "sum_steps", wrong)
    found = compared(*few_bits(weights))
    assert not found.ok
    assert all(item.ok for item in found.outputs.values())  # only the layer comparison shows it


def moved_ties() -> tuple[onnx.ModelProto, Array]:
    """A product whose results are often halves, quantized before and after its heads are moved."""
    numbers = np.random.default_rng(5)
    constants: dict[str, Array] = {
        "ten": np.array(0.1, np.float32),
        "half": np.array(0.02, np.float32),
        "unit": np.array(0.5, np.float32),
        "none": np.array(0, np.int8),
        "weights": numbers.integers(-6, 7, (32, 32)).astype(np.int8),
        "bias": np.zeros(32, np.int32),
        "step": np.array(np.float32(0.1) * np.float32(0.1)),
        "zero": np.array(0, np.int32),
        "heads": np.array([1, 16, 2, 16], np.int64),
    }
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]> g (float[1, 16, 32] x) => (float[1, 2, 16, 16] y)
        {
            xq = QuantizeLinear(x, ten, none)  xr = DequantizeLinear(xq, ten, none)
            wr = DequantizeLinear(weights, ten, none)  br = DequantizeLinear(bias, step, zero)
            p = MatMul(xr, wr)  s = Add(br, p)
            sq = QuantizeLinear(s, half, none)  sr = DequantizeLinear(sq, half, none)
            h = Reshape(sr, heads)
            hq = QuantizeLinear(h, half, none)  hr = DequantizeLinear(hq, half, none)
            t = Transpose <perm = [0, 2, 3, 1]> (hr)
            tq = QuantizeLinear(t, half, none)  tr = DequantizeLinear(tq, half, none)
            u = Transpose <perm = [0, 2, 1, 3]> (hr)
            uq = QuantizeLinear(u, half, none)  ur = DequantizeLinear(uq, half, none)
            z = MatMul(ur, tr)
            zq = QuantizeLinear(z, unit, none)  y = DequantizeLinear(zq, unit, none)
        }
    """)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    return model, numbers.normal(0, 0.3, (1, 16, 32)).astype(np.float32)


def test_a_tie_before_moved_elements_is_half_a_step() -> None:
    """The file rounds the product, and the quantizations behind it round whole steps."""
    found = compared(*moved_ties())
    assert found.layers["tq"].steps == 1
    assert found.layers["tq"].unrounded == pytest.approx(0.5, abs=1e-3)
    assert found.ok


def test_a_wrong_bias_before_moved_elements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sum_steps.sum_steps

    def wrong(*given: Any) -> Any:
        found = right(*given)
        assert found is not None
        return replace(found, bias=found.bias + 1)

    monkeypatch.setattr(integer_products, "sum_steps", wrong)
    assert not compared(*moved_ties()).ok


def test_weights_that_are_wrong_by_one_step_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(values: Array, parameters: Any) -> Array:
        made = sum_steps.stored(values, parameters)
        return np.where(made > 60, made + 1, made)

    monkeypatch.setattr(integer_products, "stored", wrong)
    assert not compared(static(CONV, QuantizeBias=False), image()).ok


def test_an_average_of_the_wrong_number_of_pixels_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = static(FIRST + "y = GlobalAveragePool(a)")
    x = image() + np.float32(0.5)
    assert compared(model, x).ok
    monkeypatch.setattr(integer_averages, "prod", lambda sizes: int(np.prod(sizes)) + 9)
    assert not compared(model, x).ok


def test_outputs_far_from_the_files_are_found() -> None:
    def turned(outputs: dict[str, Array]) -> None:
        (values,) = outputs.values()
        values[3] = values[3][::-1].copy()

    found = compared(*few_bits(), turned)
    assert not found.ok
    assert all(item.ok for item in found.layers.values())


@pytest.mark.parametrize(
    ("of_range", "steps", "ok"),
    [
        (0.33, 5.0, False),
        (0.33, None, False),
        (0.2, None, True),
        (0.5, 2.0, True),
        (0.1, 9.0, True),
    ],
)
def test_the_limit_of_outputs(of_range: float, steps: float | None, ok: bool) -> None:
    """Two steps may be a large share of the range of a nearly constant output."""
    assert OutputDifference(of_range, steps, None, 1).ok == ok


def test_the_limit_follows_a_default_session_that_differs_more() -> None:
    """As in networks that amplify single steps."""
    model, x = few_bits()
    network, _ = open_network(model, len(x))
    right = run_session(exact_session(model.SerializeToString()), network.outputs, {"x": x})
    (name,) = right
    extent = np.ptp(right[name])
    for other, ok in ((0.0, False), (0.1, False), (0.3, True)):
        wrong, optimized = right[name].copy(), right[name].copy()
        wrong.flat[5] += 0.4 * extent
        optimized.flat[0] += other * extent
        found = compare_with_file(
            {name: wrong}, network, model, 16, lambda run: run({"x": x}), {name: optimized}
        )
        assert found.outputs[name].of_range == pytest.approx(0.4, abs=0.01)
        assert found.ok == ok


@pytest.mark.parametrize(
    ("difference", "ok"),
    [
        (LayerDifference(1, 0.503, 0.004), True),
        (LayerDifference(1, 0.53, 0.004), False),
        (LayerDifference(1, 0.53, 0.004, 1 / 16), True),
        (LayerDifference(1, 0.58, 0.004, 1 / 16), False),
        (LayerDifference(2, 1.4, 0.9), True),
        (LayerDifference(1, None, 0.0), True),
        (LayerDifference(2, None, 0.0), False),
    ],
)
def test_the_limit_of_layers(difference: LayerDifference, ok: bool) -> None:
    assert difference.ok == ok


def test_weights_of_int8_under_uint8_are_not_saturated() -> None:
    """As processors without VNNI would do with the file's own operators."""
    from amaranth_vta.session.file_comparison import _without_saturation

    model = static(CONV, quant_format="QOperator")
    (conv,) = [node for node in model.graph.node if node.op_type == "QLinearConv"]
    same = _without_saturation(model, 1)
    types = {item.name: item.data_type for item in same.graph.initializer}
    (changed,) = [node for node in same.graph.node if node.op_type == "QLinearConv"]
    assert conv.input[3] != changed.input[3]
    assert types[changed.input[3]] == onnx.TensorProto.UINT8
    assert compared(model, image()).ok


def test_nothing_in_common_is_nothing_to_compare() -> None:
    found = compared(static("y = Identity(x)"), image())
    assert found.ok


def test_a_refused_product_that_is_taken_later_is_not_refused() -> None:
    rounding = Rounding()
    assert not rounding.takes("product", 0.7)
    assert rounding.refused == {"product": 0.7}
    assert rounding.takes("product", 0.1)
    assert rounding.refused == {}
