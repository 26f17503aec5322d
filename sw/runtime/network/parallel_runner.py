"""Runs several images of a compiled network at once, one on each machine of a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from amaranth_vta.sw.runtime.device import RunResult
from amaranth_vta.sw.runtime.instruction_words import Words
from amaranth_vta.sw.runtime.runtime import Runtime, RuntimeFault

from .model_error import ModelError
from .network_program import NetworkProgram, Step
from .runner import Launched, Process, Runner, StepTotals
from .tile_layout import Array


class ParallelRunner:
    """A compiled network in the memory of a `SystemDevice`, once per machine: machines share
    weights, micro-ops and other constants; activations and instructions are per machine.

    All machines run the same launch at a time, each on its own image. Cycles count from the first
    launch to the end of the last machine, once for all images of a group. Raises `ModelError` for a
    network with variables, whose runs depend on earlier ones.
    """

    def __init__(
        self,
        network: NetworkProgram,
        runtime: Runtime,
        machines: int,
        begins: Callable[[str], None] = lambda _: None,
        launch: str = "network",
    ) -> None:
        if network.has_variables:
            raise ModelError(
                "the network has variables, so a run needs the result of its predecessor, and "
                "several machines cannot run images at once"
            )
        self._runtime = runtime
        first = Runner(network, runtime, begins, launch)
        others = (
            Runner(network, runtime, launch=launch, beside=first) for _ in range(machines - 1)
        )
        self._runners = [first, *others]

    @property
    def launched(self) -> list[Launched]:
        """As `Runner.launched`."""
        return self._runners[0].launched

    @property
    def measured(self) -> list[StepTotals]:
        """As `Runner.measured`, of all machines."""
        return self._runners[0].measured

    @property
    def steps(self) -> tuple[Step, ...]:
        return self._runners[0].steps

    def reset(self) -> None:
        """Does nothing: the network has no variables."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch on machine 0; returns the network's outputs. Raises `RuntimeFault`."""
        (outputs,) = self.run_all([inputs])
        return outputs

    def run_all(self, inputs: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Run up to one batch per machine; returns the outputs of each. Raises `RuntimeFault`."""
        runners = self._runners[: len(inputs)]
        processes = [runner.process(feeds) for runner, feeds in zip(runners, inputs, strict=True)]
        # All are at the same step of the network.
        waiting = [_advance(process, None) for process in processes]
        while True:
            streams = [
                runner.placed.streams[item.stream]
                for runner, item in zip(runners, waiting, strict=True)
                if isinstance(item, _Waiting)
            ]
            if not streams:
                return [item for item in waiting if not isinstance(item, _Waiting)]
            results = self._launch(processes, streams)
            waiting = [_advance(*item) for item in zip(processes, results, strict=True)]

    def _launch(
        self, processes: Sequence[Process], streams: Sequence[tuple[int, Words]]
    ) -> list[RunResult]:
        try:
            result = self._runtime.run_together(streams)
        except RuntimeFault as error:
            # Names the layer.
            processes[0].throw(error)
            raise
        # The cycles of the group count once.
        others = None if result.cycles is None else 0
        cycles = [result.cycles, *(others for _ in streams[1:])]
        return [replace(run, cycles=count) for run, count in zip(result.runs, cycles, strict=True)]


@dataclass(frozen=True)
class _Waiting:
    """A process waits for the result of ``stream``."""

    stream: int


def _advance(process: Process, result: RunResult | None) -> _Waiting | dict[str, Array]:
    """Resume a process up to its next launch, or to its outputs."""
    try:
        stream, _ = next(process) if result is None else process.send(result)
        return _Waiting(stream)
    except StopIteration as end:
        outputs: dict[str, Array] = end.value
        return outputs
