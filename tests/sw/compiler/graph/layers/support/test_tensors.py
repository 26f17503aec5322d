"""Functions of equal layers are built once and keep the name of each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.plan.placement import place


def test_equal_layers_share_a_function_and_keep_their_names(qdq: Callable[..., Any]) -> None:
    graph = qdq((1, 3, 6, 6)).qdq(2**-5)
    for kernel in (3, 3, 3, 1):
        weights = graph.weights(3, 3, kernel, kernel)
        graph.node("Conv", weights, pads=[kernel // 2] * 4).qdq(2**-4)
    network = canonical(load_network(graph.model(), 1))
    items = place(network, PRESETS["tiny-extended"]).items
    layers = [item for item in items if isinstance(item, Layer)]
    # The first layer reads an image that the host packs.
    packed, second, third, smaller = (layer.function for layer in layers)
    assert second.schedule is third.schedule
    assert len({id(function.schedule) for function in (packed, second, smaller)}) == 3
    assert [layer.function.name for layer in layers] == [layer.name for layer in layers]
    for layer in layers:
        assert f"{layer.name}(" in str(layer.function.lowered)
