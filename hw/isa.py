"""The instruction set: fields, encoding, and the rules of legal instructions.

Everything that reads or writes an instruction or a micro-op, in hardware as in software, takes
field positions from the tables of this module. An instruction is 128 bits, two little-endian 64-bit
words; fields follow one another from bit 0, and one that would straddle bit 64 starts word 1. Some
widths depend on the depths of the scratchpads."""

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
# Instructions that each module's queue holds, counted until they retire.
QUEUE_DEPTH = 64
# The largest number of tokens that a token counter holds.
TOKEN_LIMIT = 1023
# Base registers are aligned to the larger of this and an element.
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
    """Memory ids of LOAD and STORE; ACC_8BIT loads accumulators from scalars as narrow as OUT's."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


# Those with a base and a limit in DRAM.
LIMITED = (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC, Memory.OUT)


def limited_as(memory: Memory) -> Memory:
    """The memory whose base and limit transfers of ``memory`` have."""
    return Memory.OUT if memory is Memory.ACC_8BIT else memory


class Padding(IntEnum):
    """Extension PAD_VALUE: a LOAD that names one of these as memory sets that module's value."""

    LOAD = 6
    COMPUTE = 7


def padding_of(memory: Memory) -> Padding | None:
    """The value that pads LOADs of ``memory``; None for UOP, always padded with zeros."""
    match memory:
        case Memory.INP | Memory.WGT:
            return Padding.LOAD
        case Memory.ACC | Memory.ACC_8BIT:
            return Padding.COMPUTE
    return None


class AluOp(IntEnum):
    """The operations of the tensor ALU by their number."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3
    MUL = 4
    # Extension REQUANTIZE.
    REQUANTIZE = 5
    # Extension LOOKUP.
    LOOKUP = 6
    # Extension MULTIPLY_ADD; the immediate is the index of the accumulators that multiply.
    MULTIPLY_ADD = 7


# The operations that extensions add; each reads accumulators, and has no other immediate.
_EXTENSION_ALU_OPS = {
    "requantize": AluOp.REQUANTIZE,
    "lookup": AluOp.LOOKUP,
    "multiply_add": AluOp.MULTIPLY_ADD,
}
BASE_ALU_OPS = tuple(op for op in AluOp if op not in _EXTENSION_ALU_OPS.values())


def extended_alu_ops(extensions: frozenset[str]) -> tuple[AluOp, ...]:
    """The operations of a machine with these extensions that are not `BASE_ALU_OPS`."""
    return tuple(op for name, op in _EXTENSION_ALU_OPS.items() if name in extensions)


# Accumulator elements that hold the parameters of a requantization, in this order: the bias; bits
# 31..0 of the scale, an unsigned number of SCALE_WIDTH bits of which SCALE_FRACTION are a fraction;
# its upper bits; and, from bit 0 up, zero point, low and high bound as int8, with bit WIDE_BIT set
# if accumulators are first divided by a power of two that leaves MULTIPLIED_WIDTH bits of their 32.
# Other bits are ignored.
REQUANTIZE_PARAMETERS = 4
SCALE_WIDTH = 49
SCALE_FRACTION = 43
MULTIPLIED_WIDTH = 25
WIDE_BIT = 24
# The most taps of a channel that a micro-op of DEPTHWISE takes.
MOST_TAPS = 3
# Bytes of a table of LOOKUP, one for each value of a byte.
TABLE_BYTES = 256


class Module(IntEnum):
    """The modules that execute instructions, and fetch, which hands them out."""

    LOAD = 0
    COMPUTE = 1
    STORE = 2
    FETCH = 3


# (giver, taker): the tokens that the first has given to the second and that are not taken yet.
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
    """The modules that ``module`` exchanges tokens with, by the side that its flags name."""
    takers = [taker for giver, taker in TOKEN_QUEUES if giver is module]
    return {"prev" if taker < module else "next": taker for taker in takers}


class Cause(IntEnum):
    """Why a run failed; 0 in the fault register means that it did not."""

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
        """``value`` at the field's place; raises `EncodingError` if the field cannot hold it."""
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
    """A value that its field cannot hold."""


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
# The fields that must be zero, besides the reserved bits, in a LOAD that sets a padding value.
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
    """``layout`` with one more bit: the highest unused one of word 1, else of word 0.

    There is one in every configuration that fits: the widths of GEMM's fields in the two words are
    never both even, so they cannot fill both words; nor can ALU's.
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
        # It never resets: the bit says whether it overwrites.
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
    """What does not fit, given log2 of the depths of ``uop``, ``inp``, ``wgt`` and ``acc``."""
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
    """What all instructions have: the tokens that are popped before and pushed after."""

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
        """Elements that one row takes in the scratchpad, padding included."""
        return self.x_pad_0 + self.x_size + self.x_pad_1

    @property
    def elements(self) -> int:
        """Elements that the instruction touches in the scratchpad, padding included."""
        if self.x_size == 0:
            return 0
        return (self.y_pad_0 + self.y_size + self.y_pad_1) * self.row_elements


@dataclass(frozen=True, kw_only=True)
class Load(_MemoryInstruction):
    opcode = Opcode.LOAD


@dataclass(frozen=True, kw_only=True)
class SetPadding(_MemoryInstruction):
    """A LOAD that loads nothing: extension PAD_VALUE. ``memory`` is a `Padding`.

    In later LOADs of its module each scalar of padding is the low bits of ``dram_base``, as many
    as the scratchpad's scalars have. All other fields except the token flags must be 0.
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
    """The instruction that sets ``padding`` to ``value``, of at most 32 bits with its sign."""
    return SetPadding(memory=padding, dram_base=value & (1 << DRAM_BASE_WIDTH) - 1)


