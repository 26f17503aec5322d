"""Whole networks with random weights, one measurement per layer on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amaranth_vta.hw.config import Config
from amaranth_vta.session import Session
from amaranth_vta.sim.trace.perfetto import Timeline

from .measurement import Measurement
from .networks import QuantizedNetwork, mobilenet_v2, resnet18, resnet50

NETWORKS: dict[str, Callable[[], QuantizedNetwork]] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenetv2": mobilenet_v2,
}


def measure_network(
    name: str,
    config: Config,
    device_name: str,
    dram: str,
    timeline: Timeline | None = None,
    skip: str | None = None,
    timing_only: bool = False,
) -> Iterator[Measurement]:
    """The layers of ``name``, one of `NETWORKS`, for one image.

    Unless results are wrong anyway, the network's outputs are compared with those of ONNX Runtime;
    elements that differ count as mismatches of the last layer.
    """
    network = NETWORKS[name]()
    inputs = {"x": network.images(1)}
    with Session(
        network.model(),
        config,
        device_name,
        dram,
        timeline=timeline,
        skip=skip,
        timing_only=timing_only,
    ) as session:
        mismatches = 0
        if skip is None and not timing_only:
            mismatches = session.check(inputs).mismatches
        else:
            session.run(inputs)
        layers = [layer for layer in session.layers if layer.placed_on == "machine"]
        seconds = session.device_seconds / max(len(layers), 1)
        for number, layer in enumerate(layers, 1):
            yield Measurement(
                layer.name,
                layer.operator,
                layer.macs,
                layer.cycles,
                layer.bound_cycles,
                None,
                layer.bytes_loaded,
                layer.bytes_stored,
                mismatches if number == len(layers) else 0,
                seconds,
                layer.counters,
                session.estimated,
            )
