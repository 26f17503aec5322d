"""What a device is: a flat memory, and a machine that runs an instruction stream found in it.

Scratchpads keep their contents from one run of a device to the next. Which part of the memory
serves what is the business of `amaranth_vta.sw.runtime.memory`, not of the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config


@dataclass(frozen=True)
class Fault:
    """Why a run stopped early: `amaranth_vta.hw.isa.Module` and `Cause` as lower-case names."""

    module: str
    instruction: int
    cause: str

    def __str__(self) -> str:
        return f"{self.cause} in {self.module}, instruction {self.instruction}"


def no_tokens() -> dict[str, int]:
    """Empty token queues, by name."""
    return {isa.queue_name(queue): 0 for queue in isa.TOKEN_QUEUES}


@dataclass
class RunResult:
    """How a run ended.

    ``cycles`` is None on devices without a clock, and ``estimated`` says that they, and what
    ``counters`` count of time, were not counted on the design itself. ``tokens_left`` counts what
    each of `isa.TOKEN_QUEUES` held at the end. ``seconds`` is the time that the device itself took.
    ``reached`` are the cycles, from the launch, at which each watched instruction was done, as far
    as the device can tell.
    """

    cycles: int | None
    fault: Fault | None = None
    tokens_left: dict[str, int] = field(default_factory=no_tokens)
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    estimated: bool = False
    reached: tuple[int, ...] = ()


def total(results: Sequence[RunResult]) -> RunResult:
    """Several runs as one: sums, and the tokens left by the last."""
    cycles = [result.cycles for result in results if result.cycles is not None]
    counters: dict[str, int] = {}
    for result in results:
        for name, count in result.counters.items():
            counters[name] = counters.get(name, 0) + count
    return RunResult(
        cycles=sum(cycles) if cycles else None,
        fault=next((result.fault for result in results if result.fault is not None), None),
        tokens_left=results[-1].tokens_left if results else no_tokens(),
        counters=counters,
        seconds=sum(result.seconds for result in results),
        estimated=any(result.estimated for result in results),
    )


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
        """Stores the bytes of ``data``, which may have any dtype and shape."""
        ...

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Runs a stream to its end and says how it ended.

        ``watched`` are STOREs of the stream, by their indices in order: a device with a clock may
        say when memory had what each of them stores. ``time_limit`` is in seconds of the host's
        clock. A run that takes longer is stopped and reported as a `Fault` with cause ``timeout``,
        of the module that is stuck.
        """
        ...
