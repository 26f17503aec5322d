"""A fuzzing run: many cases on several cores, and its findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import WITH_BASES, close_device, open_device
from amaranth_vta.sim.programs.image import ProgramImage

from .cases import Case, case
from .comparison import Comparison, Difference, compare
from .coverage import EMPTY, Point, coverage
from .shrink import shrink

# Cases per task of a worker.
_CHUNK = 4

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workforce(Protocol):
    """Executes tasks: yields the result of ``work`` for each of ``items``, in any order."""

    def __call__(
        self, work: Callable[[Item], Result], items: Sequence[Item], /
    ) -> Iterator[Result]: ...


@contextmanager
def processes(jobs: int) -> Iterator[Workforce]:
    """A pool of ``jobs`` processes on this computer; with one job, this process."""
    if jobs == 1:
        yield map
    else:
        with get_context("spawn").Pool(jobs) as pool:
            yield pool.imap_unordered


@dataclass(frozen=True)
class Failure:
    """A case on which devices differ. ``image`` is the shortest program found that shows it, with
    base registers if all devices that differ ran with them.
    """

    case: Case
    differences: list[Difference]
    image: ProgramImage


@dataclass
class Findings:
    """Statistics and failures of a fuzzing run."""

    programs: int = 0
    legal: int = 0
    unordered: int = 0
    instructions: int = 0
    cycles: int = 0
    seconds: float = 0.0
    covered: Counter[Point] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @property
    def working(self) -> int:
        """Instructions that do more than exchange tokens."""
        return self.instructions - sum(
            count for point, count in self.covered.items() if point.aspect == EMPTY
        )

    def add(self, other: Findings) -> None:
        self.programs += other.programs
        self.legal += other.legal
        self.unordered += other.unordered
        self.instructions += other.instructions
        self.cycles += other.cycles
        self.covered.update(other.covered)
        self.failures += other.failures


def fuzz(
    seed: int,
    programs: int,
    configs: Mapping[str, Config],
    devices: Sequence[str],
    work: Workforce = map,
    progress: Callable[[Findings], None] = lambda _: None,
) -> Findings:
    """Run cases 0 to ``programs`` - 1 of ``seed`` on ``devices``.

    The findings do not depend on the workforce, ``work``. ``progress`` is called with the findings
    so far. Raises `ToolchainError` if a simulator cannot be built.
    """
    started = time.monotonic()
    for _ in work(_build, [(name, config) for config in configs.values() for name in devices]):
        pass
    findings = Findings()
    attempt = partial(_attempt, seed, programs, dict(configs), tuple(devices))
    for found in work(attempt, range(0, programs, _CHUNK)):
        findings.add(found)
        findings.seconds = time.monotonic() - started
        progress(findings)
    findings.failures.sort(key=lambda failure: failure.case.number)
    return findings


def _build(machine: tuple[str, Config]) -> None:
    """Build and cache the simulator of a device, so that no case waits for it."""
    close_device(open_device(*machine, 64))


def _attempt(
    seed: int, programs: int, configs: Mapping[str, Config], devices: Sequence[str], first: int
) -> Findings:
    """Findings of the chunk of cases that starts at number ``first``."""
    findings = Findings()
    for number in range(first, min(first + _CHUNK, programs)):
        findings.add(_attempt_case(case(seed, number, configs), devices))
    return findings


def _attempt_case(chosen: Case, devices: Sequence[str]) -> Findings:
    image = chosen.image()
    comparison = compare(image, devices, chosen.dram, not chosen.kinds, chosen.relocation(image))
    reference = comparison.reference
    findings = Findings(
        programs=1,
        legal=int(not chosen.kinds),
        unordered=int(not reference.ordered),
        instructions=image.insn_count,
        cycles=comparison.cycles,
        covered=coverage(image, reference.outcome.fault),
    )
    if comparison.differences:
        findings.failures.append(_shortest(chosen, image, comparison))
    return findings


def _shortest(chosen: Case, image: ProgramImage, comparison: Comparison) -> Failure:
    ends_well = comparison.reference.outcome.fault is None
    devices = sorted({difference.device for difference in comparison.differences})

    def differs(candidate: ProgramImage) -> bool:
        """Whether devices differ on ``candidate``, and it faults exactly if the original does."""
        again = compare(candidate, devices, chosen.dram, relocation=chosen.relocation(candidate))
        ends_alike = (again.reference.outcome.fault is None) == ends_well
        return bool(again.differences) and ends_alike

    if differs(image):
        image = shrink(image, differs)
        comparison = compare(image, devices, chosen.dram, relocation=chosen.relocation(image))
    reference = comparison.reference
    if reference.outcome.fault is None and reference.defined.all():
        image = replace(image, expected=reference.memory[: image.dram.size].copy())
    relocated = chosen.relocation(image)
    if relocated is not None and all(item.device in WITH_BASES for item in comparison.differences):
        image = relocated if image.expected is None else _expecting(relocated, image.expected)
    return Failure(chosen, comparison.differences, image)


def _expecting(image: ProgramImage, expected: npt.NDArray[np.uint8]) -> ProgramImage:
    """``image`` with the ``expected`` memory of another image, except for the instruction stream,
    which differs and which the program does not overwrite.
    """
    first = image.insn_addr - image.origin
    stream = slice(first, first + image.insn_count * isa.INSTRUCTION_BYTES)
    return replace(
        image, expected=np.r_[expected[:first], image.dram[stream], expected[stream.stop :]]
    )
