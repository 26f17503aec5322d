"""Programs with one part of the machine disabled, to measure how many cycles that part costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.device import Device, RunResult
from amaranth_vta.sw.runtime.instruction_words import (
    Words,
    field_of,
    memories_of,
    without_fields,
)

# For each part, its instructions and the field that is 0 in an instruction that only exchanges
# tokens. Micro-ops and accumulators are still loaded, or GEMM and ALU would access random elements.
_PARTS = {
    "load": ((isa.Opcode.LOAD,), "x_size"),
    "gemm": (isa.MULTIPLYING, "iter_out"),
    "alu": ((isa.Opcode.ALU,), "iter_out"),
    "store": ((isa.Opcode.STORE,), "x_size"),
}


class SkippingDevice:
    """Wraps ``device`` and reduces the instructions of ``part``, one of `sim.devices.PARTS`, to
    their tokens.

    Programs take as many cycles as if that part took no time; results are wrong.
    """

    def __init__(self, device: Device, part: str) -> None:
        self._device = device
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        size = insn_count * isa.INSTRUCTION_BYTES
        if insn_addr + size > self._device.memory_bytes:  # a fault, and remains one
            return self._device.run(insn_addr, insn_count, time_limit, watched)
        program = self._device.read(insn_addr, size)
        skipped = without_part(self._device.config, program.view("<u8").reshape(-1, 2), self._part)
        self._device.write(insn_addr, skipped)
        try:
            return self._device.run(insn_addr, insn_count, time_limit, watched)
        finally:
            self._device.write(insn_addr, program)


def without_part(config: Config, words: Words, part: str) -> Words:
    """``words``, uint64 (instructions, 2), with the instructions of ``part`` reduced to tokens."""
    opcodes, field = _PARTS[part]
    words = words.copy()
    layouts = isa.instruction_set(config).layouts
    opcode = field_of(words, layouts[isa.Opcode.FINISH]["opcode"])
    for item in opcodes:
        if item not in layouts:
            continue
        chosen = opcode == item
        if item is isa.Opcode.LOAD:
            memories = memories_of(words, layouts[item], config.extensions)
            chosen &= np.isin(memories, (*isa.LOADED_BY_LOAD, isa.Memory.WGT_4BIT))
        words[chosen] = without_fields(words[chosen], [layouts[item][field]])
    return words
