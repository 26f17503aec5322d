"""Runs a compiled network on a device and on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod
from time import perf_counter

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.device import RunResult, total
from amaranth_vta.sw.runtime.instruction_words import Words, field_of
from amaranth_vta.sw.runtime.memory import Buffer
from amaranth_vta.sw.runtime.program import PlacedProgram
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault
from amaranth_vta.sw.runtime.work import Work, work

from .model_error import ModelError
from .network_program import (
    Launch,
    MoveWindows,
    NetworkProgram,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from .onnx_runtime import exact_session, run_session
from .row_writes import place_of, write_rows
from .tile_layout import Array
from .tiled_tensor import Bytes, TiledTensor


@dataclass
class StepTotals:
    """Time and counters summed over all runs of a step; ``result`` is None for host steps."""

    runs: int = 0
    seconds: float = 0.0
    result: RunResult | None = None

    def add(self, seconds: float, result: RunResult | None = None) -> None:
        self.runs += 1
        self.seconds += seconds
        if result is not None:
            self.result = total([self.result, result] if self.result else [result])


@dataclass(frozen=True)
class Launched:
    """The launch that starts with step ``first``: its ``layers``, the ``work`` of one run, and the
    ``measured`` time and counters of all runs. A layer with several ``streams`` counts as one
    launch. ``machines`` share it.
    """

    first: int
    layers: tuple[RunLayer, ...]
    work: Work
    streams: int
    measured: StepTotals
    machines: int = 1

    @property
    def name(self) -> str:
        return _launch_name(self.layers)


@dataclass(frozen=True)
class _Joined:
    """A launch's layers, the last STORE of each layer, its instruction ``words``, and its time and
    counters.
    """

    launch: Launch
    layers: tuple[RunLayer, ...]
    stores: tuple[int, ...]
    words: Words
    measured: StepTotals

    @cached_property
    def work(self) -> Work:
        return work(self.layers[0].work.config, self.words)


class Runner:
    """A compiled network in the memory of a device.

    ``launch`` is one of `LAUNCHES`. ``measured`` has one item per step of the network, in order. In
    a launch of several layers, layers have no counters. If the device can tell, a layer's cycles
    count from the last STORE of the preceding layer to its own, but at least the cycles GEMM needs.
    ``begins`` is called with the name of each launch before the machine runs it.

    With several ``machines``, of a `SystemDevice`, the network is placed once per machine: machines
    share weights, micro-ops and other constants; activations and instructions are per machine. All
    machines run the same launch at a time, each on its own inputs, and its cycles count once.
    Raises `ModelError` for a network with variables, whose runs depend on earlier ones. A network
    that is compiled for several machines, which share each run, is placed once. Raises `ModelError`
    for another number of ``machines``.

    A runner ``beside`` another one, whose network's block it runs on the same runtime, has the same
    variables, so that their runs continue each other, and shares constants.
    """

    def __init__(
        self,
        network: NetworkProgram,
        runtime: Runtime,
        begins: Callable[[str], None] = lambda _: None,
        launch: str = "network",
        machines: int = 1,
        beside: Runner | None = None,
    ) -> None:
        if network.machines not in (1, machines):
            raise ModelError(
                f"the network is compiled for {network.machines} machines, which share each image; "
                f"the device has {machines}"
            )
        self.machines = machines
        if machines > network.machines and network.has_variables:
            raise ModelError(
                "the network has variables, so a run needs the result of its predecessor, and "
                "several machines cannot run images at once; they can share the layers of each "
                "(split)"
            )
        self._network, self._runtime, self._begins = network, runtime, begins
        program, streams = network.program, network.launched(launch)
        shared: dict[str, Buffer] = {}
        if beside is not None:
            names = beside._network.shared_with_block
            shared = {name: beside._placed[0].buffer(name) for name in names}
        first = program.place(runtime, streams, shared)
        constants = {
            item.name: first.buffer(item.name)
            for item in program.buffers
            if item.role == "constant"
        }
        others = range(machines // network.machines - 1)
        # One per run that takes place at once.
        self._placed: list[PlacedProgram] = [
            first,
            *(program.place(runtime, streams, constants) for _ in others),
        ]
        self._joined = dict(_joined(network)) if launch == "network" else {}
        self._sessions = {
            index: exact_session(step.model)
            for index, step in enumerate(network.steps)
            if isinstance(step, RunHost)
        }
        self.measured = [StepTotals() for _ in network.steps]
        # The variables that the host holds, by the names of their inputs.
        self._states: dict[str, Array] = {} if beside is None else beside._states
        self.reset()

    def reset(self, masked: int = 0) -> None:
        """Set the network's variables to their initial values. In the first run of a decoder the
        first ``masked`` positions will be masked.
        """
        self._states |= {item.source: item.after(masked) for item in self._network.states}
        for variable in self._network.kept:
            initial = self._network.program.contents[variable.buffer]
            self._placed[0].buffer(variable.buffer).write(initial)

    @property
    def launched(self) -> list[Launched]:
        """The launches in order, with the time and counters of each."""
        found = []
        steps = iter(enumerate(self._network.steps))
        for index, step in steps:
            if index in self._joined:
                joined = self._joined[index]
                found.append(Launched(index, joined.layers, joined.work, 1, joined.measured))
                for _ in joined.layers[1:]:
                    next(steps)
            elif isinstance(step, RunLayer):
                streams = len(step.streams)
                spent = self.measured[index]
                found.append(Launched(index, (step,), step.work, streams, spent, step.machines))
        return found

    @property
    def steps(self) -> tuple[Step, ...]:
        return self._network.steps

    @property
    def runs_at_once(self) -> int:
        """Number of runs that take place at once."""
        return len(self._placed)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; returns the network's outputs. Raises `RuntimeFault`."""
        (outputs,) = self.run_all([inputs])
        return outputs

    def run_all(self, inputs: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Run up to `runs_at_once` batches at once; returns the outputs of each. Raises
        `RuntimeFault`.
        """
        known = dict(self._network.constants) | self._states
        values = [known | dict(feeds) for feeds in inputs]
        steps = iter(enumerate(self._network.steps))
        for index, step in steps:
            if index in self._joined:
                self._run_joined(index, len(inputs))
                for _ in self._joined[index].layers[1:]:
                    next(steps)
                continue
            start = perf_counter()
            results: Sequence[RunResult | None]
            if isinstance(step, RunLayer):
                results = self._run_layer(step, len(inputs))
            else:
                ran = [
                    self._run_on_host(index, step, placed, tensors)
                    for placed, tensors in zip(self._placed, values, strict=False)
                ]
                results = [None] * sum(ran)
            seconds = (perf_counter() - start) / len(inputs)
            for result in results:
                self.measured[index].add(seconds, result)
        self._states |= {item.source: values[0][item.result] for item in self._network.states}
        return [{name: found[name] for name in self._network.outputs} for found in values]

    def _run_on_host(
        self,
        index: int,
        step: RunHost | ToMachine | ToHost | WriteRows | MoveWindows,
        placed: PlacedProgram,
        values: dict[str, Array],
    ) -> bool:
        """Run step ``index`` for one machine; adds the tensors that it computes to ``values``.
        Returns whether it had to be run: its results may be known.
        """
        match step:
            case RunHost():
                feeds = {name: values[name] for name in step.inputs}
                known = step.known.results(feeds) if step.known else None
                values |= known or run_session(self._sessions[index], step.outputs, feeds)
                return known is None
            case ToMachine(operand, buffer):
                placed.buffer(buffer).write(_packed(operand, values[operand.tensor]))
            case WriteRows(_, buffer, rows, places):
                write_rows(step, placed.buffer(buffer), values[rows], values[places])
            case MoveWindows(windows, place):
                placed.move_windows(windows, place_of(step, values[place]))
            case ToHost(tensor, info, operand, buffer):
                data = placed.buffer(buffer).read(np.uint8, operand.nbytes)
                images = operand.layout.unpack(data, operand.image, info.dtype)
                assert info.shape is not None
                values[tensor] = images.reshape(info.shape)
        return True

    def _launch(
        self, streams: Sequence[int], runs: int, watched: Sequence[int] = ()
    ) -> list[RunResult]:
        """Run each of ``streams`` on a machine, for each of the first ``runs`` that take place at
        once; returns the result of each run, the first of which has the cycles of all. STOREs are
        ``watched``, as in `Device.run`, on a single machine only.
        """
        if self.machines == 1:
            return [self._placed[0].run_one(streams[0], watched)]
        placed = [run.streams[stream] for run in self._placed[:runs] for stream in streams]
        result = self._runtime.run_together(placed)
        others = None if result.cycles is None else 0
        cycles = [result.cycles, *(others for _ in placed[1:])]
        results = [
            replace(run, cycles=count) for run, count in zip(result.runs, cycles, strict=True)
        ]
        count = len(streams)
        return [total(results[run * count : (run + 1) * count]) for run in range(runs)]

    def _run_layer(self, step: RunLayer, runs: int) -> list[RunResult]:
        self._begins(step.name)
        try:
            launches = [
                self._launch(streams, runs)
                for streams in zip(step.streams, *step.beside, strict=True)
            ]
        except RuntimeFault as error:
            raise _named(error, step) from None
        return [total([results[number] for results in launches]) for number in range(runs)]

    def _run_joined(self, index: int, runs: int) -> None:
        """Run a launch of several layers, which starts with step ``index``."""
        joined, start = self._joined[index], perf_counter()
        self._begins(_launch_name(joined.layers))
        try:
            results = self._launch([joined.launch.stream], runs, joined.stores)
        except RuntimeFault as error:
            ends = np.array(joined.launch.ends)
            layer = min(int((ends <= error.fault.instruction).sum()), len(ends) - 1)
            raise _named(error, joined.layers[layer]) from None
        seconds = (perf_counter() - start) / runs
        for result in results:
            joined.measured.add(seconds, result)
            cycles: list[int | None] = [None] * len(joined.layers)
            if result.cycles is not None and len(result.reached) == len(joined.stores):
                # The last layer ends with the run.
                reached = (*result.reached[:-1], result.cycles)
                products = [step.work.gemm_uops for step in joined.layers]
                cycles = [*_attributed(reached, products)]
            for step, count in enumerate(cycles, index):
                layer_result = RunResult(count, seconds=result.seconds / len(cycles))
                layer_result.estimated = result.estimated
                self.measured[step].add(seconds / len(cycles), layer_result)


def _joined(network: NetworkProgram) -> Iterator[tuple[int, _Joined]]:
    """The layers of each launch, with the index of its first step."""
    layers = {
        step.streams.start: (index, step)
        for index, step in enumerate(network.steps)
        if isinstance(step, RunLayer)
    }
    opcode = isa.instruction_set(network.config).layouts[isa.Opcode.STORE]["opcode"]
    for launch in network.launches:
        found = [layers[stream] for stream in launch.streams]
        words = network.program.streams[launch.stream].words
        (stores,) = np.nonzero(field_of(words, opcode) == isa.Opcode.STORE)
        last = stores[np.searchsorted(stores, launch.ends) - 1]
        steps = tuple(step for _, step in found)
        yield found[0][0], _Joined(launch, steps, tuple(last.tolist()), words, StepTotals())


def _attributed(ends: Sequence[int], products: Sequence[int]) -> list[int]:
    """The cycles of each layer of a launch, given the cycle in which each layer's last result is in
    memory.

    A layer begins where its predecessor ends or, if GEMM needs more cycles for its ``products``,
    one per cycle, earlier: then it started while its predecessor's last results were stored.
    """
    borders = [ends[-1]]
    for end, needed in zip((*ends[-2::-1], 0), reversed(products), strict=True):
        borders.append(max(0, min(end, borders[-1] - needed)))
    return [end - begin for begin, end in pairwise(reversed(borders))]


def _launch_name(layers: Sequence[RunLayer]) -> str:
    first, *others = layers
    return f"{first.name} to {others[-1].name}" if others else first.name


def _named(error: RuntimeFault, step: RunLayer) -> RuntimeFault:
    """The same fault with the layer's name in its text."""
    return RuntimeFault(error.fault, error.instruction, f"{step.name}: {error}")


def _packed(operand: TiledTensor, value: Array) -> Bytes:
    """The bytes of ``value`` for the machine. Raises `ModelError` if the host's tensor does not
    have the expected type and size.
    """
    if value.size != prod(operand.image) or value.dtype.kind not in "iu":
        raise ModelError(
            f"the host computed {operand.tensor} as a tensor of {value.dtype} with {value.size:,} "
            f"elements; the machine takes integers, {prod(operand.image):,} of them"
        )
    return operand.pack(value)
