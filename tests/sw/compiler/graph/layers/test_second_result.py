"""Functions of a tensor with other readers, stored as the second result of its convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.session import Session
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.layers.fusion import second_result
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.plan.placement import place
from amaranth_vta.sw.runtime.network.network_program import RunLayer

Make = Callable[..., Any]
BOTH = "QLinearConv, QuantizeLinear"


def operators(model: onnx.ModelProto, images: Any, **options: Any) -> list[str]:
    """Check the network; return the operators of its layers on the machine."""
    with Session(model, options.pop("config", "tiny-extended"), **options) as session:
        report = session.check({"x": images})
        layers = session.layers
    assert report.histogram == {}
    assert all(np.unique(values).size > 3 for values in report.outputs.values())
    return [item.operator for item in layers if item.placed_on == "machine"]


def skipped(
    qdq: Make, dtype: Any = np.int8, joined: float = 0.3, zero: int = 60, size: int = 10
) -> Any:
    """A convolution whose result is pooled, upsampled again and joined with the result."""
    low = np.iinfo(dtype).min
    graph = qdq((1, 4, size, size), dtype).qdq(0.031, low + 120)
    graph.conv(4, 8).node("Relu").qdq(0.21319, low)
    skip = graph.value
    graph.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.conv(8, 8, pads=[1, 1, 1, 1]).qdq(0.25, low + 90)
    graph.upsample()
    return graph.node("Concat", skip, axis=1).qdq(joined, low + zero)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_rescaled_skip_connection_is_a_second_result(qdq: Make, dtype: Any) -> None:
    graph = skipped(qdq, dtype)
    first, *others = operators(graph.model(), graph.images())
    assert first == BOTH
    assert others[0] == "MaxPool"
    assert "QuantizeLinear" not in others


def test_a_skip_connection_is_joined_in_place(qdq: Make) -> None:
    """The last layer that stores a part of the concatenation is named after it."""
    graph = skipped(qdq, size=20).conv(16, 4).qdq(0.9)
    found = operators(graph.model(), graph.images())
    assert found[0] == BOTH
    assert "Concat" not in found


def test_a_skip_connection_of_the_same_scale_is_stored_once(qdq: Make) -> None:
    graph = skipped(qdq, joined=0.21319, zero=0)
    assert BOTH not in operators(graph.model(), graph.images())


@pytest.mark.parametrize("machines", [2, 3])
def test_machines_that_share_a_layer_store_parts_of_both_results(qdq: Make, machines: int) -> None:
    graph = skipped(qdq, size=26)
    with Session(graph.model(), "tiny-extended", machines=machines, split=True) as session:
        report = session.check({"x": graph.images()})
        steps = session.compiled.program.steps
    assert report.histogram == {}
    shared = [item.machines for item in steps if isinstance(item, RunLayer)]
    assert shared[0] == machines
    assert session.layers[1].operator == BOTH


def test_two_layers_store_what_one_does_not_store_faster(
    qdq: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = canonical(load_network(skipped(qdq).model(), 1))

    def found() -> list[str]:
        placed = place(network, PRESETS["tiny-extended"]).items
        return [item.operator for item in placed if isinstance(item, Layer)]

    assert BOTH in found()
    monkeypatch.setattr(second_result, "is_faster", lambda *_: False)
    assert BOTH not in found()
    assert "QuantizeLinear" in found()


def test_a_third_result_is_a_layer_of_its_own(qdq: Make) -> None:
    graph = qdq((1, 4, 9, 9)).qdq(0.031).conv(4, 8).qdq(0.21319)
    start, parts = graph.value, []
    for scale in (0.17, 0.31):
        graph.value = start
        parts.append(graph.node("Sigmoid").qdq(scale / 40, -9).value)
    graph.value = start
    graph.conv(8, 8, pads=[1, 1, 1, 1]).qdq(0.25)
    for part in parts:
        graph.node("Mul", part).qdq(0.2)
    found = operators(graph.model(), graph.images())
    assert found[0] == "QLinearConv, Sigmoid"
    assert found.count("Sigmoid") == 1


def test_a_function_that_another_absorbs_is_not_stored(qdq: Make) -> None:
    """x · Sigmoid(x), quantized in between, of a tensor with another reader."""
    graph = qdq((1, 4, 9, 9)).qdq(0.031).conv(4, 8).qdq(0.21319)
    start = graph.value
    silu = graph.node("Sigmoid").qdq(0.0041, -128).node("Mul", start).qdq(0.19, -90).value
    graph.value = start
    graph.conv(8, 8, pads=[1, 1, 1, 1]).qdq(0.25).node("Add", silu).qdq(0.4)
    found = operators(graph.model(), graph.images())
    assert found[0] == "QLinearConv, Mul"
    assert {"Sigmoid", "Mul"}.isdisjoint(found)


def test_the_host_reads_both_results(qdq: Make) -> None:
    graph = qdq((1, 4, 9, 9)).qdq(0.031).conv(4, 8).qdq(0.21319)
    first = graph.value
    graph.node("Tanh").qdq(0.01)
    model = graph.model()
    shape = model.graph.output[0].type.tensor_type.shape
    also = onnx.helper.make_tensor_value_info(first, onnx.TensorProto.FLOAT, None)
    also.type.tensor_type.shape.CopyFrom(shape)
    model.graph.output.append(also)
    assert operators(model, graph.images()) == ["QLinearConv, Tanh"]


def test_machines_without_lookup_have_two_layers(qdq: Make) -> None:
    config = replace(PRESETS["tiny-extended"], lookup=0)
    graph = skipped(qdq)
    assert BOTH not in operators(graph.model(), graph.images(), config=config)
