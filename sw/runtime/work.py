"""The work of an instruction stream, and lower bounds on its cycles."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .events import alu_event, events
from .instruction_words import Words


@dataclass(frozen=True)
class Work:
    """Totals of a stream that runs to completion.

    ``gemm_uops`` counts micro-ops that multiply, ``reset_uops`` GEMM micro-ops that only reset, and
    ``alu_uops`` ALU micro-ops; each iteration counts. ``bytes_loaded`` is the traffic of LOADs
    and instruction fetch, without padding; ``bytes_stored`` is the traffic of STOREs.
    """

    config: Config
    gemm_uops: int
    reset_uops: int
    alu_uops: int
    bytes_loaded: int
    bytes_stored: int

    def __add__(self, other: Work) -> Work:
        """The work of both streams, which are for machines of the same configuration."""
        counts = vars(self).keys() - {"config"}
        return Work(
            self.config, **{name: getattr(self, name) + getattr(other, name) for name in counts}
        )

    @property
    def macs(self) -> int:
        return self.gemm_uops * self.config.macs_per_cycle

    @property
    def compute_cycles(self) -> int:
        """Lower bound on compute cycles: one micro-op per cycle, with GEMM and ALU overlapping."""
        return max(self.gemm_uops, self.alu_uops)

    @property
    def words_read(self) -> int:
        """Lower bound on the bus words read."""
        return -(-self.bytes_loaded // self.config.bus_bytes)

    @property
    def words_written(self) -> int:
        return -(-self.bytes_stored // self.config.bus_bytes)


def work(config: Config, words: Words) -> Work:
    """The work of the instructions in ``words``; illegal ones are fetched but do nothing."""
    found = events(config, words)
    return Work(
        config,
        gemm_uops=found["multiply"] + found["depthwise"],
        reset_uops=found["reset"],
        alu_uops=sum(found[alu_event(op)] for op in isa.AluOp),
        bytes_loaded=found["bytes_read"],
        bytes_stored=found["bytes_written"],
    )
