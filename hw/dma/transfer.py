"""Commands and ports of `Loader` and `Storer`."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import (
    ADDRESS_WIDTH,
    CheckedEntry,
    instruction_layout,
    memory_of,
)
from amaranth_vta.hw.microarchitecture import Microarchitecture

from .rows import Kind, Rows

# Transfers with requested bursts and pending data: enough to hide the memory latency behind
# transfers of a few beats.
TRANSFERS_AHEAD = 8


class Bases(data.Struct):
    """DRAM byte address of element 0 of each memory of `isa.LIMITED`."""

    uop: ADDRESS_WIDTH
    inp: ADDRESS_WIDTH
    wgt: ADDRESS_WIDTH
    acc: ADDRESS_WIDTH
    out: ADDRESS_WIDTH


# Fields of the instruction, besides its memory.
_FIELDS = (
    "sram_base",
    "dram_base",
    "y_size",
    "x_size",
    "x_stride",
    "y_pad_0",
    "y_pad_1",
    "x_pad_0",
    "x_pad_1",
)


def transfer_layout(config: Config) -> data.StructLayout:
    """A LOAD's or STORE's transfer: fields of the instruction and of `CheckedEntry`, and whether it
    moves any data.

    `Loader` and `Storer` expect a legal instruction in range. A LOAD that sets a padding value is a
    transfer of no elements.
    """
    fields = isa.instruction_set(config).layouts[isa.Opcode.LOAD]
    checked = CheckedEntry.as_shape()
    return data.StructLayout(
        {
            "memory": unsigned(fields["memory"].width + config.wgt_4bit),
            **{name: unsigned(fields[name].width) for name in _FIELDS},
            "elements": checked["elements"].shape,
            "first": checked["first"].shape,
            "has_data": 1,
        }
    )


def transfer(config: Config, decoded: data.View) -> Value:
    """The payload of `transfer_layout` for a `DecodedEntry`."""
    checked = decoded.checked
    fields = data.View(instruction_layout(config, isa.Opcode.LOAD), checked.entry.bits)
    return Cat(
        memory_of(config, fields),
        *(fields[name] for name in _FIELDS),
        checked.elements,
        checked.first,
        decoded.has_data,
    )


class DmaSignature(wiring.Signature):
    """Common ports of `Loader` and `Storer`. `InOrder.connect_unit` connects all but ``moved``.

    ``command``
        of `transfer_layout`.
    ``done``
        high for one cycle when a transfer is complete, in command order.
    ``error``
        with ``done``: the bus answered with an error. No later transfer completes.
    ``idle``
        no transfer is in progress and no burst in flight.
    ``moved``
        of `moved_elements`, in this cycle.
    ``active``
        a register may change: a command is offered, or a transfer is in progress.
    """

    def __init__(self, config: Config, memories: Sequence[isa.Memory]) -> None:
        super().__init__(
            {
                "command": In(stream.Signature(transfer_layout(config))),
                "done": Out(1),
                "error": Out(1),
                "idle": Out(1),
                "moved": Out(moved_elements(config, memories)),
                "active": Out(1),
            }
        )


def moved_elements(config: Config, memories: Sequence[isa.Memory]) -> data.StructLayout:
    """For each counted memory, by name, the number of elements moved in a cycle."""
    return data.StructLayout(
        {
            kind.memory.name.lower(): range(kind.elements + 1)
            for kind in rows_of(config, memories).kinds
            if isa.counted_as(kind.memory) is kind.memory
        }
    )


def rows_of(
    config: Config, memories: Sequence[isa.Memory], choices: Microarchitecture | None = None
) -> Rows:
    """Rows of transfers of ``memories``, and of those that fill the same scratchpads."""
    others = [
        memory
        for memory in isa.transferred_memories(config.extensions)
        if memory not in memories and isa.filled_by(memory) in memories
    ]
    return Rows(config, [Kind.of(config, memory) for memory in (*memories, *others)], choices)


def describe_rows(
    m: Module, rows: Rows, command: Any, bases: Sequence[Value], bursts: Any, beats: Any
) -> None:
    """Fill in the commands of `BurstWalker` and `BeatWalker` for a `transfer_layout`.

    Rows that are contiguous in memory and in the scratchpad are merged into one long row.
    """
    row_size, row_count = Signal(rows.count), Signal(rows.count)
    contiguous = Signal()
    pads = command.x_pad_0 | command.x_pad_1 | command.y_pad_0 | command.y_pad_1
    m.d.comb += [
        contiguous.eq((command.x_stride == command.x_size) & (pads == 0)),
        row_size.eq(Mux(contiguous, command.elements, command.x_size)),
        row_count.eq(Mux(contiguous, 1, command.y_size)),
        beats.index.eq(command.first),
        beats.row_size.eq(row_size),
        beats.rows.eq(row_count),
        beats.gap.eq(command.x_pad_0 + command.x_pad_1),
        bursts.rows.eq(row_count),
    ]
    with m.Switch(command.memory):
        for number, (kind, base) in enumerate(zip(rows.kinds, bases, strict=True)):
            with m.Case(kind.memory):
                m.d.comb += [
                    beats.kind.eq(number),
                    beats.lane.eq(kind.lane(command.dram_base)),
                    beats.lane_stride.eq(kind.lane(command.x_stride)),
                    bursts.address.eq(base + (command.dram_base << kind.log_bytes)),
                    bursts.stride.eq(command.x_stride << kind.log_bytes),
                    bursts.last_byte.eq((row_size << kind.log_bytes) - 1),
                ]
