"""Checks of one random graph, for each kind of graph: `check_exact` and `check_tokens`."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx

from amaranth_vta.session import Session
from amaranth_vta.sim.model.device import FunctionalDevice


class RandomGraph(Protocol):
    """A graph with one input, ``x``."""

    def model(self) -> onnx.ModelProto: ...
    def images(self, count: int) -> npt.NDArray[Any]: ...


def check_exact(graph: RandomGraph, config: str, device: str = "functional") -> set[str]:
    """Every element equals ONNX Runtime's. Returns the operators of the machine's layers."""
    with Session(graph.model(), config, device) as session:
        report = session.check({"x": graph.images(1)})
        assert report.elements
        assert report.histogram == {}
        return {layer.operator for layer in session.layers if layer.placed_on == "machine"}


def check_tokens(graph: RandomGraph, seed: int) -> None:
    """Outputs do not depend on the order in which modules run, random for ``seed``, and the
    functional model reports no race and no false claim of independence.
    """
    model, inputs = graph.model(), {"x": graph.images(1)}
    with Session(model, "tiny-extended") as session:
        expected = session.run(inputs)
        config, size = session.config, session.device.memory_bytes
    device = FunctionalDevice(
        config, size, f"random:{seed}", report_races=True, report_false_claims=True
    )
    with Session(model, "tiny-extended", device) as session:
        for name, values in session.run(inputs).items():
            np.testing.assert_array_equal(values, expected[name])
    assert not device.races
    assert not device.false_claims
