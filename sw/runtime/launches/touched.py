"""What the instructions of a stream touch: scratchpads and device memory, as intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.runtime.instruction_words import Words, field_of, instruction_words

# From the first element or byte to the one behind the last.
Interval = tuple[int, int]
_FIRST_PADDING = min(isa.Padding)
_MULTIPLYING = (isa.Opcode.GEMM, isa.Opcode.MULTIPLY)


class Touched(NamedTuple):
    """An instruction: ``opcode``, and the ``module`` that executes it.

    ``written`` and ``read`` are elements of the scratchpads INP, WGT and ACC, by memory, which
    another module shares; ``dram`` is in bytes, None if it moves nothing, and written by a STORE.
    """

    opcode: int
    module: Module
    written: dict[Memory, Interval]
    read: dict[Memory, Interval]
    dram: Interval | None


class MicroOps:
    """Follows the micro-op buffer through streams, in the order in which they run.

    ``memory`` is device memory, uint8, with the micro-ops that are loaded.
    """

    def __init__(self, config: Config, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        self._element_bytes = {place: config.memory(place).element_bytes for place in Memory}
        instructions = isa.instruction_set(config)
        self._layouts = instructions.layouts
        self._uop = instructions.uop_layout
        self._buffer = np.zeros(config.uop.depth, np.uint32)
        # Least and greatest index of each field, of what a range of the buffer holds now.
        self._known: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def touched(self, bits: Sequence[int]) -> Iterator[Touched]:
        """What each of these instructions touches."""
        words = instruction_words(bits)
        opcodes = field_of(words, self._layouts[isa.Opcode.FINISH]["opcode"]).tolist()
        transfers = self._transfers(words)
        loops = {
            opcode: self._loops(words, layout)
            for opcode, layout in self._layouts.items()
            if "uop_end" in layout
        }
        for number, opcode in enumerate(opcodes):
            if opcode in loops:
                yield self._computing(opcode, *loops[opcode][number])
            else:
                yield self._moving(opcode, *transfers[number])

    def _transfers(self, words: Words) -> list[tuple[int, ...]]:
        """Of LOADs and STOREs: memory, elements of the scratchpad, and elements of DRAM."""
        layout = self._layouts[isa.Opcode.LOAD]
        names = ("x_size", "y_size", "x_stride", "x_pad_0", "x_pad_1", "y_pad_0", "y_pad_1")
        x, y, stride, left, right, above, below = (field_of(words, layout[name]) for name in names)
        count = (above + y + below) * (left + x + right) * (x > 0)
        reach = ((y - 1) * stride + x) * (x > 0) * (y > 0)
        bases = (field_of(words, layout[name]) for name in ("memory", "sram_base", "dram_base"))
        return _rows([*bases, count, reach])

    def _moving(
        self, opcode: int, memory: int, sram: int, dram: int, count: int, reach: int
    ) -> Touched:
        if opcode == isa.Opcode.FINISH or memory >= _FIRST_PADDING:
            load = opcode == isa.Opcode.LOAD and memory == isa.Padding.LOAD
            return Touched(opcode, Module.LOAD if load else Module.COMPUTE, {}, {}, None)
        place = Memory(memory)
        size = self._element_bytes[place]
        bytes_moved = (dram * size, (dram + reach) * size) if reach else None
        here = (sram, sram + count)
        if opcode == isa.Opcode.STORE:
            return Touched(opcode, Module.STORE, {}, {Memory.ACC: here}, bytes_moved)
        if place in (Memory.INP, Memory.WGT):
            return Touched(opcode, Module.LOAD, {place: here}, {}, bytes_moved)
        if place is not Memory.UOP:
            return Touched(opcode, Module.COMPUTE, {Memory.ACC: here}, {}, bytes_moved)
        if bytes_moved is not None:
            self._buffer[slice(*here)] = self._memory[slice(*bytes_moved)].view(np.uint32)
            self._known.clear()
        return Touched(opcode, Module.COMPUTE, {}, {}, None)

    def _loops(self, words: Words, layout: isa.Layout) -> list[tuple[int, ...]]:
        """Of GEMM and ALU: micro-ops, whether they only reset, and how far the loops reach."""
        columns = [field_of(words, layout[name]) for name in ("uop_begin", "uop_end", "reset")]
        turns = [field_of(words, layout[name]) for name in ("iter_out", "iter_in")]
        columns.append(turns[0] * turns[1])
        for operand in ("dst", "src", "wgt"):
            reach = np.zeros(len(words), np.int64)
            for extent, loop in zip(turns, ("out", "in"), strict=True):
                if f"{operand}_factor_{loop}" in layout:
                    reach += (extent - 1) * field_of(words, layout[f"{operand}_factor_{loop}"])
            columns.append(reach)
        return _rows(columns)

    def _computing(
        self, opcode: int, begin: int, end: int, reset: int, turns: int, *reaches: int
    ) -> Touched:
        if begin >= end or not turns:
            return Touched(opcode, Module.COMPUTE, {}, {}, None)
        spans = [
            (low, high + reach + 1)
            for (low, high), reach in zip(self._spans(begin, end), reaches, strict=True)
        ]
        read = {}
        if opcode in _MULTIPLYING and not reset:
            read = {Memory.INP: spans[1], Memory.WGT: spans[2]}
        return Touched(opcode, Module.COMPUTE, {Memory.ACC: spans[0]}, read, None)

    def _spans(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        known = self._known.get((begin, end))
        if known is None:
            uops = self._buffer[begin:end]
            fields = [
                uops >> self._uop[name].offset & (1 << self._uop[name].width) - 1
                for name in ("dst", "src", "wgt")
            ]
            known = tuple((int(field.min()), int(field.max())) for field in fields)
            self._known[begin, end] = known
        return known


def _rows(columns: Sequence[npt.NDArray[np.int64]]) -> list[tuple[int, ...]]:
    """By instruction, the numbers in ``columns``."""
    return list(zip(*(column.tolist() for column in columns), strict=True))
