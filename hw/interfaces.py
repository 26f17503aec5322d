"""Interfaces between modules: instructions, tokens, faults.

Layouts of instructions and micro-ops are derived from `amaranth_vta.hw.isa`; this module defines no
bit position.
"""

from collections.abc import Iterable

from amaranth.hdl import Cat, Const, Mux, Shape, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

INDEX_WIDTH = 32
# Width of a count of scratchpad elements.
ELEMENTS_WIDTH = isa.SRAM_BASE_WIDTH + 1
# Width of byte addresses on the bus.
ADDRESS_WIDTH = 48


def address_width(config: Config) -> int:
    """Significant bits of a byte address; the others are 0. Two more than DRAM needs, so that a
    base beyond DRAM is detectable (`within_dram`) and no sum wraps.
    """
    return config.log_dram_size + 2


def index_width(config: Config) -> int:
    """Bits of an instruction index: enough for streams of twice the size of DRAM."""
    return min(INDEX_WIDTH, config.log_dram_size - 3)


def within_dram(config: Config, address: Value) -> Value:
    """A byte ``address`` in as many bits as DRAM needs, plus one that is set if it is beyond DRAM,
    so that memory answers with an error.
    """
    return Cat(address[: config.log_dram_size], address[config.log_dram_size :].any())


def instruction_layout(config: Config, opcode: isa.Opcode) -> data.FlexibleLayout:
    """Fields of one kind of instruction, as a view of its 128 bits."""
    return _view(isa.instruction_set(config).layouts[opcode], isa.INSTRUCTION_WIDTH)


def uop_layout(config: Config) -> data.FlexibleLayout:
    """Fields of a micro-op, as a view of its 32 bits."""
    return _view(isa.instruction_set(config).uop_layout, isa.UOP_WIDTH)


def is_illegal(config: Config, opcode: isa.Opcode, bits: Value) -> Value:
    """Whether an instruction with this opcode violates one of `isa.rules` or sets a bit outside its
    fields.
    """
    fields = data.View(instruction_layout(config, opcode), bits)
    uncovered = Const(isa.instruction_set(config).uncovered.get(opcode, 0), isa.INSTRUCTION_WIDTH)
    problems = [(bits & uncovered) != 0]

    def value_of(name: str) -> Value:
        return memory_of(config, fields) if name == "memory" else fields[name]

    for rule in isa.rules(opcode, config.extensions):
        broken = Cat(~_is_one_of(value_of(name), rule.values) for name in rule.fields).any()
        if rule.when is not None:
            broken &= _is_one_of(value_of(rule.when[0]), rule.when[1])
        problems.append(broken)
    return Cat(problems).any()


def is_for_load(config: Config, memory: Value) -> Value:
    """Whether fetch dispatches a LOAD with the field ``memory`` to load; otherwise to compute."""
    packed = (isa.memory_id(isa.Memory.WGT_4BIT),) if config.wgt_4bit else ()
    padding = (isa.Padding.LOAD,) if config.pad_value else ()
    return _is_one_of(memory, (*isa.LOADED_BY_LOAD, *packed, *padding))


def memory_of(config: Config, fields: data.View) -> Value:
    """The `isa.Memory` of an instruction, viewed as a LOAD or STORE."""
    if not config.wgt_4bit:
        return fields.memory
    shared = isa.memory_id(isa.Memory.WGT_4BIT)
    packed = (fields.opcode == isa.Opcode.LOAD) & (fields.memory == shared)
    return Mux(packed, isa.Memory.WGT_4BIT, fields.memory)


def is_forward(fields: data.View) -> Value:
    """Whether an instruction, viewed as a LOAD or STORE, is an `isa.Forward`."""
    return (fields.opcode == isa.Opcode.STORE) & (fields.memory == isa.Memory.INP)


def _is_one_of(field: Value, values: Iterable[int]) -> Value:
    return Cat(field == value for value in values).any()


def _view(layout: isa.Layout, width: int) -> data.FlexibleLayout:
    def shape(item: isa.Field) -> Shape:
        return signed(item.width) if item.signed else unsigned(item.width)

    return data.FlexibleLayout(
        width, {name: data.Field(shape(item), item.offset) for name, item in layout.items()}
    )


class Limits(data.StructLayout):
    """Per memory of `isa.LIMITED`, the index of the first element in DRAM that transfers must not
    access; 0 disables the limit.
    """

    def __init__(self) -> None:
        super().__init__({memory.name.lower(): isa.DRAM_BASE_WIDTH for memory in isa.LIMITED})


class QueueEntry(data.Struct):
    """An instruction dispatched to a module, with its index in the stream."""

    bits: isa.INSTRUCTION_WIDTH
    index: INDEX_WIDTH


class CheckedEntry(data.Struct):
    """An instruction and, if it is a LOAD or STORE: the number of scratchpad elements that it
    touches, padding included (`isa.Load.elements`), the index of the first element that is not
    padding, whether any element exceeds the depth, and whether any row exceeds the bounds in DRAM.

    All but ``out_of_range`` are defined only if the instruction is in range.
    """

    entry: QueueEntry
    elements: ELEMENTS_WIDTH
    first: isa.SRAM_BASE_WIDTH
    out_of_range: 1
    out_of_bounds: 1


class FaultPort(wiring.Signature):
    """The fault at which a module stopped. ``valid`` stays high until the machine is cleared;
    ``index`` and ``cause`` are undefined before.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "index": Out(INDEX_WIDTH), "cause": Out(3)})


class PopPort(wiring.Signature):
    """Tokens from a neighbour: pop (``take``) only while ``available``."""

    def __init__(self) -> None:
        super().__init__({"available": In(1), "take": Out(1)})


class PushPort(wiring.Signature):
    """Tokens to a neighbour: push (``give``) only while not ``full``.

    The producer stalls while the queue is full. Whether the consumer makes room depends on the
    program, not on timing, so it is a fault only when the whole machine is stuck.
    """

    def __init__(self) -> None:
        super().__init__({"full": In(1), "give": Out(1)})


class ModuleStatus(wiring.Signature):
    """Module status for the core.

    ``retire``
        high for one cycle per retired instruction; its queue entry is free.
    ``idle``
        no instruction is held or in flight.
    ``waiting``
        the oldest instruction waits for a neighbour, and nothing executes. ``overflowing``: it is
        done and waits for room for its tokens; otherwise it waits for tokens (FINISH: for the other
        modules).
    ``executing``
        the oldest instruction has issued and waits for no neighbour.
    ``accessing``
        memory accesses are in flight.
    ``index``
        of the oldest instruction, while waiting, executing or accessing, or of the faulty one.
    ``quiet``
        idle, waiting, or stopped by a fault with no access in flight.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "retire": Out(1),
                "idle": Out(1),
                "waiting": Out(1),
                "overflowing": Out(1),
                "executing": Out(1),
                "accessing": Out(1),
                "index": Out(INDEX_WIDTH),
                "quiet": Out(1),
            }
        )
