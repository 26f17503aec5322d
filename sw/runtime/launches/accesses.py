"""Intervals of scratchpads and device memory accessed by the instructions of a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.runtime.instruction_words import Words, element_bytes, field_of, memories_of
from amaranth_vta.sw.runtime.memory import Buffer, MovingWindow

# First index, and index after the last; in elements or bytes.
Interval = tuple[int, int]
_PADDINGS = tuple(isa.Padding)
# Bits of dram_base that hold the first accumulator of a STORE to INP.
_SOURCE = (1 << isa.SRAM_BASE_WIDTH) - 1
# Memories of LOADs that fill the weight scratchpad, and that fill any scratchpad of LOAD.
WEIGHTS = tuple(item for item in Memory if isa.filled_by(item) is Memory.WGT)
OPERANDS = tuple(item for item in Memory if isa.filled_by(item) in isa.LOADED_BY_LOAD)
# Values of the memory field in LOADs that the module LOAD executes.
_OF_LOAD = (*OPERANDS, isa.Padding.LOAD)


def overlap(one: Interval, other: Interval) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def elements_of(words: Words, layout: isa.Layout) -> npt.NDArray[np.int64]:
    """For LOADs and STOREs: number of scratchpad elements, padding included."""
    names = ("x_size", "y_size", "x_pad_0", "x_pad_1", "y_pad_0", "y_pad_1")
    x, y, left, right, above, below = (field_of(words, layout[name]) for name in names)
    return (above + y + below) * (left + x + right) * (x > 0)


class InstructionAccesses(NamedTuple):
    """An instruction: ``opcode``, and the ``module`` that executes it.

    ``written`` and ``read`` are intervals of INP, WGT and ACC, by memory, as far as other modules
    share them. ``dram`` is an interval in bytes, None if nothing is transferred; a STORE writes it.
    """

    opcode: int
    module: Module
    written: dict[Memory, Interval]
    read: dict[Memory, Interval]
    dram: Interval | None


class MicroOps:
    """Contents of the micro-op buffer, tracked through consecutive streams.

    ``memory`` is device memory, uint8, from which micro-ops are loaded.
    """

    def __init__(self, config: Config, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        self.element_bytes = element_bytes(config).tolist()
        self.extensions = config.extensions
        instructions = isa.instruction_set(config)
        self.layouts = instructions.layouts
        self._decode = instructions.decode
        self._uop = instructions.uop_layout
        self.taps = config.taps
        self._buffer = np.zeros(config.uop.depth, np.uint32)
        # Memoized `spans` of the current contents, by range of the buffer.
        self._spans: dict[tuple[int, int], tuple[Interval, ...]] = {}

    def load(self, bits: int) -> None:
        """Execute the LOAD of micro-ops encoded in ``bits``; its padding is zeros."""
        load = self._decode(bits)
        assert isinstance(load, isa.Load)
        block = np.zeros((load.y_pad_0 + load.y_size + load.y_pad_1, load.row_elements), np.uint32)
        rows = load.dram_base + np.arange(load.y_size)[:, np.newaxis] * load.x_stride
        inside = block[load.y_pad_0 :, load.x_pad_0 :][: load.y_size, : load.x_size]
        inside[:] = self._memory.view(np.uint32)[rows + np.arange(load.x_size)]
        self._buffer[load.sram_base :][: load.elements] = block.reshape(-1)[: load.elements]
        self._spans.clear()

    def spans(self, begin: int, end: int) -> tuple[Interval, ...]:
        """Minimum and maximum dst, src and wgt of the micro-ops in a range."""
        spans = self._spans.get((begin, end))
        if spans is None:
            uops = self._buffer[begin:end]
            fields = [
                uops >> self._uop[name].offset & (1 << self._uop[name].width) - 1
                for name in ("dst", "src", "wgt")
            ]
            spans = tuple((int(field.min()), int(field.max())) for field in fields)
            self._spans[begin, end] = spans
        return spans


class StreamAccesses:
    """Accesses of the instructions of a stream.

    ``relocations`` are those of the `Stream`: an instruction relative to a window may access the
    whole buffer. ``modules`` execute the instructions, and ``is_load`` marks LOADs. Querying an
    instruction of compute applies the micro-op loads before it: query these in program order.
    """

    def __init__(
        self, micro_ops: MicroOps, words: Words, relocations: Iterable[tuple[int, Buffer]] = ()
    ) -> None:
        self._micro_ops, self._words = micro_ops, words
        self._moving: dict[int, Interval] = {
            number: (buffer.reached.address, buffer.reached.address + buffer.reached.size)
            for number, buffer in relocations
            if isinstance(buffer, MovingWindow)
        }
        layouts = micro_ops.layouts
        opcodes = field_of(words, layouts[isa.Opcode.FINISH]["opcode"])
        self.memories = memories_of(words, layouts[isa.Opcode.LOAD], micro_ops.extensions)
        self.is_load = is_load = opcodes == isa.Opcode.LOAD
        self.modules = np.where(opcodes == isa.Opcode.STORE, Module.STORE, Module.COMPUTE)
        self.modules[is_load & np.isin(self.memories, _OF_LOAD)] = Module.LOAD
        self._opcodes = opcodes.tolist()
        self._transfers = self._transfer_fields(words, layouts[isa.Opcode.LOAD])
        self._loops = {
            opcode: self._loop_fields(words, layout)
            for opcode, layout in layouts.items()
            if "uop_end" in layout
        }
        self._loads = np.flatnonzero(is_load & (self.memories == Memory.UOP)).tolist()[::-1]

    def __getitem__(self, number: int) -> InstructionAccesses:
        opcode = self._opcodes[number]
        if opcode in self._loops:
            self.load_before(number)
            return self._of_kernel(opcode, *self._loops[opcode][number].tolist())
        found = self._of_transfer(opcode, *self._transfers[number].tolist())
        if number in self._moving and found.dram is not None:
            return found._replace(dram=self._moving[number])
        return found

    def load_before(self, number: int) -> None:
        """Load the micro-ops of all instructions before ``number``."""
        while self._loads and self._loads[-1] < number:
            low, high = self._words[self._loads.pop()].tolist()
            self._micro_ops.load(high << isa.WORD_WIDTH | low)

    def _transfer_fields(self, words: Words, layout: isa.Layout) -> npt.NDArray[np.int64]:
        """For LOADs and STOREs: memory, bases in scratchpad and DRAM, and number of elements in
        each.
        """
        x, y, stride = (field_of(words, layout[name]) for name in ("x_size", "y_size", "x_stride"))
        reach = ((y - 1) * stride + x) * (x > 0) * (y > 0)
        bases = (field_of(words, layout[name]) for name in ("sram_base", "dram_base"))
        return np.stack([self.memories, *bases, elements_of(words, layout), reach], axis=1)

    def _of_transfer(
        self, opcode: int, memory: int, sram: int, dram: int, count: int, reach: int
    ) -> InstructionAccesses:
        if opcode == isa.Opcode.FINISH or memory in _PADDINGS:
            load = opcode == isa.Opcode.LOAD and memory == isa.Padding.LOAD
            return InstructionAccesses(
                opcode, Module.LOAD if load else Module.COMPUTE, {}, {}, None
            )
        place = isa.filled_by(Memory(memory))
        size = self._micro_ops.element_bytes[memory]
        bytes_moved = (dram * size, (dram + reach) * size) if reach else None
        here = (sram, sram + count)
        if opcode == isa.Opcode.STORE and place is Memory.INP:
            first = dram & _SOURCE
            source = (first, first + reach)
            return InstructionAccesses(
                opcode, Module.STORE, {Memory.INP: here}, {Memory.ACC: source}, None
            )
        if opcode == isa.Opcode.STORE:
            return InstructionAccesses(opcode, Module.STORE, {}, {Memory.ACC: here}, bytes_moved)
        if place in (Memory.INP, Memory.WGT):
            return InstructionAccesses(opcode, Module.LOAD, {place: here}, {}, bytes_moved)
        if place is not Memory.UOP:
            return InstructionAccesses(opcode, Module.COMPUTE, {Memory.ACC: here}, {}, bytes_moved)
        return InstructionAccesses(opcode, Module.COMPUTE, {}, {}, None)

    @staticmethod
    def _loop_fields(words: Words, layout: isa.Layout) -> npt.NDArray[np.int64]:
        """For GEMM and ALU: micro-op range, reset flag, iterations, and reach of the loops per
        operand.
        """
        # DEPTHWISE has no reset field.
        none = np.zeros(len(words), np.int64)
        reset = field_of(words, layout["reset"]) if "reset" in layout else none
        columns = [*(field_of(words, layout[name]) for name in ("uop_begin", "uop_end")), reset]
        iterations = [field_of(words, layout[name]) for name in ("iter_out", "iter_in")]
        columns.append(iterations[0] * iterations[1])
        for operand in ("dst", "src", "wgt"):
            reach = np.zeros(len(words), np.int64)
            for extent, loop in zip(iterations, ("out", "in"), strict=True):
                if f"{operand}_factor_{loop}" in layout:
                    reach += (extent - 1) * field_of(words, layout[f"{operand}_factor_{loop}"])
            columns.append(reach)
        return np.stack(columns, axis=1)

    def _of_kernel(
        self, opcode: int, begin: int, end: int, reset: int, iterations: int, *reaches: int
    ) -> InstructionAccesses:
        if begin >= end or not iterations:
            return InstructionAccesses(opcode, Module.COMPUTE, {}, {}, None)
        spans = [
            (low, high + reach + 1)
            for (low, high), reach in zip(self._micro_ops.spans(begin, end), reaches, strict=True)
        ]
        read = {}
        if opcode in isa.MULTIPLYING and not reset:
            first, end = spans[1]
            more = self._micro_ops.taps - 1 if opcode == isa.Opcode.DEPTHWISE else 0
            read = {Memory.INP: (first, end + more), Memory.WGT: spans[2]}
        return InstructionAccesses(opcode, Module.COMPUTE, {Memory.ACC: spans[0]}, read, None)
