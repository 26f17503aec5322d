"""The work of an instruction stream, and lower bounds on its cycles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

from .instruction_words import (
    Counts,
    Words,
    element_bytes,
    field_of,
    memories_of,
    without_fields,
)

Count = Callable[[Words, isa.Layout], Counts]
# Fields in which any value is legal, except in a LOAD that sets a padding value.
_ANY_VALUE = (
    *("sram_base", "dram_base", "y_size", "x_size", "x_stride"),
    *("uop_begin", "uop_end", "iter_out", "iter_in", "immediate"),
    *("dst_factor_out", "dst_factor_in", "src_factor_out", "src_factor_in"),
    *("wgt_factor_out", "wgt_factor_in"),
)


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
    instructions = isa.instruction_set(config)
    legal = words[_legal(instructions, words)]
    opcodes = field_of(legal, instructions.layouts[isa.Opcode.FINISH]["opcode"])

    def total(value: Count, *chosen: isa.Opcode) -> int:
        return sum(
            int(value(legal[opcodes == opcode], instructions.layouts[opcode]).sum())
            for opcode in chosen
            if opcode in instructions.layouts
        )

    size_of = element_bytes(config)

    def moved(rows: Words, layout: isa.Layout) -> Counts:
        elements = field_of(rows, layout["x_size"]) * field_of(rows, layout["y_size"])
        return elements * size_of[memories_of(rows, layout, config.extensions)]

    def stored(rows: Words, layout: isa.Layout) -> Counts:
        return moved(rows, layout) * (field_of(rows, layout["memory"]) == isa.Memory.OUT)

    def resets(rows: Words, layout: isa.Layout) -> Counts:
        return _uops(rows, layout) * field_of(rows, layout["reset"])

    reset = total(resets, isa.Opcode.GEMM)
    return Work(
        config,
        gemm_uops=total(_uops, *isa.MULTIPLYING) - reset,
        reset_uops=reset,
        alu_uops=total(_uops, isa.Opcode.ALU),
        bytes_loaded=len(words) * isa.INSTRUCTION_BYTES + total(moved, isa.Opcode.LOAD),
        bytes_stored=total(stored, isa.Opcode.STORE),
    )


def _uops(rows: Words, layout: isa.Layout) -> Counts:
    """Number of micro-ops that each GEMM or ALU instruction executes, over all iterations."""
    count = field_of(rows, layout["uop_end"]) - field_of(rows, layout["uop_begin"])
    loops = field_of(rows, layout["iter_out"]) * field_of(rows, layout["iter_in"])
    return np.maximum(count, 0) * loops


def _legal(instructions: isa.InstructionSet, words: Words) -> npt.NDArray[np.bool_]:
    """bool (instructions,): which of ``words`` are legal.

    Most instructions differ only in addresses and counts, which do not affect legality.
    """
    kinds = words.copy()
    opcodes = field_of(words, instructions.layouts[isa.Opcode.FINISH]["opcode"])
    for opcode, layout in instructions.layouts.items():
        rows = opcodes == opcode
        if "memory" in layout:
            # A LOAD that sets a padding value must have zeros in these fields.
            rows &= field_of(words, layout["memory"]) < min(isa.Padding)
        ignored = [layout[name] for name in _ANY_VALUE if name in layout]
        kinds[rows] = without_fields(words[rows], ignored)
    legal: dict[tuple[int, int], bool] = {}
    result = np.empty(len(words), np.bool_)
    for index, (low, high) in enumerate(kinds.tolist()):
        kind = low, high
        if kind not in legal:
            legal[kind] = instructions.problem(low | high << isa.WORD_WIDTH) is None
        result[index] = legal[kind]
    return result
