"""Compares systems of several machines with the clear functional model of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.sim.devices import RunOptions, close_device
from amaranth_vta.sim.machine.dram import ProtocolError
from amaranth_vta.sim.machine.host import StuckError
from amaranth_vta.sim.machine.rtl.system import RtlSystem
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.systems import FunctionalSystem
from amaranth_vta.sw.runtime.device import RunResult

from .comparison import SECONDS, Comparison, Difference, other_results, other_scratchpads
from .reference import Reference, reference_of
from .system_cases import Disturbance, are_apart

# Counters of cycles, of which there are no more than the run has.
_CYCLES = [item.name for item in COUNTERS if item.name.endswith("_busy") or "_waits_" in item.name]
# Both simulate machines on one memory.
_System = RtlSystem | FunctionalSystem


def compare_system(
    images: Sequence[ProgramImage],
    devices: Sequence[str],
    dram: str,
    bus_bits: int,
    ordered: Sequence[bool],
    disturbance: Disturbance | None = None,
) -> Comparison:
    """Run ``images``, of consecutive zones of memory, at once on a fresh system of each of
    ``devices``, with a memory of timing ``dram`` and a bus of ``bus_bits``.

    Compares each machine as `compare` does, as if it were alone; ``ordered`` says for which the
    search for unordered accesses is skipped. If a program has an instruction that would access the
    zone of another machine, only the ends of the runs are compared. On the RTL, with a
    ``disturbance`` the programs first run disturbed: machines that are not stopped have their
    results, and cycle counters are consistent.
    """
    references = [reference_of(*item) for item in zip(images, ordered, strict=True)]
    if not are_apart(images):
        references = [_unordered(reference) for reference in references]
    different: list[Difference] = []
    cycles = 0
    for name in devices:
        options = RunOptions(name, dram, machines=len(images), memory_bus=bus_bits)
        size = sum(image.dram.size for image in images)
        system = options.open(images[0].config, size, origin=images[0].origin)
        assert isinstance(system, _System)
        run = _SystemRun(system, images, references)
        try:
            if disturbance is not None and isinstance(system, RtlSystem):
                run.disturb(system, disturbance)
            run.compare()
        except (ProtocolError, StuckError) as error:
            run.found.append(str(error))
        finally:
            close_device(system)
        different += [Difference(name, what) for what in run.found]
        cycles += run.cycles
    return Comparison(references, different, cycles)


def _unordered(reference: Reference) -> Reference:
    nowhere = np.zeros_like(reference.defined)
    return replace(reference, ordered=False, defined=nowhere, probe=None, probed=None)


class _SystemRun:
    """Runs of ``images`` on a ``system``: the differences ``found`` and the ``cycles`` taken."""

    def __init__(
        self,
        system: _System,
        images: Sequence[ProgramImage],
        references: Sequence[Reference],
    ) -> None:
        self._system, self._images, self._references = system, images, references
        self.found: list[str] = []
        self.cycles = 0

    def compare(self) -> None:
        """Run all programs, then on machines with a fault the probe of the scratchpads."""
        for number, run in enumerate(self._run(self._images)):
            self.cycles += run.cycles or 0
            self._compare(number, run)
        if self.found or all(item.outcome.fault is None for item in self._references):
            return
        following = [
            reference.probe or _finish(image)
            for image, reference in zip(self._images, self._references, strict=True)
        ]
        for number, run in enumerate(self._run(following)):
            image, reference = self._images[number], self._references[number]
            if reference.probe is not None:
                self._note(number, other_scratchpads(run, self._after(number), image, reference))
            elif run.fault is not None:
                self._note(number, [f"FINISH as the next program ends at {run.fault}"])

    def disturb(self, system: RtlSystem, disturbance: Disturbance) -> None:
        """Run all programs, and stop a machine or reset the system."""
        self._write(self._images)
        system.start_all(_streams(self._images))
        system.simulator.advance(disturbance.cycles)
        if disturbance.machine is None:
            system.reset()
            return
        driver = system.drivers[disturbance.machine]
        if not driver.has_ended():
            driver.stop()
        runs = system.finish_all(SECONDS).runs
        for number, run in enumerate(runs):
            if number == disturbance.machine and driver.is_stopped:
                self._check_cycles(number, run)
            else:
                self._compare(number, run)

    def _run(self, images: Sequence[ProgramImage]) -> list[RunResult]:
        self._write(images)
        return self._system.run_all(_streams(images), SECONDS).runs

    def _write(self, images: Sequence[ProgramImage]) -> None:
        for image, part in zip(images, self._system.parts, strict=True):
            self._system.write(image.origin, image.dram)
            part.set_limits(image.limits)

    def _compare(self, number: int, run: RunResult) -> None:
        """Compare the run of a machine, and its memory, with its reference."""
        image, reference = self._images[number], self._references[number]
        self._note(number, other_results(run, self._after(number), image, reference))
        self._check_cycles(number, run)

    def _check_cycles(self, number: int, run: RunResult) -> None:
        """Check that no unit was busy, or waited, for more cycles than the run took."""
        most = run.counters.get("cycles", 0)
        self._note(
            number,
            [
                f"{name} is {run.counters[name]}, more than the {most} cycles of the run"
                for name in _CYCLES
                if run.counters.get(name, 0) > most
            ],
        )

    def _after(self, number: int) -> np.ndarray:
        """The zone of a machine, as long as the memory of its reference."""
        return self._system.read(self._images[number].origin, self._references[number].memory.size)

    def _note(self, number: int, found: Sequence[str]) -> None:
        self.found += [f"machine {number}: {what}" for what in found]


def _streams(images: Sequence[ProgramImage]) -> list[tuple[int, int]]:
    return [(image.insn_addr, image.insn_count) for image in images]


def _finish(image: ProgramImage) -> ProgramImage:
    """A program that only ends, in the place of the program of ``image``."""
    return ProgramImage.assemble(
        image.config, image.dram, image.insn_addr, [isa.Finish()], image.origin
    )
