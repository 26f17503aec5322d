"""Runs a compiled network on a device and on the host."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.device import RunResult, total
from amaranth_vta.sw.runtime.instruction_words import Words, field_of
from amaranth_vta.sw.runtime.program import PlacedProgram
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault
from amaranth_vta.sw.runtime.work import Work, work

from .model_error import ModelError
from .network_program import (
    Launch,
    NetworkProgram,
    RunHost,
    RunLayer,
    Step,
    ToHost,
    ToMachine,
    WriteRows,
)
from .onnx_runtime import exact_session, run_session
from .row_writes import write_rows
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
    launch.
    """

    first: int
    layers: tuple[RunLayer, ...]
    work: Work
    streams: int
    measured: StepTotals

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


# A stream of the program, and the STOREs in it to watch.
Request = tuple[int, Sequence[int]]
Process = Generator[Request, RunResult, dict[str, Array]]


class Runner:
    """A compiled network in the memory of a device.

    ``launch`` is one of `LAUNCHES`. ``measured`` has one item per step of the network, in order. In
    a launch of several layers, layers have no counters. If the device can tell, a layer's cycles
    count from the last STORE of the preceding layer to its own, but at least the cycles GEMM needs.
    ``begins`` is called with the name of each launch before the machine runs it. A runner shares
    constants and measurements with another one ``beside`` it, on the same device.
    """

    def __init__(
        self,
        network: NetworkProgram,
        runtime: Runtime,
        begins: Callable[[str], None] = lambda _: None,
        launch: str = "network",
        beside: Runner | None = None,
    ) -> None:
        self._network = network
        self._begins = begins
        self.placed: PlacedProgram = network.program.place(
            runtime, network.launched(launch), beside.placed if beside else None
        )
        self._joined: dict[int, _Joined]
        self._sessions: dict[int, Any]
        self.measured: list[StepTotals]
        if beside is not None:
            self._joined, self._sessions = beside._joined, beside._sessions
            self.measured = beside.measured
        else:
            self._joined = dict(_joined(network)) if launch == "network" else {}
            self._sessions = {
                index: exact_session(step.model)
                for index, step in enumerate(network.steps)
                if isinstance(step, RunHost)
            }
            self.measured = [StepTotals() for _ in network.steps]
        self.reset()

    def reset(self) -> None:
        """Set the network's variables to their initial values."""
        self._states = {item.source: item.initial for item in self._network.states}
        for variable in self._network.kept:
            initial = self._network.program.contents[variable.buffer]
            self.placed.buffer(variable.buffer).write(initial)

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
                found.append(Launched(index, (step,), step.work, streams, self.measured[index]))
        return found

    @property
    def steps(self) -> tuple[Step, ...]:
        return self._network.steps

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch; returns the network's outputs. Raises `RuntimeFault`."""
        process = self.process(inputs)
        try:
            request = next(process)
            while True:
                try:
                    result = self.placed.run_one(*request)
                except RuntimeFault as error:
                    request = process.throw(error)
                else:
                    request = process.send(result)
        except StopIteration as end:
            outputs: dict[str, Array] = end.value
            return outputs

    def run_all(self, inputs: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """`run` each of ``inputs``."""
        return [self.run(feeds) for feeds in inputs]

    def process(self, inputs: Mapping[str, Array]) -> Process:
        """As `run`, one launch at a time: yields each stream to run, as the arguments of
        `PlacedProgram.run_one`, takes its result, and returns the outputs. A `RuntimeFault` that is
        thrown into it gets the name of its layer.
        """
        values = dict(self._network.constants) | self._states | dict(inputs)
        steps = iter(enumerate(self._network.steps))
        for index, step in steps:
            measured, start, result = self.measured[index], perf_counter(), None
            match step:
                case RunHost():
                    feeds = {name: values[name] for name in step.inputs}
                    values |= run_session(self._sessions[index], step.outputs, feeds)
                case ToMachine(operand, buffer):
                    self.placed.buffer(buffer).write(_packed(operand, values[operand.tensor]))
                case WriteRows(_, buffer, rows, places):
                    held = self.placed.buffer(buffer)
                    write_rows(step, held, values[rows], values[places])
                case ToHost(tensor, info, operand, buffer):
                    data = self.placed.buffer(buffer).read(np.uint8, operand.nbytes)
                    images = operand.layout.unpack(data, operand.image, info.dtype)
                    assert info.shape is not None
                    values[tensor] = images.reshape(info.shape)
                case RunLayer():
                    if index in self._joined:
                        yield from self._run_joined(index)
                        for _ in self._joined[index].layers[1:]:
                            next(steps)
                        continue
                    result = yield from self._run_layer(step)
            measured.add(perf_counter() - start, result)
        self._states = {item.source: values[item.result] for item in self._network.states}
        return {name: values[name] for name in self._network.outputs}

    def _run_layer(self, step: RunLayer) -> Generator[Request, RunResult, RunResult]:
        self._begins(step.name)
        results = []
        try:
            for stream in step.streams:
                results.append((yield stream, ()))
        except RuntimeFault as error:
            raise _named(error, step) from None
        return total(results)

    def _run_joined(self, index: int) -> Generator[Request, RunResult, None]:
        """Run a launch of several layers, which starts with step ``index``."""
        joined, start = self._joined[index], perf_counter()
        self._begins(_launch_name(joined.layers))
        try:
            result = yield joined.launch.stream, joined.stores
        except RuntimeFault as error:
            ends = np.array(joined.launch.ends)
            layer = min(int((ends <= error.fault.instruction).sum()), len(ends) - 1)
            raise _named(error, joined.layers[layer]) from None
        seconds = perf_counter() - start
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
