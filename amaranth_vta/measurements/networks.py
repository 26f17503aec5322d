"""Benchmarks whole networks with random weights, with one measurement per layer on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.report.layer_report import LaunchReport, LayerReport
from amaranth_vta.report.systems import system_note
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.counters import Spent
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .measurement import Measurement

if TYPE_CHECKING:
    from amaranth_vta.sw.compiler.graph.load.onnx_model import Source


@dataclass(frozen=True)
class MeasuredNetwork:
    """``runs`` of ``images`` each of a network, one on each machine of the ``system`` at once, or
    one that all machines share if it is ``split``: its ``layers`` and ``launches``, the
    ``measurements`` of layers on the machine, and in ``spent`` a breakdown of the cycles of each
    launch, empty without a clock. Elements that differ from the reference's count as mismatches of
    the last measurement.
    """

    layers: list[LayerReport]
    launches: list[LaunchReport]
    measurements: list[Measurement]
    spent: list[Spent]
    images: int
    runs: int
    system: SystemConfig
    split: bool

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

    @property
    def system_note(self) -> str:
        """As `report.systems.system_note`."""
        whole, images = self.whole, self.images * self.runs
        return system_note(self.system, self.split, images, whole.macs, whole.cycles)


def measure_network(
    name: str,
    config: Config,
    options: RunOptions,
    launch: str = "network",
    allow_rounding: bool = False,
    dimensions: Mapping[str, int] | None = None,
    split: bool = False,
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
        split,
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
    split: bool = False,
) -> MeasuredNetwork:
    """Measure one run of ``model`` on ``inputs``, random ones by default, and compare the results
    with the reference's unless ``options`` make them wrong. ``launch``, ``allow_rounding``,
    ``context``, ``dimensions`` and ``split`` as in `Session`; inputs that become variables are left
    out. Machines that do not split a run have the ``inputs`` of one run each; raises `ModelError`
    for a network without images.
    """
    with Session(
        model,
        config,
        options,
        allow_rounding=allow_rounding,
        dimensions=dimensions,
        context=context,
        launch=launch,
        split=split,
    ) as session:
        mismatches, runs = 0, session.runs_at_once
        if runs > 1 and not session.has_images:
            raise ModelError(
                "the network has no images, of which machines could run one each; they can share "
                "the layers of each run (--split)"
            )
        given = random_inputs(session) if inputs is None else inputs
        given = {name: given[name] for name in session.inputs if name in given}
        if inputs is not None and runs > 1:
            given = {
                name: np.concatenate([array] * runs) if array.ndim else array
                for name, array in given.items()
            }
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
            session.layers,
            session.launches,
            measurements,
            session.spent,
            session.images_per_run,
            runs,
            session.system,
            split,
        )
