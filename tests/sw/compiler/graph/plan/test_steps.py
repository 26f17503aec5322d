"""The order of steps on the host and on the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.graph.canonical.canonical_form import canonical
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.plan.placement import place
from amaranth_vta.sw.compiler.graph.plan.steps import planned_steps


def test_a_placement_without_a_tensor_is_an_error(qdq: Callable[..., Any]) -> None:
    graph = qdq((1, 3, 8, 8)).qdq(2**-5).conv(3, 5).qdq(2**-3).conv(5, 4).qdq(2**-2)
    network = canonical(load_network(graph.model(), 1))
    placement = place(network, PRESETS["pynq"])
    made = [item for item in placement.items if getattr(item, "operator", "") == "QLinearConv"]
    placement.items.remove(made[0])
    with pytest.raises(AssertionError, match="nothing in the placement makes .* for conv"):
        planned_steps(placement)
