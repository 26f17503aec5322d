"""The instruction set: fields, encoding, and the rules of legal instructions.

Hardware and software take all field positions from the tables of this module. An instruction is 128
bits, two little-endian 64-bit words. Fields are packed from bit 0 upwards; a field that would
straddle bit 64 starts word 1 instead. Some widths depend on the depths of the scratchpads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple, Protocol

INSTRUCTION_WIDTH = 128
INSTRUCTION_BYTES = INSTRUCTION_WIDTH // 8
WORD_WIDTH = 64
UOP_WIDTH = 32
SRAM_BASE_WIDTH = 16
DRAM_BASE_WIDTH = 32
SIZE_WIDTH = 16
PAD_WIDTH = 4
ITERATION_WIDTH = 14
IMMEDIATE_WIDTH = 16
# Capacity of each module's instruction queue; instructions count until they retire.
QUEUE_DEPTH = 64
# Maximum value of a token counter.
TOKEN_LIMIT = 1023
# Base registers are aligned to this or to the element size, whichever is larger.
BASE_ALIGNMENT = 64


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


class Memory(IntEnum):
    """Memory ids of LOAD and STORE; ACC_8BIT loads accumulators from scalars of OUT's width."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5
    # Extension WGT_4BIT: loads 8-bit weights from scalars of 4 bits. Encoded as `memory_id`, since
    # all values of the field are in use.
    WGT_4BIT = 9


def memory_id(memory: int) -> int:
    """Encoding of ``memory`` in a LOAD: WGT_4BIT has the number of OUT, which cannot be loaded."""
    return Memory.OUT if memory == Memory.WGT_4BIT else memory


# Memories with a base and a limit in DRAM.
LIMITED = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)


def limited_as(memory: Memory) -> Memory:
    """The memory whose base and limit apply to transfers of ``memory``: OUT for ACC_8BIT, WGT for
    WGT_4BIT.
    """
    match memory:
        case Memory.ACC_8BIT:
            return Memory.OUT
        case Memory.WGT_4BIT:
            return Memory.WGT
    return memory


def per_limited(memory: Memory) -> int:
    """Elements of ``memory`` in DRAM per element of `limited_as`, in which the limit counts."""
    return 2 if memory is Memory.WGT_4BIT else 1


def filled_by(memory: Memory) -> Memory:
    """The memory whose scratchpad LOADs of ``memory`` fill."""
    match memory:
        case Memory.ACC_8BIT:
            return Memory.ACC
        case Memory.WGT_4BIT:
            return Memory.WGT
    return memory


def counted_as(memory: Memory) -> Memory:
    """The memory whose counter counts the elements of ``memory``: WGT for WGT_4BIT."""
    return Memory.WGT if memory is Memory.WGT_4BIT else memory


class Padding(IntEnum):
    """Extension PAD_VALUE: memory ids with which a LOAD sets the padding value of a module."""

    LOAD = 6
    COMPUTE = 7


def padding_of(memory: Memory) -> Padding | None:
    """The padding value that LOADs of ``memory`` use; None for UOP, which is padded with zeros."""
    match filled_by(memory):
        case Memory.INP | Memory.WGT:
            return Padding.LOAD
        case Memory.ACC:
            return Padding.COMPUTE
    return None


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


