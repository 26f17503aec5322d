"""A network on a device: from an ONNX file and arrays to arrays, with numbers about the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.perfetto import Timeline
from amaranth_vta.sw.compiler.graph.canonical import canonical
from amaranth_vta.sw.compiler.graph.compiled import (
    RunHost,
    RunLayer,
    Step,
    ToMachine,
    compile_network,
)
from amaranth_vta.sw.compiler.graph.layer import Operand
from amaranth_vta.sw.compiler.graph.load_model import (
    Source,
    load_network,
    open_batch,
    read_model,
)
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.onnx_runtime import default_session, exact_session, run_session
from amaranth_vta.sw.compiler.graph.runner import Measured, Runner
from amaranth_vta.sw.runtime.command import Runtime, RuntimeFault
from amaranth_vta.sw.runtime.counters import Spent
from amaranth_vta.sw.runtime.device import Device, Fault, total
from amaranth_vta.sw.runtime.memory import buffer_alignment
from amaranth_vta.sw.runtime.program import Program

Array = npt.NDArray[Any]
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


@dataclass(frozen=True)
class CheckReport:
    """How a result compares with that of ONNX Runtime on the canonical network.

    ``histogram`` counts differences that are not zero; where an output is dequantized they are in
    steps of its scale. ``differs_from_default`` counts elements that differ from the untouched
    model in a default session. ``outputs`` is the result itself.
    """

    elements: int
    mismatches: int
    histogram: dict[float, int]
    differs_from_default: int
    outputs: dict[str, Array]

    @property
    def ok(self) -> bool:
        return self.mismatches == 0


class Session:
    """A network compiled for a machine and placed on a device.

    ``model`` is a path, the bytes of a file or an ``onnx.ModelProto``; ``config`` a `Config`, the
    name of a preset or a path; ``device`` a device or the name of one, which ``dram``, ``waves``,
    ``timeline``, ``skip`` and ``progress`` are for (see `open_device`). A first dimension of inputs
    that is open is the number of images: it is cut into batches that the machine's tiles hold.

    Raises `ModelError`, `ConfigError`, and what `open_device` raises.
    """

    def __init__(
        self,
        model: Source,
        config: Config | str = "pynq",
        device: Device | str = "functional",
        dram: str = "ideal",
        *,
        waves: str | Path | None = None,
        timeline: Timeline | None = None,
        skip: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.config = Config.load(config) if isinstance(config, str) else config
        self._model = read_model(model)
        self._open_batch = open_batch(self._model)
        self.network: Network = canonical(load_network(self._model, self.config.batch))
        self.compiled = compile_network(self.network, self.config)
        if isinstance(device, str):
            device = open_device(
                device,
                self.config,
                _memory_bytes(self.compiled.program),
                dram=dram,
                waves=waves,
                timeline=timeline,
                skip=skip,
                progress=progress,
            )
        self.device = device
        self._timeline = timeline
        self._skip = skip
        self._runner = Runner(self.compiled, Runtime(device), self._label)
        self._wall_seconds = 0.0
        self._fault: Fault | None = None
        self._mismatches: int | None = None

    def __enter__(self) -> Session:
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
        return {name: self._info(name) for name in self.network.inputs}

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        return {name: self._info(name) for name in self.network.outputs}

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

    def check(self, inputs: Mapping[str, Array]) -> CheckReport:
        """Runs, and compares with ONNX Runtime. Raises as `run` does."""
        outputs = self.run(inputs)
        reference = exact_session(self.network.to_onnx())
        names = list(outputs)
        expected = self._in_batches(inputs, partial(run_session, reference, names))
        histogram: dict[float, int] = {}
        for name in names:
            different = _differences(outputs[name], expected[name], _step(self.network, name))
            for value, count in zip(*np.unique(different, return_counts=True), strict=True):
                histogram[value.item()] = histogram.get(value.item(), 0) + int(count)
        default = default_session(self._model)
        untouched = self._in_batches(inputs, partial(run_session, default, names))
        self._mismatches = sum(histogram.values())
        return CheckReport(
            elements=sum(output.size for output in outputs.values()),
            mismatches=self._mismatches,
            histogram=histogram,
            differs_from_default=sum(
                _differences(outputs[name], untouched[name], 1).size for name in names
            ),
            outputs=outputs,
        )

    def _label(self, layer: str) -> None:
        if self._timeline is not None:
            self._timeline.label = layer

    def _info(self, name: str) -> TensorInfo:
        info = self.network.types[name]
        shape: tuple[int | None, ...] = info.shape or ()
        if self._open_batch and shape and shape[0] == self.config.batch:
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
            for name in self.network.outputs
        }

    @property
    def _batch(self) -> int:
        """Images in a run of the network: the first dimension of all inputs and outputs, or 0 if
        they have none in common."""
        shapes = [
            self.network.types[n].shape for n in (*self.network.inputs, *self.network.outputs)
        ]
        sizes = {shape[0] if shape else 0 for shape in shapes}
        return sizes.pop() if len(sizes) == 1 else 0

    def _images(self, inputs: Mapping[str, Array]) -> int | None:
        """How many images ``inputs`` are, or None if they are a single run as they are."""
        missing = [name for name in self.network.inputs if name not in inputs]
        unknown = [name for name in inputs if name not in self.network.inputs]
        if missing or unknown:
            what = f"input {missing[0]} is missing" if missing else f"{unknown[0]} is no input"
            raise InputError(f"{what}; the network's inputs are {', '.join(self.network.inputs)}")
        counts = {}
        exact = True
        for name, array in inputs.items():
            info = self.network.types[name]
            assert info.shape is not None
            if array.dtype != info.dtype:
                raise InputError(f"input {name} is {array.dtype}; the network takes {info.dtype}")
            if array.shape == info.shape:
                counts[name] = array.shape[0] if array.shape else 0
                continue
            exact = False
            divisor = 1 if self._open_batch else self._batch
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
        previous: Step | None = None
        for step, measured in zip(self.compiled.steps, self._runner.measured, strict=True):
            if isinstance(step, RunHost):
                for item in step.nodes:
                    reports.append(
                        _host_report(item.node.name, item.node.operator, item.reason, measured)
                    )
            elif isinstance(step, RunLayer):
                reports.append(self._machine_report(step, measured))
            elif isinstance(step, ToMachine):
                reason = _conversion(step.operand, previous)
                if reason:
                    reports.append(_host_report(step.operand.tensor, "layout", reason, measured))
            previous = step
        return reports

    def _machine_report(self, step: RunLayer, measured: Measured) -> LayerReport:
        cycles = measured.result.cycles if measured.result else None
        macs = step.layer.macs * measured.runs
        return LayerReport(
            name=step.layer.name,
            operator=step.layer.operator,
            placed_on="machine",
            reason="",
            macs_per_run=step.layer.macs,
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


def _conversion(operand: Operand, previous: Step | None) -> str:
    """Why the host writes a tensor other than as it has it; empty if it does not."""
    if operand.packing:
        plain = replace(operand, packing=None).nbytes
        return f"{operand.packing}: it writes {operand.nbytes:,} bytes instead of {plain:,}"
    if isinstance(previous, RunHost | None):
        return ""
    return "tiles that the machine stores are not those that it reads"


def _host_report(name: str, operator: str, reason: str, measured: Measured) -> LayerReport:
    return LayerReport(name, operator, "host", reason, 0, 0, None, 0, None, 0, 0, measured.runs, {})


def _memory_bytes(program: Program) -> int:
    """What the program takes when it is placed."""
    sizes = [item.size for item in program.buffers] + [
        item.words.nbytes for item in program.streams
    ]
    alignment = buffer_alignment(program.config)
    return max(alignment, sum(-(-size // alignment) * alignment for size in sizes))


def _step(network: Network, output: str) -> float:
    """The scale of an output that is dequantized, else 1."""
    node = network.producers().get(output)
    if node is not None and node.operator == "DequantizeLinear":
        scale = network.constants.get(node.input(1))
        if scale is not None and scale.size == 1:
            return float(scale.item())
    return 1


def _differences(got: Array, expected: Array, step: float) -> npt.NDArray[np.float64]:
    """Differences that are not zero, in steps; NaN equals NaN."""
    if got.dtype.kind not in "biuf":
        return np.ones(np.count_nonzero(got != expected), np.float64)
    differs = ~((got == expected) | (got != got) & (expected != expected))
    difference = got[differs].astype(np.float64) - expected[differs].astype(np.float64)
    return np.round(difference / step, 6)