@dataclass(frozen=True, kw_only=True)
class Store(_MemoryInstruction):
    opcode = Opcode.STORE
    memory: int = Memory.OUT


@dataclass(frozen=True, kw_only=True)
class Forward(_MemoryInstruction):
    """A STORE to INP (extension FORWARD). Its fields have the meaning of a LOAD of INP, but its
    rows come from accumulators instead of DRAM.

    ``dram_base`` is `forward_base` of the first accumulator and the padding value; ``x_stride``
    counts accumulators from row to row.
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
        """The signed number whose low bits are each scalar of padding."""
        value = self.dram_base >> SRAM_BASE_WIDTH
        return value - (value >> 15 << 16)


def factor_immediate(index: int) -> int:
    """The ``immediate`` of a MULTIPLY_ADD by the accumulators at ``index``."""
    half = 1 << IMMEDIATE_WIDTH - 1
    return (index + half) % (2 * half) - half


def forward_base(accumulator: int, padding: int = 0) -> int:
    """``dram_base`` of a `Forward` that reads from ``accumulator`` on; ``padding`` has 16 bits at
    most, with its sign."""
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
    # Extension OVERLAP: the instruction touches no accumulator of an instruction of the other unit,
    # GEMM or ALU, that may still be in flight; it need not wait for that.
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
        """Whether products replace what accumulators held, instead of being added to it."""
        return False


@dataclass(frozen=True, kw_only=True)
class Multiply(Gemm):
    """A GEMM that sets accumulators: extension OVERWRITE. ``reset`` must be 0."""

    opcode = Opcode.MULTIPLY

    @property
    def overwrites(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class Depthwise(Gemm):
    """A GEMM of several taps per channel, which adds to accumulators or, with ``overwrite``, sets
    them: extension DEPTHWISE. ``reset`` is not encoded."""

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
        """Of a MULTIPLY_ADD, the index of the accumulators that multiply; None of others."""
        if self.alu_opcode != AluOp.MULTIPLY_ADD:
            return None
        return self.immediate % (1 << IMMEDIATE_WIDTH)


@dataclass(frozen=True, kw_only=True)
class Finish(Instruction):
    opcode = Opcode.FINISH


@dataclass(frozen=True, kw_only=True)
class Unknown(Instruction):
    """An opcode that the instruction set does not have; goes to compute, which refuses it."""

    number: int


@dataclass(frozen=True)
class Uop:
    """A micro-op: indices of destination, source and weight, to which loops add their offsets."""

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
    """Encoder and decoder for one configuration; get it by `instruction_set`."""

    def __init__(
        self, index_widths: Mapping[str, int], extensions: frozenset[str] = frozenset()
    ) -> None:
        self.extensions = extensions
        self._paddings = frozenset(Padding) if "pad_value" in extensions else frozenset()
        self._forwarded = (Memory.INP,) if "forward" in extensions else ()
        self.layouts = _layouts(index_widths, extensions)
        self.uop_layout = _uop_layout(index_widths)
        # The bits that no field of an instruction covers, which are 0 in a legal one. Extensions
        # take their flags from these bits, so a machine without the extension must refuse them.
        # FINISH has no fields beyond its head and never gets any: its other bits are ignored.
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
        for name, item in self.layouts[instruction.opcode].items():
            if name != "opcode":
                try:
                    bits |= item.insert(int(getattr(instruction, name)))
                except EncodingError as error:
                    raise EncodingError(f"{instruction.opcode.name}: {error}") from None
        return bits

    def decode(self, bits: int) -> Instruction:
        """Any 128 bits decode; `problem` says whether the machine accepts them."""
        number = bits & _OPCODE_MASK
        known = number in self.layouts
        # The common fields of all instructions are those of FINISH, which has no others.
        layout = self.layouts[Opcode(number) if known else Opcode.FINISH]
        values = {name: item.extract(bits) for name, item in layout.items() if name != "opcode"}
        if not known:
            return Unknown(number=number, **values)
        if number == Opcode.LOAD and values["memory"] in self._paddings:
            return SetPadding(**values)
        if number == Opcode.STORE and values["memory"] in self._forwarded:
            return Forward(**values)
        return _CLASSES[Opcode(number)](**values)

    def unused_bits(self, bits: int) -> int:
        """The set ``bits`` outside all fields of the instruction."""
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
        """Any 32 bits decode; bits outside all fields are ignored."""
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


# The memories that load fills; all others that can be loaded are compute's.
LOADED_BY_LOAD = (Memory.INP, Memory.WGT)
_LOADED = (*LOADED_BY_LOAD, Memory.UOP, Memory.ACC, Memory.ACC_8BIT)


def module_of(instruction: Instruction) -> Module:
    """The module to which fetch hands an instruction; compute for an unknown opcode or memory."""
    match instruction:
        case Store() | Forward():
            return Module.STORE
        case Load() if instruction.memory in LOADED_BY_LOAD:
            return Module.LOAD
        case SetPadding() if instruction.memory == Padding.LOAD:
            return Module.LOAD
    return Module.COMPUTE


class Rule(NamedTuple):
    """A legal instruction has one of ``values`` in each of ``fields``.

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
                Rule(("memory",), (*_LOADED, *paddings), "memory {value} cannot be loaded"),
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
    """Why a module refuses the instruction before it takes any token; None if it does not.

    This checks fields only; `InstructionSet.problem` also checks the bits outside of them.
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