class Module(IntEnum):
    """The modules that execute instructions, and fetch, which dispatches them."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2
    FETCH = 3


# (giver, taker): the tokens that the giver has pushed and the taker has not popped yet.
TokenQueue = tuple[Module, Module]

TOKEN_QUEUES: tuple[TokenQueue, ...] = (
    (Module.LOAD, Module.COMPUTE),
    (Module.COMPUTE, Module.LOAD),
    (Module.COMPUTE, Module.STORE),
    (Module.STORE, Module.COMPUTE),
)


def queue_name(queue: TokenQueue) -> str:
    """A name such as ``load_to_compute``."""
    giver, taker = queue
    return f"{giver.name}_to_{taker.name}".lower()


@cache
def neighbours(module: Module) -> Mapping[str, Module]:
    """The modules with which ``module`` exchanges tokens, keyed by the side in the flag names."""
    takers = [taker for giver, taker in TOKEN_QUEUES if giver is module]
    return {"prev" if taker < module else "next": taker for taker in takers}


class Cause(IntEnum):
    """Why a run failed; the fault register is 0 after a run without a fault."""

    ILLEGAL_INSTRUCTION = 1
    INDEX_OUT_OF_RANGE = 2
    BUS_ERROR = 3
    TOKEN_OVERFLOW = 4
    BAD_STREAM = 5
    DEADLOCK = 6
    TIMEOUT = 7


@dataclass(frozen=True)
class Field:
    """``width`` bits from bit ``offset`` up."""

    name: str
    offset: int
    width: int
    signed: bool = False

    def insert(self, value: int) -> int:
        """``value`` shifted to the field's position; raises `EncodingError` if it does not fit."""
        low, high = (
            (-1 << self.width - 1, 1 << self.width - 1) if self.signed else (0, 1 << self.width)
        )
        if not low <= value < high:
            raise EncodingError(f"{self.name} = {value} is not within {low} to {high - 1}")
        return (value & (1 << self.width) - 1) << self.offset

    def extract(self, bits: int) -> int:
        """The field's value in ``bits``."""
        value = bits >> self.offset & (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> self.width - 1 else value


class EncodingError(ValueError):
    """A value that does not fit its field."""


Layout = Mapping[str, Field]
_HEAD = (("opcode", 3), ("pop_prev", 1), ("pop_next", 1), ("push_prev", 1), ("push_next", 1))
_MEMORY = (
    ("memory", 3),
    ("sram_base", SRAM_BASE_WIDTH),
    ("dram_base", DRAM_BASE_WIDTH),
    ("reserved", 6),
    ("y_size", SIZE_WIDTH),
    ("x_size", SIZE_WIDTH),
    ("x_stride", SIZE_WIDTH),
    ("y_pad_0", PAD_WIDTH),
    ("y_pad_1", PAD_WIDTH),
    ("x_pad_0", PAD_WIDTH),
    ("x_pad_1", PAD_WIDTH),
)
_PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
# Fields that must be zero, like the reserved bits, in a LOAD that sets a padding value.
UNUSED_BY_SET_PADDING = ("sram_base", "y_size", "x_size", "x_stride", *_PADS)
_SIGNED = frozenset({"immediate"})
_OPCODE_MASK = 7


def _place(items: Iterable[tuple[str, int]]) -> dict[str, Field]:
    layout, offset = {}, 0
    for name, width in items:
        if offset < WORD_WIDTH < offset + width:
            offset = WORD_WIDTH
        layout[name] = Field(name, offset, width, name in _SIGNED)
        offset += width
    return layout


def _with_flag(layout: dict[str, Field], name: str) -> dict[str, Field]:
    """Add a one-bit field to ``layout``: the highest unused bit of word 1, else of word 0.

    Every configuration that fits has an unused bit: the widths of GEMM's fields in the two words
    are never both even, so they cannot fill both words; nor can ALU's.
    """
    used = sum((1 << item.width) - 1 << item.offset for item in layout.values())
    offset = next(
        bit
        for word in (1, 0)
        for bit in reversed(range(word * WORD_WIDTH, (word + 1) * WORD_WIDTH))
        if not used >> bit & 1
    )
    return {**layout, name: Field(name, offset, 1)}


def _layouts(widths: Mapping[str, int], extensions: frozenset[str]) -> dict[Opcode, Layout]:
    uop, inp, wgt, acc = (widths[name] for name in ("uop", "inp", "wgt", "acc"))
    loops = (
        ("reset", 1),
        ("uop_begin", uop),
        ("uop_end", uop + 1),
        ("iter_out", ITERATION_WIDTH),
        ("iter_in", ITERATION_WIDTH),
        ("dst_factor_out", acc),
        ("dst_factor_in", acc),
    )
    gemm = (
        ("src_factor_out", inp),
        ("src_factor_in", inp),
        ("wgt_factor_out", wgt),
        ("wgt_factor_in", wgt),
    )
    alu = (
        ("src_factor_out", acc),
        ("src_factor_in", acc),
        ("alu_opcode", 3),
        ("use_immediate", 1),
        ("immediate", IMMEDIATE_WIDTH),
    )
    layouts = {
        Opcode.LOAD: _place(_HEAD + _MEMORY),
        Opcode.STORE: _place(_HEAD + _MEMORY),
        Opcode.GEMM: _place(_HEAD + loops + gemm),
        Opcode.FINISH: _place(_HEAD),
        Opcode.ALU: _place(_HEAD + loops + alu),
    }
    if "overlap" in extensions:
        for opcode in (Opcode.GEMM, Opcode.ALU):
            layouts[opcode] = _with_flag(layouts[opcode], "independent")
    if "overwrite" in extensions:
        layouts[Opcode.MULTIPLY] = layouts[Opcode.GEMM]
    if "depthwise" in extensions:
        # DEPTHWISE never resets; the bit of ``reset`` is ``overwrite`` instead.
        layouts[Opcode.DEPTHWISE] = {
            field.name: field
            for field in (
                replace(field, name="overwrite") if name == "reset" else field
                for name, field in layouts[Opcode.GEMM].items()
            )
        }
    return dict(layouts)


def _uop_layout(widths: Mapping[str, int]) -> Layout:
    return _place(
        (("dst", widths["acc"]), ("src", max(widths["acc"], widths["inp"])), ("wgt", widths["wgt"]))
    )


def encoding_problem(index_widths: Mapping[str, int]) -> str | None:
    """Which encoding is too wide, given log2 of the depths of ``uop``, ``inp``, ``wgt`` and
    ``acc``; None if all fit.
    """
    uop = _uop_layout(index_widths)
    bits = sum(item.width for item in uop.values())
    if bits > UOP_WIDTH:
        widths = " + ".join(f"{name} {item.width}" for name, item in uop.items())
        return f"a micro-op would need {bits} bits ({widths}) of {UOP_WIDTH}"
    for opcode in (Opcode.GEMM, Opcode.ALU):
        last = list(_layouts(index_widths, frozenset())[opcode].values())[-1]
        if last.offset + last.width > INSTRUCTION_WIDTH:
            return (
                f"{opcode.name} would need {last.offset + last.width} bits of {INSTRUCTION_WIDTH} "
                f"({last.name} is the first field left out)"
            )
    return None


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


def factor_immediate(index: int) -> int:
    """The ``immediate`` of a MULTIPLY_ADD whose factor is the accumulator ``index``."""
    half = 1 << IMMEDIATE_WIDTH - 1
    return (index + half) % (2 * half) - half


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
        self.layouts = _layouts(index_widths, extensions)
        self.uop_layout = _uop_layout(index_widths)
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


# Memories filled by the load module; compute fills all others.
LOADED_BY_LOAD = (Memory.INP, Memory.WGT)
_LOADED = (*LOADED_BY_LOAD, Memory.UOP, Memory.ACC, Memory.ACC_8BIT)


def transferred_memories(extensions: frozenset[str]) -> tuple[Memory, ...]:
    """The memories of LOADs and STOREs on a machine with ``extensions``."""
    return tuple(
        memory for memory in Memory if memory is not Memory.WGT_4BIT or "wgt_4bit" in extensions
    )


def loaded_memories(extensions: frozenset[str]) -> tuple[Memory, ...]:
    """The memories of LOADs on a machine with ``extensions``."""
    return (*_LOADED, Memory.WGT_4BIT) if "wgt_4bit" in extensions else _LOADED


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
