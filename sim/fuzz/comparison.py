"""Compares devices with the clear functional model, on one program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.sim.devices import WITH_BASES, close_device, open_device
from amaranth_vta.sim.machine.dram import ProtocolError
from amaranth_vta.sim.machine.host import StuckError
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.relocation import relocated
from amaranth_vta.sw.runtime.device import Device, RunResult
from amaranth_vta.sw.runtime.driver import RegisterDriver

from .reference import Reference, reference_of

# A run that takes longer hangs: a program of a few hundred instructions takes a fraction of a
# second of processor time, but a busy computer may be slow to provide it.
SECONDS = 600.0
_COUNTED = [counter.name for counter in COUNTERS if not counter.time]


@dataclass(frozen=True)
class Difference:
    """A difference between ``device`` and the clear model."""

    device: str
    what: str

    def __str__(self) -> str:
        return f"{self.device}: {self.what}"


@dataclass(frozen=True)
class Comparison:
    """The result of the clear model for each program, and ``cycles`` summed over all devices with
    a clock.
    """

    references: list[Reference]
    differences: list[Difference]
    cycles: int


def compare(
    image: ProgramImage,
    devices: Sequence[str],
    dram: str,
    is_ordered: bool = False,
    relocation: ProgramImage | None = None,
) -> Comparison:
    """Run ``image`` on a fresh instance of each of ``devices``, with a memory of timing ``dram``.

    Compares faults, tokens left, counters that do not depend on time, and all of memory; after a
    fault also the scratchpads, dumped by a second program. If the program has accesses of several
    modules that no token orders, only checks that it ends and obeys the bus protocol; the slow
    search for such accesses is skipped if the program ``is_ordered``. Devices with base registers
    run ``relocation`` instead, if given: the same program relocated.
    """
    reference = reference_of(image, is_ordered)
    different: list[Difference] = []
    cycles = 0
    for name in devices:
        relocated = relocation if name in WITH_BASES else None
        origin = (relocated or image).origin
        device = open_device(name, image.config, image.dram.size, dram=dram, origin=origin)
        try:
            found, taken = differences(device, image, reference, relocation=relocated)
        except (ProtocolError, StuckError) as error:
            found, taken = [str(error)], 0
        finally:
            close_device(device)
        different += [Difference(name, what) for what in found]
        cycles += taken
    return Comparison([reference], different, cycles)


def differences(
    device: Device,
    image: ProgramImage,
    reference: Reference,
    seconds: float | None = SECONDS,
    relocation: ProgramImage | None = None,
) -> tuple[list[str], int]:
    """Differences between a fresh device and ``reference``, and the cycles of the device."""
    if relocation is None:
        result, after = _run(device, image, reference.memory.size, seconds)
    else:
        result, after = _run_relocated(device, image, relocation, reference.memory.size, seconds)
    cycles = result.cycles or 0
    found = other_results(result, after, image, reference)
    if not reference.ordered:
        return found, cycles
    if reference.probe is not None and reference.probed is not None and not found:
        probe, size = reference.probe, reference.memory.size
        if relocation is None:
            shown, after = _run(device, probe, size, seconds)
        else:
            moved = relocated(probe, relocation.origin, Random(0))
            shown, after = _run_relocated(device, probe, moved, size, seconds)
        cycles += shown.cycles or 0
        found += other_scratchpads(shown, after, image, reference)
    return found, cycles


def other_results(
    result: RunResult, after: npt.NDArray[np.uint8], image: ProgramImage, reference: Reference
) -> list[str]:
    """Differences of a run of ``image``, and of its memory ``after`` the run, to the reference. If
    that is not ordered, only the end of the run is compared.
    """
    if not reference.ordered:
        ended = result.fault is None or result.fault.cause != "timeout"
        return [] if ended else ["the run does not end"]
    outcome = reference.outcome
    found = []
    if result.fault != outcome.fault:
        found.append(f"the fault is {result.fault}, not {outcome.fault}")
    if outcome.fault is None and result.fault is None:
        # After a fault, tokens may have been popped for instructions after the faulty one.
        if result.tokens_left != outcome.tokens_left:
            found.append(f"tokens left are {result.tokens_left}, not {outcome.tokens_left}")
        for name in _COUNTED if image.config.counters else ():
            if result.counters[name] != outcome.counters[name]:
                found.append(f"{name} is {result.counters[name]}, not {outcome.counters[name]}")
    return found + _other_bytes(after, reference.memory, reference.defined, image.origin, "")


def other_scratchpads(
    result: RunResult, after: npt.NDArray[np.uint8], image: ProgramImage, reference: Reference
) -> list[str]:
    """Differences of a run of the reference's probe, after the program of ``image``."""
    assert reference.probe is not None
    assert reference.probed is not None
    found = []
    if result.fault is not None:
        found.append(f"the next program ends at {result.fault}")
    compared = reference.defined.copy()
    compared[: reference.probe.dram.size] = True
    return found + _other_bytes(
        after, reference.probed, compared, image.origin, " after the next program"
    )


def _run(
    device: Device, image: ProgramImage, size: int, seconds: float | None
) -> tuple[RunResult, npt.NDArray[np.uint8]]:
    device.write(image.origin, image.dram)
    device.set_limits(image.limits)
    result = device.run(image.insn_addr, image.insn_count, time_limit=seconds)
    return result, device.read(image.origin, size)


def _run_relocated(
    device: Device, image: ProgramImage, relocation: ProgramImage, size: int, seconds: float | None
) -> tuple[RunResult, npt.NDArray[np.uint8]]:
    """Run ``relocation`` in place of ``image``. In the resulting memory, the stream is replaced by
    that of ``image``, unless the program overwrote it.
    """
    assert isinstance(device, RegisterDriver)
    device.set_bases(relocation.bases)
    result, after = _run(device, relocation, size, seconds)
    first = image.insn_addr - image.origin
    stream = slice(first, first + image.insn_count * isa.INSTRUCTION_BYTES)
    if np.array_equal(after[stream], relocation.dram[stream]):
        after[stream] = image.dram[stream]
        device.write(relocation.origin, after)
    return result, after


def _other_bytes(
    found: npt.NDArray[np.uint8],
    expected: npt.NDArray[np.uint8],
    compared: npt.NDArray[np.bool_],
    origin: int,
    when: str,
) -> list[str]:
    other = np.flatnonzero((found != expected) & compared)
    if not other.size:
        return []
    at = int(other[0])
    return [
        f"{other.size} bytes of memory differ{when}, the first at {origin + at:#x}: "
        f"{found[at]:#04x}, not {expected[at]:#04x}"
    ]
