"""The result of one benchmark, and runs of programs compared with the functional model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Device, RunResult

MEMORY_BYTES = 1 << 20


@dataclass(frozen=True)
class Measurement:
    """``bound_cycles`` is the lower bound for the machine, None for a layer that overlaps with
    others; ``target`` is the fraction of the bound to reach, or None. ``mismatches`` counts bytes
    that differ from the functional model's, or for a whole network elements that differ from ONNX
    Runtime's. ``cycles`` is None on a device without a clock.
    """

    name: str
    operator: str
    macs: int
    cycles: int | None
    bound_cycles: int | None
    target: float | None
    bytes_loaded: int
    bytes_stored: int
    mismatches: int
    device_seconds: float
    # As in `RunResult`; for a rate, the difference between its two programs.
    counters: dict[str, int]
    # Whether cycles and cycle counters are estimates.
    estimated: bool = False

    @property
    def of_bound(self) -> float | None:
        if self.bound_cycles is None or not self.cycles:
            return None
        return self.bound_cycles / self.cycles

    @property
    def is_reached(self) -> bool:
        return self.of_bound is None or self.target is None or self.of_bound >= self.target


def image_of(
    config: Config, uops: Sequence[isa.Uop], program: Sequence[isa.Instruction]
) -> ProgramImage:
    """A program image: random memory with ``uops`` at address 0 and ``program`` at its end."""
    encode = isa.instruction_set(config).encode_uop
    dram = np.random.default_rng(0).integers(0, 256, MEMORY_BYTES, np.uint8)
    words = np.array([encode(uop) for uop in uops], "<u4").view(np.uint8)
    dram[: words.size] = words
    address = MEMORY_BYTES - len(program) * isa.INSTRUCTION_BYTES
    return ProgramImage.assemble(config, dram, address, program)


def run_compared(config: Config, image: ProgramImage, device: Device) -> tuple[RunResult, int]:
    """Runs ``image`` on ``device``; returns the result, and the number of bytes of memory that
    differ from the functional model's.
    """
    memories = []
    for each in (FunctionalDevice(config, image.dram.size), device):
        each.write(0, image.dram)
        result = each.run(image.insn_addr, image.insn_count)
        assert result.fault is None, result.fault
        memories.append(each.read(0, image.dram.size))
    return result, int(np.count_nonzero(memories[0] != memories[1]))


def difference(first: int | None, second: int | None) -> int | None:
    """Cycles of the second program minus those of the first; None without a clock."""
    return None if first is None or second is None else second - first
