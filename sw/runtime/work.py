"""What an instruction stream asks of the machine, and the least cycles that takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config


@dataclass(frozen=True)
class Work:
    """Totals of a stream that runs to its end.

    ``gemm_uops`` counts micro-ops that multiply, ``reset_uops`` those of GEMM that only clear,
    ``alu_uops`` those of ALU; each counts once an iteration. ``bytes_loaded`` is what LOADs and
    fetch read from memory, padding not included, ``bytes_stored`` what STOREs write.
    """

    config: Config
    gemm_uops: int
    reset_uops: int
    alu_uops: int
    bytes_loaded: int
    bytes_stored: int

    @property
    def macs(self) -> int:
        return self.gemm_uops * self.config.macs_per_cycle

    @property
    def bound_cycles(self) -> int:
        """No machine of this configuration is faster: the larger of compute and bus time.

        Compute takes a micro-op a cycle, GEMM and ALU beside each other; the bus moves its width
        a cycle, in one direction at a time.
        """
        compute = max(self.gemm_uops, self.alu_uops)
        return max(compute, -(-(self.bytes_loaded + self.bytes_stored) // self.config.bus_bytes))


def work(config: Config, words: Iterable[int]) -> Work:
    """The work of a stream of 128-bit instructions; illegal ones count as nothing."""
    instructions = isa.instruction_set(config)
    element_bytes = {memory: config.memory(memory).element_bytes for memory in isa.Memory}
    gemm = reset = alu = loaded = stored = 0
    for bits in words:
        loaded += isa.INSTRUCTION_BYTES
        if instructions.problem(bits) is not None:
            continue
        match instruction := instructions.decode(bits):
            case isa.Load() | isa.Store():
                size = instruction.x_size * instruction.y_size
                size *= element_bytes[isa.Memory(instruction.memory)]
                if isinstance(instruction, isa.Load):
                    loaded += size
                else:
                    stored += size
            case isa.Gemm() if instruction.reset:
                reset += instruction.uops
            case isa.Gemm():
                gemm += instruction.uops
            case isa.Alu():
                alu += instruction.uops
    return Work(config, gemm, reset, alu, loaded, stored)
