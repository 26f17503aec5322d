"""Instructions and micro-ops, with one attribute per field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .layouts import DRAM_BASE_WIDTH, IMMEDIATE_WIDTH, SRAM_BASE_WIDTH
from .memories import LOADED_BY_LOAD, Memory, Padding
from .modules import Module
from .operations import AluOp, Opcode


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """Common part of all instructions: tokens popped before execution, and pushed at retirement."""

    opcode: ClassVar[Opcode]
    pop_prev: int = 0
    pop_next: int = 0
    push_prev: int = 0
    push_next: int = 0


@dataclass(frozen=True, kw_only=True)
class _MemoryInstruction(Instruction):
    memory: int
    sram_base: int = 0
    dram_base: int = 0
    reserved: int = 0
    y_size: int = 1
    x_size: int = 1
    x_stride: int = 0
    y_pad_0: int = 0
    y_pad_1: int = 0
    x_pad_0: int = 0
    x_pad_1: int = 0

    @property
    def row_elements(self) -> int:
        """Scratchpad elements per row, padding included."""
        return self.x_pad_0 + self.x_size + self.x_pad_1

    @property
    def elements(self) -> int:
        """Scratchpad elements that the instruction touches, padding included."""
        if self.x_size == 0:
            return 0
        return (self.y_pad_0 + self.y_size + self.y_pad_1) * self.row_elements


@dataclass(frozen=True, kw_only=True)
class Load(_MemoryInstruction):
    opcode = Opcode.LOAD


@dataclass(frozen=True, kw_only=True)
class SetPadding(_MemoryInstruction):
    """A LOAD that sets its module's padding value instead of loading (extension PAD_VALUE).

    ``memory`` is a `Padding`. In later LOADs of the module each padding scalar is ``dram_base``,
    truncated to the width of the scratchpad's scalars. All other fields except the token flags must
    be 0.
    """

    opcode = Opcode.LOAD
    y_size: int = 0
    x_size: int = 0

    @property
    def value(self) -> int:
        """``dram_base`` as a signed number."""
        sign = 1 << DRAM_BASE_WIDTH - 1
        return (self.dram_base ^ sign) - sign


def set_padding(padding: Padding, value: int) -> SetPadding:
    """The instruction that sets ``padding`` to ``value``, a signed number of up to 32 bits."""
    return SetPadding(memory=padding, dram_base=value & (1 << DRAM_BASE_WIDTH) - 1)


@dataclass(frozen=True, kw_only=True)
class Store(_MemoryInstruction):
    opcode = Opcode.STORE
    memory: int = Memory.OUT


@dataclass(frozen=True, kw_only=True)
class Forward(_MemoryInstruction):
    """A STORE to INP (extension FORWARD). Fields mean the same as in a LOAD of INP, but the rows
    come from accumulators instead of DRAM.

    ``dram_base`` is encoded by `forward_base`; ``x_stride`` is the number of accumulators from one
    row to the next.
    """

    opcode = Opcode.STORE
    memory: int = Memory.INP

    @property
    def source(self) -> int:
        """The first accumulator that is read."""
        return self.dram_base & (1 << SRAM_BASE_WIDTH) - 1

    @property
    def source_end(self) -> int:
        """Index after the last accumulator read, or 0 if none is."""
        return self.source + max(self.y_size - 1, 0) * self.x_stride + self.x_size

    @property
    def padding(self) -> int:
        """The padding value, signed; each padding scalar is its low bits."""
        value = self.dram_base >> SRAM_BASE_WIDTH
        return value - (value >> 15 << 16)


def forward_base(accumulator: int, padding: int = 0) -> int:
    """``dram_base`` of a `Forward` that reads from ``accumulator`` on; ``padding`` is a signed
    number of up to 16 bits.
    """
    return accumulator | (padding & 0xFFFF) << SRAM_BASE_WIDTH


@dataclass(frozen=True, kw_only=True)
class _LoopInstruction(Instruction):
    reset: int = 0
    uop_begin: int = 0
    uop_end: int
    iter_out: int = 1
    iter_in: int = 1
    dst_factor_out: int = 0
    dst_factor_in: int = 0
    src_factor_out: int = 0
    src_factor_in: int = 0
    # Extension OVERLAP: the instruction need not wait for older instructions of the other unit
    # (GEMM or ALU), since it touches no accumulator of those that may still be in flight.
    independent: int = 0

    @property
    def uops(self) -> int:
        """Micro-ops executed, counting each iteration."""
        return max(self.uop_end - self.uop_begin, 0) * self.iter_out * self.iter_in


@dataclass(frozen=True, kw_only=True)
class Gemm(_LoopInstruction):
    opcode = Opcode.GEMM
    wgt_factor_out: int = 0
    wgt_factor_in: int = 0

    @property
    def overwrites(self) -> bool:
        """Whether products replace the accumulators instead of being added to them."""
        return False


@dataclass(frozen=True, kw_only=True)
class Multiply(Gemm):
    """A GEMM that sets accumulators instead of adding to them (extension OVERWRITE). ``reset`` must
    be 0.
    """

    opcode = Opcode.MULTIPLY

    @property
    def overwrites(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Depthwise(Gemm):
    """A GEMM with several taps per channel (extension DEPTHWISE); ``overwrite`` sets accumulators
    instead of adding to them. ``reset`` is not encoded.
    """

    opcode = Opcode.DEPTHWISE
    overwrite: int = 0

    @property
    def overwrites(self) -> bool:
        return bool(self.overwrite)


@dataclass(frozen=True, kw_only=True)
class Alu(_LoopInstruction):
    opcode = Opcode.ALU
    alu_opcode: int
    use_immediate: int = 0
    immediate: int = 0

    @property
    def factor(self) -> int | None:
        """Accumulator index of the factor of a MULTIPLY_ADD; None for other operations."""
        if self.alu_opcode != AluOp.MULTIPLY_ADD:
            return None
        return self.immediate % (1 << IMMEDIATE_WIDTH)


def factor_immediate(index: int) -> int:
    """The ``immediate`` of a MULTIPLY_ADD whose factor is the accumulator ``index``."""
    half = 1 << IMMEDIATE_WIDTH - 1
    return (index + half) % (2 * half) - half


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    opcode = Opcode.FINISH


@dataclass(frozen=True, kw_only=True)
class Unknown(Instruction):
    """An instruction with an undefined opcode; dispatched to compute, which rejects it."""

    number: int


@dataclass(frozen=True)
class Uop:
    """A micro-op: indices of destination, source and weight, before loop offsets are added."""

    dst: int = 0
    src: int = 0
    wgt: int = 0


def module_of(instruction: Instruction) -> Module:
    """The module that executes an instruction; compute for an unknown opcode or memory."""
    match instruction:
        case Store() | Forward():
            return Module.STORE
        case Load() if instruction.memory in (*LOADED_BY_LOAD, Memory.WGT_4BIT):
            return Module.LOAD
        case SetPadding() if instruction.memory == Padding.LOAD:
            return Module.LOAD
    return Module.COMPUTE
