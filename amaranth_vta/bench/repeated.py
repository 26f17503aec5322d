"""Runs benchmark programs on a device, and compares memory with the functional model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Device, RunResult

MEMORY_BYTES = 1 << 20


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
