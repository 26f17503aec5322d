"""A compiled network on a device: from arrays to arrays, with numbers about the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sw.runtime.command import Runtime, RuntimeFault
from amaranth_vta.sw.runtime.counters import Spent
from amaranth_vta.sw.runtime.device import Device, Fault, total
from amaranth_vta.sw.runtime.network.file import load_network
from amaranth_vta.sw.runtime.network.layout import Array
from amaranth_vta.sw.runtime.network.operand import Operand
from amaranth_vta.sw.runtime.network.program import (
    NetworkProgram,
    OnHost,
    RunHost,
    RunLayer,
    ToHost,
    ToMachine,
)
from amaranth_vta.sw.runtime.network.runner import Measured, Runner

Run = Callable[[dict[str, Array]], Mapping[str, Array]]


class InputError(ValueError):
    """Arrays that are not what the network takes; the message names the input."""


@dataclass(frozen=True)
class TensorInfo:
    """Type of an input or output of the network; a first dimension of None is any number."""

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class LayerReport:
    """An operator of the network, and what it took in all runs so far.

    ``placed_on`` is ``machine`` or ``host``, with the ``reason`` for the latter. ``macs`` are
    those of the network, without padding; ``cycles`` and ``utilization`` are None where there is
    no clock. ``macs_per_run`` is for one batch. ``counters`` are those of `RunResult`, none for
    the host.
    """

    name: str
    operator: str
    placed_on: str
    reason: str
    macs_per_run: int
    macs: int
    cycles: int | None
    bound_cycles: int
    utilization: float | None
    bytes_loaded: int
    bytes_stored: int
    runs: int
    counters: dict[str, int]


class NetworkSession:
    """A compiled ``network`` placed on a device; nothing of the compiler is needed for it.

    ``device`` is a device or the name of one, which ``dram``, ``waves``, ``timeline``, ``skip``
    and ``progress`` are for (see `open_device`). A first dimension of inputs that is open is the
    number of images: it is cut into as many as one run takes.

    Raises `ModelError` if ONNX Runtime cannot run the host's part, and what `open_device` raises.
    """

    def __init__(
        self,
        network: NetworkProgram,
        device: Device | str = "functional",
        dram: str = "ideal",
        *,
        waves: str | Path | None = None,
        timeline: Timeline | None = None,
        skip: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.program = network
        self.config: Config = network.config
        if isinstance(device, str):
            device = open_device(
                device,
                self.config,
                network.program.placed_bytes,
                dram=dram,
                waves=waves,
                timeline=timeline,
                skip=skip,
                progress=progress,
            )
        self.device = device
        self._types = {**network.inputs, **network.outputs}
        self._timeline = timeline
        self._skip = skip
        self._runner = Runner(network, Runtime(device), self._label)
        self._wall_seconds = 0.0
        self._fault: Fault | None = None
        self._mismatches: int | None = None

    @classmethod
    def load(cls, path: str | Path, device: Device | str = "functional", **options: Any) -> Self:
        """Of a network in a file that `Session.save` or ``vta compile`` wrote.

        Raises `ProgramError` if it is none, damaged, or of another format version.
        """
        return cls(load_network(path), device, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives back what the device holds; may be called again."""
        close = getattr(self.device, "close", None)
        if close is not None:
            close()

    # Running.

    @property
    def inputs(self) -> dict[str, TensorInfo]:
        return {name: self._info(name) for name in self.program.inputs}

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        return {name: self._info(name) for name in self.program.outputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The network's outputs, by name, for its ``inputs``, by name: any number of images.

        Raises `InputError`, or `RuntimeFault` if the machine stops with a fault.
        """
        start = perf_counter()
        try:
            return self._in_batches(inputs, self._runner.run)
        except RuntimeFault as error:
            self._fault = error.fault
            raise
        finally:
            self._wall_seconds += perf_counter() - start

    def _label(self, layer: str) -> None:
        if self._timeline is not None:
            self._timeline.label = layer

    def _info(self, name: str) -> TensorInfo:
        info = self._types[name]
        shape: tuple[int | None, ...] = info.shape or ()
        if self.program.open_batch and shape and shape[0] == (self._batch or self.config.batch):
            shape = (None, *shape[1:])
        return TensorInfo(info.dtype, shape)

    def _in_batches(self, inputs: Mapping[str, Array], run: Run) -> dict[str, Array]:
        inputs = {name: np.asarray(array) for name, array in inputs.items()}
        images = self._images(inputs)
        if images is None:
            return dict(run(inputs))
        batch, results = self._batch, []
        for start in range(0, images, batch):
            feeds = {}
            for name, array in inputs.items():
                part = array[start : start + batch]
                missing = batch - len(part)
                feeds[name] = np.pad(part, [(0, missing)] + [(0, 0)] * (part.ndim - 1))
            results.append(run(feeds))
        return {
            name: np.concatenate([result[name] for result in results])[:images]
            for name in self.program.outputs
        }

    @property
    def _batch(self) -> int:
        """Images in a run of the network: the first dimension of all inputs and outputs, or 0 if
        they have none in common."""
        shapes = [self._types[n].shape for n in (*self.program.inputs, *self.program.outputs)]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        return sizes.pop() if len(sizes) == 1 else 0

    def _images(self, inputs: Mapping[str, Array]) -> int | None:
        """How many images ``inputs`` are, or None if they are a single run as they are."""
        missing = [name for name in self.program.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.program.inputs]
        if missing or unknown:
            what = f"input {missing[0]} is missing" if missing else f"{unknown[0]} is no input"
            raise InputError(f"{what}; the network's inputs are {', '.join(self.program.inputs)}")
        counts = {}
        exact = True
        for name, array in inputs.items():
            info = self._types[name]
            assert info.shape is not None
            if array.dtype != info.dtype:
                raise InputError(f"input {name} is {array.dtype}; the network takes {info.dtype}")
            if array.shape == info.shape:
                counts[name] = array.shape[0] if array.shape else 0
                continue
            exact = False
            divisor = 1 if self.program.open_batch else self._batch
            if (
                not divisor
                or array.shape[1:] != info.shape[1:]
                or array.ndim != len(info.shape)
                or not len(array)
                or len(array) % divisor
            ):
                wanted = ", ".join(
                    "any number" if d is None else str(d) for d in self._info(name).shape
                )
                raise InputError(
                    f"input {name} has shape {list(array.shape)}; the network takes [{wanted}]"
                )
            counts[name] = len(array)
        if exact:
            return None
        if len(set(counts.values())) > 1:
            raise InputError(
                "the inputs are different numbers of images: "
                + ", ".join(f"{name} {count}" for name, count in counts.items())
            )
        if not self._batch:
            raise InputError("an output of the network is not one result an image: give one image")
        return next(iter(counts.values()))

    # Numbers.

    @property
    def layers(self) -> list[LayerReport]:
        """The operators in the order in which they run; conversions of layout among them."""
        reports: list[LayerReport] = []
        # What the machine has made and the host has read.
        stored: set[str] = set()
        for step, measured in zip(self.program.steps, self._runner.measured, strict=True):
            if isinstance(step, RunHost):
                reports += [_host_report(item, measured) for item in step.operators]
            elif isinstance(step, RunLayer):
                reports.append(self._machine_report(step, measured))
            elif isinstance(step, ToMachine):
                reason = _conversion(step.operand, stored)
                if reason:
                    layout = OnHost(step.operand.tensor, "layout", reason)
                    reports.append(_host_report(layout, measured))
            elif isinstance(step, ToHost):
                stored.add(step.tensor)
        return reports

    def _machine_report(self, step: RunLayer, measured: Measured) -> LayerReport:
        cycles = measured.result.cycles if measured.result else None
        macs = step.macs * measured.runs
        return LayerReport(
            name=step.name,
            operator=step.operator,
            placed_on="machine",
            reason="",
            macs_per_run=step.macs,
            macs=macs,
            cycles=cycles,
            bound_cycles=step.work.bound_cycles * measured.runs,
            utilization=macs / cycles / self.config.macs_per_cycle if cycles else None,
            bytes_loaded=step.work.bytes_loaded * measured.runs,
            bytes_stored=step.work.bytes_stored * measured.runs,
            runs=measured.runs,
            counters=measured.result.counters if measured.result else {},
        )

    @property
    def cycles(self) -> int | None:
        """Of the machine in all runs; None on a device without a clock."""
        cycles = [layer.cycles for layer in self.layers if layer.cycles is not None]
        return sum(cycles) if cycles else None

    @property
    def macs(self) -> int:
        """Of the network on the machine in all runs."""
        return sum(layer.macs for layer in self.layers)

    @property
    def device_seconds(self) -> float:
        return sum(item.result.seconds for item in self._runner.measured if item.result)

    @property
    def spent(self) -> list[Spent]:
        """Where the cycles of each layer went; nothing on a device without a clock."""
        return [
            Spent(layer.name, layer.counters, layer.runs)
            for layer in self.layers
            if layer.cycles is not None
        ]

    def report(self) -> dict[str, Any]:
        """All numbers, as JSON has them; complete after a fault too."""
        layers, cycles, seconds = self.layers, self.cycles, self.device_seconds
        fault = self._fault
        results = [item.result for item in self._runner.measured if item.result]
        return {
            "cycles": cycles,
            "macs": self.macs,
            "peak_macs_per_cycle": self.config.macs_per_cycle,
            "utilization": self.macs / cycles / self.config.macs_per_cycle if cycles else None,
            "bound_cycles": sum(layer.bound_cycles for layer in layers),
            "wall_seconds": self._wall_seconds,
            "device_seconds": seconds,
            "simulated_cycles_per_second": cycles / seconds if cycles and seconds else None,
            "mismatches": self._mismatches,
            "fault": asdict(fault) if fault else None,
            "skipped": self._skip,
            "counters": total(results).counters,
            "layers": [asdict(layer) for layer in layers],
        }

    def plan_table(self) -> str:
        """A line a layer: where it runs, and what it took a run."""
        rows = [("layer", "operator", "runs on", "MACs", "cycles", "utilization")]
        for layer in self.layers:
            machine = layer.placed_on == "machine"
            cycles = f"{layer.cycles / layer.runs:,.0f}" if layer.cycles else ""
            used = f"{layer.utilization:.1%}" if layer.utilization is not None else ""
            where = "machine" if machine else f"host: {layer.reason}"
            macs = f"{layer.macs_per_run:,}" if machine else ""
            rows.append((layer.name, layer.operator, where, macs, cycles, used))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                text.rjust(width) if column > 2 else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join(lines)


def _conversion(operand: Operand, stored: set[str]) -> str:
    """Why the host writes a tensor other than as it has it; empty if it does not. ``stored`` are
    tensors that come from the machine."""
    if operand.packing:
        plain = replace(operand, packing=None).nbytes
        return f"{operand.packing}: it writes {operand.nbytes:,} bytes instead of {plain:,}"
    if operand.tensor in stored:
        return "tiles that the machine stores are not those that it reads"
    return ""


def _host_report(item: OnHost, measured: Measured) -> LayerReport:
    return LayerReport(
        name=item.name,
        operator=item.operator,
        placed_on="host",
        reason=item.reason,
        macs_per_run=0,
        macs=0,
        cycles=None,
        bound_cycles=0,
        utilization=None,
        bytes_loaded=0,
        bytes_stored=0,
        runs=measured.runs,
        counters={},
    )
