"""Rules of legal instructions: what a module rejects before it pops tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from .instructions import Instruction, Unknown, module_of
from .memories import Memory, Padding, loaded_memories
from .modules import neighbours
from .operations import BASE_ALU_OPS, Opcode, extended_alu_ops

_PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
# Fields that must be zero, like the reserved bits, in a LOAD that sets a padding value.
UNUSED_BY_SET_PADDING = ("sram_base", "y_size", "x_size", "x_stride", *_PADS)


class Rule(NamedTuple):
    """A constraint on legal instructions: each of ``fields`` has one of ``values``.

    ``when`` restricts the rule to instructions with one of some values in another field. ``reason``
    describes the violation; ``{field}`` and ``{value}`` in it are replaced by the offending field.
    """

    fields: tuple[str, ...]
    values: tuple[int, ...]
    reason: str
    when: tuple[str, tuple[int, ...]] | None = None

    def problem(self, instruction: Instruction) -> str | None:
        """The reason if ``instruction`` breaks the rule."""
        if self.when is not None and getattr(instruction, self.when[0]) not in self.when[1]:
            return None
        for field in self.fields:
            value = getattr(instruction, field)
            if value not in self.values:
                return self.reason.format(field=field, value=value)
        return None


@lru_cache(maxsize=256)
def rules(opcode: Opcode, extensions: frozenset[str]) -> tuple[Rule, ...]:
    """Rules of legal instructions, apart from token flags and bits outside all fields.

    The modules reject instructions that break one of these rules, as `illegal_reason` does.
    """
    reserved = Rule(("reserved",), (0,), "reserved bits are {value:#x}, not zero")
    match opcode:
        case Opcode.LOAD:
            paddings = tuple(Padding) if "pad_value" in extensions else ()
            return (
                reserved,
                Rule(
                    ("memory",),
                    (*loaded_memories(extensions), *paddings),
                    "memory {value} cannot be loaded",
                ),
                Rule(
                    UNUSED_BY_SET_PADDING,
                    (0,),
                    "{field} is not zero in a LOAD that sets a padding value",
                    when=("memory", paddings),
                ),
            )
        case Opcode.STORE:
            stored: tuple[Memory, ...] = (Memory.OUT,)
            unpadded: tuple[str, tuple[int, ...]] | None = None
            if "forward" in extensions:
                stored, unpadded = (Memory.OUT, Memory.INP), ("memory", (Memory.OUT,))
            return (
                reserved,
                Rule(("memory",), stored, "memory {value} cannot be stored"),
                Rule(_PADS, (0,), "a store cannot have padding", when=unpadded),
            )
        case Opcode.MULTIPLY:
            return (Rule(("reset",), (0,), "MULTIPLY has no reset"),)
        case Opcode.ALU:
            extended = extended_alu_ops(extensions)
            return (
                Rule(
                    ("alu_opcode",),
                    (*BASE_ALU_OPS, *extended),
                    "ALU opcode {value} is not in the instruction set",
                ),
                *(
                    Rule(
                        ("use_immediate",),
                        (0,),
                        f"{operation.name} has no immediate",
                        when=("alu_opcode", (operation,)),
                    )
                    for operation in extended
                ),
            )
    return ()


def illegal_reason(
    instruction: Instruction, extensions: frozenset[str] = frozenset()
) -> str | None:
    """Reason why a module rejects the instruction before popping tokens, or None.

    Checks fields only; `InstructionSet.problem` also checks the bits outside all fields.
    """
    module = module_of(instruction)
    sides = neighbours(module)
    if "prev" not in sides and (instruction.pop_prev or instruction.push_prev):
        return f"{module.name.lower()} has no previous neighbour to exchange tokens with"
    if "next" not in sides and (instruction.pop_next or instruction.push_next):
        return f"{module.name.lower()} has no next neighbour to exchange tokens with"
    if isinstance(instruction, Unknown):
        return f"opcode {instruction.number} is not in the instruction set"
    for rule in rules(instruction.opcode, extensions):
        if reason := rule.problem(instruction):
            return reason
    return None
