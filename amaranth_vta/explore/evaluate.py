"""Evaluates a point: compiles a network for a machine and estimates its cycles, cached by content.

This code runs on workers, which need only the package and the bytes of the network.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.session import random_inputs
from amaranth_vta.session.batches import Batches
from amaranth_vta.session.compilation import open_network
from amaranth_vta.session.layers import launch_reports, layer_reports
from amaranth_vta.session.session import Session
from amaranth_vta.sim.cache import ToolchainError, hash_of, kept, package_version
from amaranth_vta.sim.devices import RunOptions, close_device
from amaranth_vta.sim.energy.network_energy import network_energy
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.plan.compiled_network import compile_network
from amaranth_vta.sw.runtime.network.runner import Runner
from amaranth_vta.sw.runtime.runtime import Runtime


@dataclass(frozen=True)
class EvaluationTask:
    """A point to evaluate: a machine, as the JSON of its configuration, a memory model, and the
    digest of a network. Several ``machines`` on a bus of ``memory_bus`` bits run an image each, or
    with ``split`` share each image.
    """

    network: str
    config: str
    memory: str
    machines: int = 1
    memory_bus: int = 0
    split: bool = False

    @classmethod
    def of(cls, network: str, system: SystemConfig, memory: str, split: bool) -> EvaluationTask:
        """The task for the machines of ``system``."""
        config = system.config.to_json()
        return cls(network, config, memory, system.machines, system.bus_bits, split)

    @property
    def key(self) -> str:
        """Cache name of the result: a hash of the task and the package version."""
        return hash_of(*map(str, astuple(self)), *package_version())

    @property
    def system(self) -> SystemConfig:
        return SystemConfig(Config.from_json(self.config), self.machines, self.memory_bus)

    def options(self, device: str, timing_only: bool = False) -> RunOptions:
        """The device with the machines of the task."""
        return RunOptions(
            device,
            self.memory,
            timing_only=timing_only,
            progress=lambda _: None,
            machines=self.machines,
            memory_bus=self.memory_bus,
        )


@dataclass(frozen=True)
class LayerCost:
    """A layer on the machine: MACs of the network, cycles, and bytes on the bus. Cycles are 0 if
    machines run an image each, since only their launches are timed.
    """

    name: str
    macs: int
    cycles: int
    bytes_moved: int


@dataclass(frozen=True)
class Cost:
    """The cost of ``images``, of one run or of a run on each machine. ``host_macs`` counts
    the MACs on the host; ``energy`` is the typical energy in picojoules by technology.
    """

    images: int
    cycles: int
    bound_cycles: int
    macs: int
    host_macs: int
    layers: tuple[LayerCost, ...]
    energy: dict[str, float]

    @property
    def bytes_moved(self) -> int:
        return sum(layer.bytes_moved for layer in self.layers)

    @property
    def host_share(self) -> float:
        """The host's share of all MACs."""
        return self.host_macs / max(self.macs + self.host_macs, 1)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Cost:
        """The `Cost` whose `asdict` is ``values``, also after a round trip through JSON."""
        return cls(**{**values, "layers": tuple(LayerCost(**item) for item in values["layers"])})


@dataclass(frozen=True)
class Simulated:
    """An RTL simulation with random images: its cycles, and the number of output elements that
    differ from ONNX Runtime's.
    """

    cycles: int
    mismatches: int


def evaluate(task: EvaluationTask, model: bytes) -> Cost:
    """The cost of ``task``, estimated or from the cache folder.

    Raises `ModelError`, `ToolchainError` without a C++ compiler, and `LoweringError`.
    """
    return Cost.of(remembered(f"{task.key}.json", lambda: asdict(_estimate(task, model))))


def simulate(task: EvaluationTask, model: bytes) -> Simulated:
    """The result of the point on the RTL, simulated or cached; raises what `Session` raises."""
    return Simulated(**remembered(f"{task.key}-rtl.json", lambda: asdict(_simulate(task, model))))


def remembered(name: str, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of ``find``, cached as JSON in the file ``name`` of the cache folder."""
    found: dict[str, Any] = {}

    def make(path: Path) -> None:
        found.update(find())
        path.write_text(json.dumps(found))

    try:
        values: dict[str, Any] = json.loads(kept("explore", name, make).read_text())
    except ToolchainError:
        if not found:
            raise
        return found  # the cache folder is not writable
    return values


def _estimate(task: EvaluationTask, model: bytes) -> Cost:
    system = task.system
    network, open_batch = _network(task.network, system.config.batch, _Bytes(model))
    sharing, bus = (system.machines, system.bus_bits) if task.split else (1, 0)
    program = compile_network(
        network, system.config, open_batch, machines=sharing, memory_bus=bus
    ).program
    runs = system.machines // sharing
    size = program.program.placed_bytes(program.launched("network"), runs)
    device = task.options("estimate", timing_only=True).open(system.config, size)
    try:
        runner = Runner(program, Runtime(device), machines=system.machines)
        inputs = {
            name: np.zeros(info.shape or (), info.dtype) for name, info in program.inputs.items()
        }
        runner.run_all([inputs] * runs)
        layers = layer_reports(runner, task.memory, system)
        launches = launch_reports(runner, task.memory, system)
    finally:
        close_device(device)
    placed = [layer for layer in layers if layer.placed_on == "machine"]
    images = Batches(program).images_per_run or 1
    return Cost(
        images=images * runs,
        cycles=sum(launch.cycles or 0 for launch in launches),
        bound_cycles=sum(launch.bound_cycles for launch in launches),
        macs=sum(layer.macs for layer in placed),
        host_macs=runs * sum(layer.host_macs for layer in layers),
        layers=tuple(
            LayerCost(
                layer.name,
                layer.macs,
                layer.cycles or 0,
                layer.bytes_loaded + layer.bytes_stored,
            )
            for layer in placed
        ),
        energy={
            name: runs * network_energy(program, technology, images).total.typical
            for name, technology in TECHNOLOGIES.items()
        },
    )


class _Bytes:
    """Bytes that compare equal to any others: a memoized call is keyed by the digest only."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bytes)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=4)
def _network(digest: str, images: int, model: _Bytes) -> tuple[Network, bool]:
    """The canonical network for runs of ``images``, which does not depend on the machine, and
    whether the model's batch size is open; memoized by ``digest``.
    """
    return open_network(model.data, images)


def _simulate(task: EvaluationTask, model: bytes) -> Simulated:
    config = Config.from_json(task.config)
    with Session(model, config, task.options("rtl"), split=task.split) as session:
        report = session.check(random_inputs(session))
        return Simulated(session.cycles or 0, report.mismatches)
