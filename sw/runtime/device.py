"""The device protocol: a flat memory, and a machine that runs instruction streams from it.

Scratchpads keep their contents between runs of a device. `amaranth_vta.sw.runtime.memory` manages
device memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import MACHINE_FAULT, VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config


@dataclass(frozen=True)
class Fault:
    """Why a run stopped early: ``module`` and ``cause`` are lower-case names of
    `amaranth_vta.hw.isa.Module` and `Cause`, and ``instruction`` is an index.
    """

    module: str
    instruction: int
    cause: str

    def __str__(self) -> str:
        return f"{self.cause} in {self.module}, instruction {self.instruction}"


class RuntimeFault(VtaError, RuntimeError):
    """The machine stopped early, with ``fault`` at ``instruction``."""

    exit_code = MACHINE_FAULT

    def __init__(self, fault: Fault, instruction: isa.Instruction | None, text: str) -> None:
        super().__init__(text)
        self.fault = fault
        self.instruction = instruction


# Per memory of `isa.LIMITED`, the index of the first element in DRAM that its transfers may not
# access; 0 or absent for no limit.
Limits = Mapping[isa.Memory, int]


def limit_of(limits: Limits, memory: isa.Memory) -> int:
    """The limit of transfers of ``memory``, in elements of it; 0 for none."""
    return limits.get(isa.limited_as(memory), 0) * isa.per_limited(memory)


def end_in_dram(transfer: isa.Load | isa.Store) -> int:
    """Index after the last DRAM element that ``transfer`` accesses, or 0 without any. Strides are
    not negative, so the last row ends last.
    """
    return transfer.dram_base + max(transfer.y_size - 1, 0) * transfer.x_stride + transfer.x_size


_QUEUE_NAMES = tuple(map(isa.queue_name, isa.TOKEN_QUEUES))


def no_tokens() -> dict[str, int]:
    """Empty token queues, by name."""
    return dict.fromkeys(_QUEUE_NAMES, 0)


@dataclass
class RunResult:
    """The outcome of a run.

    ``cycles`` is None on devices without a clock; ``estimated`` means that cycles, and counters of
    time, come from a model instead of the design itself. ``tokens_left`` counts the tokens left in
    each of `isa.TOKEN_QUEUES`. ``seconds`` is the time that the device took. ``reached`` are the
    cycles, from the launch, at which each watched instruction retired; empty if the device cannot
    tell.
    """

    cycles: int | None
    fault: Fault | None = None
    tokens_left: dict[str, int] = field(default_factory=no_tokens)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    estimated: bool = False
    reached: tuple[int, ...] = ()


def total(results: Sequence[RunResult]) -> RunResult:
    """Combine several runs: sums, and the tokens left by the last one."""
    if len(results) == 1:
        return results[0]
    counters = dict(results[0].counters) if results else {}
    for result in results[1:]:
        for name, count in result.counters.items():
            counters[name] = counters.get(name, 0) + count
    cycles = [result.cycles for result in results if result.cycles is not None]
    return RunResult(
        cycles=sum(cycles) if cycles else None,
        fault=next((result.fault for result in results if result.fault is not None), None),
        tokens_left=results[-1].tokens_left if results else no_tokens(),
        counters=counters,
        seconds=sum(result.seconds for result in results),
        estimated=any(result.estimated for result in results),
    )


@dataclass
class SystemResult:
    """The outcome of runs on several machines at once: their ``runs``, by machine, and ``cycles``
    from the first launch to the end of the last run; None on devices without a clock, and if a run
    was stopped.
    """

    runs: list[RunResult]
    cycles: int | None


class Device(Protocol):
    """A machine with its memory; addresses are physical, in bytes.

    ``memory_bytes`` is rounded up to 64 bytes. `read` and `write` raise `ValueError` beyond it;
    an access of the machine beyond it is a bus error.
    """

    name: str
    config: Config
    memory_bytes: int

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes."""
        ...

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Write the bytes of ``data``, which may have any dtype and shape."""
        ...

    def set_limits(self, limits: Limits) -> None:
        """Set the limit of each memory for subsequent runs: a LOAD or STORE that would reach it
        ends the run with a ``bus_error`` and transfers nothing.
        """
        ...

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run a stream to completion.

        ``watched`` are the indices, in order, of STOREs of the stream: a device with a clock may
        report when each of them retired. ``time_limit`` is in seconds of wall-clock time on the
        host: a run that takes longer is stopped and reported as a `Fault` with the cause
        ``timeout`` and the module that is stuck.
        """
        ...


class SystemDevice(Device, Protocol):
    """Several equal machines on one memory. As a `Device` it is machine 0."""

    machines: int

    def run_all(
        self, streams: Sequence[tuple[int, int]], time_limit: float | None = None
    ) -> SystemResult:
        """Run a stream on each machine, in the order of machines, at once; a stream is the byte
        address and the number of its instructions. Machines beyond the last stream rest.

        ``time_limit`` is as in `run`, for all streams together. Streams must not write memory that
        another one reads or writes. A fault ends only the stream that caused it.
        """
        ...
