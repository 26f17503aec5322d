"""Encoder and decoder of the instructions of one configuration: `instruction_set`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from .instructions import (
    Alu,
    Depthwise,
    Finish,
    Forward,
    Gemm,
    Instruction,
    Load,
    Multiply,
    SetPadding,
    Store,
    Unknown,
    Uop,
)
from .layouts import INSTRUCTION_WIDTH, OPCODE_WIDTH, EncodingError, instruction_layouts, uop_layout
from .legality import illegal_reason
from .memories import Memory, Padding, memory_id
from .operations import Opcode

_OPCODE_MASK = (1 << OPCODE_WIDTH) - 1

_CLASSES: dict[Opcode, type[Instruction]] = {
    Opcode.LOAD: Load,
    Opcode.STORE: Store,
    Opcode.GEMM: Gemm,
    Opcode.FINISH: Finish,
    Opcode.ALU: Alu,
    Opcode.MULTIPLY: Multiply,
    Opcode.DEPTHWISE: Depthwise,
}


class InstructionSet:
    """Encoder and decoder for one configuration; created by `instruction_set`."""

    def __init__(
        self, index_widths: Mapping[str, int], extensions: frozenset[str] = frozenset()
    ) -> None:
        self.extensions = extensions
        self._paddings = frozenset(Padding) if "pad_value" in extensions else frozenset()
        self._forwarded = (Memory.INP,) if "forward" in extensions else ()
        self._loads_4bit = "wgt_4bit" in extensions
        self.layouts = instruction_layouts(index_widths, extensions)
        self.uop_layout = uop_layout(index_widths)
        # Per opcode, the bits outside all fields, which are 0 in a legal instruction. Extensions
        # take their flags from these bits, so a machine without the extension must reject them.
        # FINISH will never have fields besides its token flags, so its other bits are ignored.
        self.uncovered: dict[int, int] = {
            opcode: ~sum((1 << item.width) - 1 << item.offset for item in layout.values())
            & (1 << INSTRUCTION_WIDTH) - 1
            for opcode, layout in self.layouts.items()
            if opcode is not Opcode.FINISH
        }

    def encode(self, instruction: Instruction) -> int:
        """The 128 bits; raises `EncodingError` naming the field that cannot hold its value."""
        bits = int(instruction.opcode)
        if instruction.opcode not in self.layouts:
            raise EncodingError(
                f"{instruction.opcode.name} is not in the instruction set of this configuration"
            )
        if getattr(instruction, "independent", 0) and "overlap" not in self.extensions:
            raise EncodingError(f"{instruction.opcode.name}: independent needs extension OVERLAP")
        if isinstance(instruction, SetPadding) and "pad_value" not in self.extensions:
            raise EncodingError("LOAD: a padding value needs extension PAD_VALUE")
        if isinstance(instruction, Forward) and "forward" not in self.extensions:
            raise EncodingError("STORE: memory INP needs extension FORWARD")
        values = vars(instruction)
        if isinstance(instruction, Load):
            values = {**values, "memory": self._encoded_memory(instruction.memory)}
        for name, item in self.layouts[instruction.opcode].items():
            if name != "opcode":
                try:
                    bits |= item.insert(int(values[name]))
                except EncodingError as error:
                    raise EncodingError(f"{instruction.opcode.name}: {error}") from None
        return bits

    def _encoded_memory(self, memory: int) -> int:
        """`memory_id` of a LOAD; raises `EncodingError` if it would mean another memory."""
        if memory == Memory.WGT_4BIT and not self._loads_4bit:
            raise EncodingError("LOAD: memory WGT_4BIT needs extension WGT_4BIT")
        if memory == Memory.OUT and self._loads_4bit:
            raise EncodingError("LOAD: memory OUT cannot be loaded; its number means WGT_4BIT")
        return memory_id(memory)

    def decode(self, bits: int) -> Instruction:
        """Decode any 128 bits; `problem` says whether the machine accepts them."""
        number = bits & _OPCODE_MASK
        known = number in self.layouts
        # All instructions share the fields of FINISH, which has no others.
        layout = self.layouts[Opcode(number) if known else Opcode.FINISH]
        values = {name: item.extract(bits) for name, item in layout.items() if name != "opcode"}
        if not known:
            return Unknown(number=number, **values)
        if number == Opcode.LOAD and values["memory"] in self._paddings:
            return SetPadding(**values)
        if number == Opcode.LOAD and values["memory"] == Memory.OUT and self._loads_4bit:
            return Load(**{**values, "memory": Memory.WGT_4BIT})
        if number == Opcode.STORE and values["memory"] in self._forwarded:
            return Forward(**values)
        return _CLASSES[Opcode(number)](**values)

    def unused_bits(self, bits: int) -> int:
        """The set bits of ``bits`` that lie outside all fields of the instruction."""
        return bits & self.uncovered.get(bits & _OPCODE_MASK, 0)

    def problem(self, bits: int) -> str | None:
        """Reason why the machine rejects 128 bits as an instruction, or None.

        This is the complete rule of the fault ``illegal_instruction``: `illegal_reason` of the
        decoded instruction, and no set bit outside its fields.
        """
        reason = illegal_reason(self.decode(bits), self.extensions)
        if reason is None and (unused := self.unused_bits(bits)):
            at = (unused & -unused).bit_length() - 1
            reason = f"bit {at} is set, which no field covers"
        return reason

    def encode_uop(self, uop: Uop) -> int:
        """The 32 bits; raises `EncodingError` as `encode` does."""
        return sum(item.insert(getattr(uop, name)) for name, item in self.uop_layout.items())

    def decode_uop(self, bits: int) -> Uop:
        """Decode any 32 bits; bits outside all fields are ignored."""
        return Uop(**{name: item.extract(bits) for name, item in self.uop_layout.items()})


class HasExtensions(Protocol):
    """Flags of a `Config` on which the instruction set depends, besides scratchpad depths."""

    @property
    def extensions(self) -> frozenset[str]: ...


@lru_cache(maxsize=64)
def instruction_set(config: HasExtensions) -> InstructionSet:
    """The instruction set of a `Config`."""
    return InstructionSet(
        {name: getattr(config, name).index_width for name in ("uop", "inp", "wgt", "acc")},
        config.extensions,
    )
