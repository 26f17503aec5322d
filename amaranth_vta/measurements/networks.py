"""Benchmarks whole networks with random weights, with one measurement per layer on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amaranth_vta.hw.config import Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.report.layer_report import LaunchReport, LayerReport
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.counters import Spent
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .measurement import Measurement

if TYPE_CHECKING:
    from amaranth_vta.sw.compiler.graph.load.onnx_model import Source


@dataclass(frozen=True)
class MeasuredNetwork:
    """A run of ``images`` of a network: its ``layers`` and ``launches``, the ``measurements`` of
    layers on the machine, and in ``spent`` a breakdown of the cycles of each launch, empty without
    a clock. Elements that differ from the reference's count as mismatches of the last measurement.
    """

    layers: list[LayerReport]
    launches: list[LaunchReport]
    measurements: list[Measurement]
    spent: list[Spent]
    images: int

    @property
    def whole(self) -> Measurement:
        """All layers on the machine, combined in one measurement."""
        items = self.measurements
        cycles = [launch.cycles for launch in self.launches if launch.cycles is not None]
        return Measurement(
            "",
            "all",
            sum(item.macs for item in items),
            sum(cycles) if cycles else None,
            sum(launch.bound_cycles for launch in self.launches),
            None,
            sum(item.bytes_loaded for item in items),
            sum(item.bytes_stored for item in items),
            sum(item.mismatches for item in items),
            sum(item.device_seconds for item in items),
            {},
            any(item.estimated for item in items),
        )


def measure_network(
    name: str,
    config: Config,
    options: RunOptions,
    launch: str = "network",
    allow_rounding: bool = False,
    dimensions: Mapping[str, int] | None = None,
) -> MeasuredNetwork:
    """Measure one run of ``name``, one of `NETWORKS`, as `measure_model` does, on random inputs
    with ``dimensions``. A decoder keeps its caches in the machine's memory.
    """
    network, generator = generate(name), NETWORKS[name]
    return measure_model(
        network.model,
        None if dimensions else network.inputs,
        config,
        options,
        launch,
        allow_rounding,
        generator.size if generator.decodes else None,
        dimensions,
    )


def measure_model(
    model: Source,
    inputs: Mapping[str, Array] | None,
    config: Config,
    options: RunOptions,
    launch: str = "network",
    allow_rounding: bool = False,
    context: int | None = None,
    dimensions: Mapping[str, int] | None = None,
) -> MeasuredNetwork:
    """Measure one run of ``model`` on ``inputs``, random ones by default, and compare the results
    with the reference's unless ``options`` make them wrong. ``launch``, ``allow_rounding``,
    ``context`` and ``dimensions`` as in `Session`; inputs that become variables are left out.
    """
    with Session(
        model,
        config,
        options,
        allow_rounding=allow_rounding,
        dimensions=dimensions,
        context=context,
        launch=launch,
    ) as session:
        mismatches = 0
        given = random_inputs(session) if inputs is None else inputs
        given = {name: given[name] for name in session.inputs if name in given}
        if options.has_results:
            mismatches = session.check(given).mismatches
        else:
            session.run(given)
        layers = [layer for layer in session.layers if layer.placed_on == "machine"]
        seconds = session.device_seconds / max(len(layers), 1)
        measurements = [
            Measurement(
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
            for number, layer in enumerate(layers, 1)
        ]
        return MeasuredNetwork(
            session.layers, session.launches, measurements, session.spent, session.images_per_run
        )
