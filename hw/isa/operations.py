"""Opcodes, and the operations of the tensor ALU with their parameters."""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """Opcodes; docs/isa.md describes the instructions."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4
    # Extension OVERWRITE: a GEMM that sets the accumulator instead of adding to it.
    MULTIPLY = 5
    # Extension DEPTHWISE: a GEMM in which each output multiplies several taps of its own channel.
    DEPTHWISE = 6


# Opcodes that multiply inputs and weights.
MULTIPLYING = (Opcode.GEMM, Opcode.MULTIPLY, Opcode.DEPTHWISE)


class AluOp(IntEnum):
    """Operations of the tensor ALU, with their encoding."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4
    # Extension REQUANTIZE.
    REQUANTIZE = 5
    # Extension LOOKUP.
    LOOKUP = 6
    # Extension MULTIPLY_ADD; the immediate is the accumulator index of the factor.
    MULTIPLY_ADD = 7


# Operations added by extensions. All read accumulators; only MULTIPLY_ADD has an immediate.
_EXTENSION_ALU_OPS = {
    "requantize": AluOp.REQUANTIZE,
    "lookup": AluOp.LOOKUP,
    "multiply_add": AluOp.MULTIPLY_ADD,
}
BASE_ALU_OPS = tuple(op for op in AluOp if op not in _EXTENSION_ALU_OPS.values())


def extended_alu_ops(extensions: frozenset[str]) -> tuple[AluOp, ...]:
    """Operations that these extensions add to `BASE_ALU_OPS`."""
    return tuple(op for name, op in _EXTENSION_ALU_OPS.items() if name in extensions)


# Number of accumulator elements with the parameters of a REQUANTIZE. In order: the bias; bits 31..0
# of the scale, which is unsigned and has SCALE_WIDTH bits, SCALE_FRACTION of them fractional; the
# upper bits of the scale; and, from bit 0 up, zero point, low and high bound as int8. If WIDE_BIT
# is set in the last element, accumulators are first divided by a power of two, which leaves
# MULTIPLIED_WIDTH of their 32 bits. Extension ROUND_TWICE: if ROUND_TWICE_BIT is set, products are
# rounded as by TensorFlow Lite's kernels, whose second rounding drops as many bits as the
# SECOND_SHIFT_WIDTH bits from SECOND_SHIFT_BIT on say. Other bits are ignored.
REQUANTIZE_PARAMETERS = 4
SCALE_WIDTH = 49
SCALE_FRACTION = 43
MULTIPLIED_WIDTH = 25
WIDE_BIT = 24
ROUND_TWICE_BIT = 25
SECOND_SHIFT_BIT = 26
SECOND_SHIFT_WIDTH = 4
# Maximum taps per channel of a DEPTHWISE micro-op.
MOST_TAPS = 3
# Bytes of a LOOKUP table: one entry per byte value.
TABLE_BYTES = 256
