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
from amaranth_vta.sim.devices import WITH_BASES, RunOptions, close_device
from amaranth_vta.sim.programs.image import ProgramImage

from .cases import Case, case
from .comparison import Comparison, Difference, compare
from .coverage import EMPTY, Point, coverage
from .shrink import shrink
from .system_cases import Disturbance, SystemCase, Systems, system_case
from .system_comparison import compare_system

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
    """A case on which devices differ. ``images`` are the shortest programs found that show it, one
    per machine. On a single machine the program has base registers if all devices that differ ran
    with them.
    """

    case: Case | SystemCase
    differences: list[Difference]
    images: list[ProgramImage]

    @property
    def disturbance(self) -> Disturbance | None:
        """What happens while the programs of a system run."""
        return self.case.disturbance if isinstance(self.case, SystemCase) else None


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
    numbers: range,
    configs: Mapping[str, Config],
    devices: Sequence[str],
    work: Workforce = map,
    progress: Callable[[Findings], None] = lambda _: None,
    systems: Systems | None = None,
) -> Findings:
    """Run the cases with the numbers in ``numbers``, for the ``seed``, on ``devices``; with
    ``systems``, a program on each of their machines.

    The findings do not depend on the workforce, ``work``. ``progress`` is called with the findings
    so far. Raises `ToolchainError` if a simulator cannot be built, and `DeviceError` for a device
    without ``systems``.
    """
    started = time.monotonic()
    machines = [
        (name, config, systems or Systems(1)) for config in configs.values() for name in devices
    ]
    for _ in work(_build, machines):
        pass
    findings = Findings()
    attempt = partial(_attempt, seed, dict(configs), tuple(devices), systems)
    chunks = [numbers[first : first + _CHUNK] for first in range(0, len(numbers), _CHUNK)]
    for found in work(attempt, chunks):
        findings.add(found)
        findings.seconds = time.monotonic() - started
        progress(findings)
    findings.failures.sort(key=lambda failure: failure.case.number)
    return findings


def _build(machine: tuple[str, Config, Systems]) -> None:
    """Build and cache the simulator of a device, so that no case waits for it."""
    name, config, systems = machine
    options = RunOptions(name, machines=systems.machines, memory_bus=systems.bus_bits)
    close_device(options.open(config, 64))


def _attempt(
    seed: int,
    configs: Mapping[str, Config],
    devices: Sequence[str],
    systems: Systems | None,
    numbers: range,
) -> Findings:
    """Findings of a chunk of cases."""
    findings = Findings()
    for number in numbers:
        chosen: Case | SystemCase = (
            case(seed, number, configs)
            if systems is None
            else system_case(seed, number, configs, systems)
        )
        findings.add(_attempt_case(chosen, devices))
    return findings


def _attempt_case(chosen: Case | SystemCase, devices: Sequence[str]) -> Findings:
    images, legal = chosen.images(), [not part.kinds for part in chosen.parts]
    comparison = _compare(chosen, images, devices, legal)
    findings = Findings(
        programs=len(images),
        legal=sum(legal),
        instructions=sum(image.insn_count for image in images),
        cycles=comparison.cycles,
    )
    for image, reference in zip(images, comparison.references, strict=True):
        findings.unordered += not reference.ordered
        findings.covered += coverage(image, reference.outcome.fault)
    if comparison.differences:
        findings.failures.append(_shortest(chosen, images, comparison))
    return findings


def _compare(
    chosen: Case | SystemCase,
    images: Sequence[ProgramImage],
    devices: Sequence[str],
    ordered: Sequence[bool],
) -> Comparison:
    """Compare ``images``, of the case or shorter; ``ordered`` says which need no search for
    accesses that no token orders.
    """
    if isinstance(chosen, SystemCase):
        return compare_system(
            images, devices, chosen.dram, chosen.bus_bits, ordered, chosen.disturbance
        )
    (image,) = images
    return compare(image, devices, chosen.dram, ordered[0], chosen.relocation(image))


def _shortest(
    chosen: Case | SystemCase, images: list[ProgramImage], comparison: Comparison
) -> Failure:
    devices = sorted({difference.device for difference in comparison.differences})
    unknown = [False] * len(images)

    def endings(found: Comparison) -> list[bool]:
        return [reference.outcome.fault is None for reference in found.references]

    def differs(candidates: list[ProgramImage]) -> bool:
        """Whether devices differ, and the candidates fault exactly if the originals do."""
        again = _compare(chosen, candidates, devices, unknown)
        return bool(again.differences) and endings(again) == endings(comparison)

    def differs_with(number: int, candidate: ProgramImage) -> bool:
        return differs([*images[:number], candidate, *images[number + 1 :]])

    if differs(images):
        for number in range(len(images)):
            images[number] = shrink(images[number], partial(differs_with, number))
        comparison = _compare(chosen, images, devices, unknown)
    for number, reference in enumerate(comparison.references):
        if reference.outcome.fault is None and reference.defined.all():
            expected = reference.memory[: images[number].dram.size].copy()
            images[number] = replace(images[number], expected=expected)
    if isinstance(chosen, Case) and all(
        item.device in WITH_BASES for item in comparison.differences
    ):
        images = [_moved(chosen, image) for image in images]
    return Failure(chosen, comparison.differences, images)


def _moved(chosen: Case, image: ProgramImage) -> ProgramImage:
    """``image`` and its expected memory, relocated if the case is."""
    relocated = chosen.relocation(image)
    if relocated is None or image.expected is None:
        return relocated or image
    return _expecting(relocated, image.expected)


def _expecting(image: ProgramImage, expected: npt.NDArray[np.uint8]) -> ProgramImage:
    """``image`` with the ``expected`` memory of another image, except for the instruction stream,
    which differs and which the program does not overwrite.
    """
    first = image.insn_addr - image.origin
    stream = slice(first, first + image.insn_count * isa.INSTRUCTION_BYTES)
    return replace(
        image, expected=np.r_[expected[:first], image.dram[stream], expected[stream.stop :]]
    )
