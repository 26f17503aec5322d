"""The instruction set: operations, fields, encoding, and the rules of legal instructions.

Hardware and software take all numbers and field positions from this package, which is imported as a
whole: ``from amaranth_vta.hw import isa``. An instruction is 128 bits, two little-endian 64-bit
words. Fields are packed from bit 0 upwards; a field that would straddle bit 64 starts word 1
instead. Some widths depend on the depths of the scratchpads.

Each file imports only files above it in this list, which is the order to read them in:

- `operations`: opcodes, and the operations of the tensor ALU with their parameters
- `memories`: memories of LOAD and STORE, their limits in DRAM, and padding values
- `modules`: modules that execute instructions, the token queues between them, causes of faults
- `layouts`: width and position of each field
- `instructions`: instructions and micro-ops, with one attribute per field
- `legality`: rules of legal instructions
- `encoding`: encoder and decoder of one configuration
"""

from __future__ import annotations

from .encoding import HasExtensions, InstructionSet, instruction_set
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
    factor_immediate,
    forward_base,
    module_of,
    set_padding,
)
from .layouts import (
    DRAM_BASE_WIDTH,
    IMMEDIATE_WIDTH,
    INSTRUCTION_BYTES,
    INSTRUCTION_WIDTH,
    ITERATION_WIDTH,
    PAD_WIDTH,
    SIZE_WIDTH,
    SRAM_BASE_WIDTH,
    UOP_WIDTH,
    WORD_WIDTH,
    EncodingError,
    Field,
    Layout,
    encoding_problem,
)
from .legality import UNUSED_BY_SET_PADDING, Rule, illegal_reason, rules
from .memories import (
    BASE_ALIGNMENT,
    LIMITED,
    LOADED_BY_LOAD,
    Memory,
    Padding,
    counted_as,
    filled_by,
    limited_as,
    loaded_memories,
    memory_id,
    padding_of,
    per_limited,
    transferred_memories,
)
from .modules import (
    QUEUE_DEPTH,
    TOKEN_LIMIT,
    TOKEN_QUEUES,
    Cause,
    Module,
    TokenQueue,
    neighbours,
    queue_name,
)
from .operations import (
    BASE_ALU_OPS,
    MOST_TAPS,
    MULTIPLIED_WIDTH,
    MULTIPLYING,
    REQUANTIZE_PARAMETERS,
    ROUND_TWICE_BIT,
    SCALE_FRACTION,
    SCALE_WIDTH,
    SECOND_SHIFT_BIT,
    SECOND_SHIFT_WIDTH,
    TABLE_BYTES,
    WIDE_BIT,
    AluOp,
    Opcode,
    extended_alu_ops,
)

__all__ = [
    "BASE_ALIGNMENT",
    "BASE_ALU_OPS",
    "DRAM_BASE_WIDTH",
    "IMMEDIATE_WIDTH",
    "INSTRUCTION_BYTES",
    "INSTRUCTION_WIDTH",
    "ITERATION_WIDTH",
    "LIMITED",
    "LOADED_BY_LOAD",
    "MOST_TAPS",
    "MULTIPLIED_WIDTH",
    "MULTIPLYING",
    "PAD_WIDTH",
    "QUEUE_DEPTH",
    "REQUANTIZE_PARAMETERS",
    "ROUND_TWICE_BIT",
    "SCALE_FRACTION",
    "SCALE_WIDTH",
    "SECOND_SHIFT_BIT",
    "SECOND_SHIFT_WIDTH",
    "SIZE_WIDTH",
    "SRAM_BASE_WIDTH",
    "TABLE_BYTES",
    "TOKEN_LIMIT",
    "TOKEN_QUEUES",
    "UNUSED_BY_SET_PADDING",
    "UOP_WIDTH",
    "WIDE_BIT",
    "WORD_WIDTH",
    "Alu",
    "AluOp",
    "Cause",
    "Depthwise",
    "EncodingError",
    "Field",
    "Finish",
    "Forward",
    "Gemm",
    "HasExtensions",
    "Instruction",
    "InstructionSet",
    "Layout",
    "Load",
    "Memory",
    "Module",
    "Multiply",
    "Opcode",
    "Padding",
    "Rule",
    "SetPadding",
    "Store",
    "TokenQueue",
    "Unknown",
    "Uop",
    "counted_as",
    "encoding_problem",
    "extended_alu_ops",
    "factor_immediate",
    "filled_by",
    "forward_base",
    "illegal_reason",
    "instruction_set",
    "limited_as",
    "loaded_memories",
    "memory_id",
    "module_of",
    "neighbours",
    "padding_of",
    "per_limited",
    "queue_name",
    "rules",
    "set_padding",
    "transferred_memories",
]
