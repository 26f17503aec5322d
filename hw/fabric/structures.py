"""What travels between the modules: instructions, tokens, faults.

The layouts of instructions and micro-ops are those of `amaranth_vta.hw.isa`, made into views of
hardware signals; no position is written down here.
"""

from amaranth.hdl import Shape, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

INDEX_WIDTH = 32
# Bits of a byte address: the largest element index times the largest element, and a base of the
# same size, still fit, so that no address ever wraps.
ADDRESS_WIDTH = 48


def instruction_layout(config: Config, opcode: isa.Opcode) -> data.FlexibleLayout:
    """The fields of one kind of instruction, as a view of its 128 bits."""
    return _view(isa.instruction_set(config).layouts[opcode], isa.INSTRUCTION_WIDTH)


def uop_layout(config: Config) -> data.FlexibleLayout:
    """The fields of a micro-op, as a view of its 32 bits."""
    return _view(isa.instruction_set(config).uop_layout, isa.UOP_WIDTH)


def _view(layout: isa.Layout, width: int) -> data.FlexibleLayout:
    def shape(item: isa.Field) -> Shape:
        return signed(item.width) if item.signed else unsigned(item.width)

    return data.FlexibleLayout(
        width, {name: data.Field(shape(item), item.offset) for name, item in layout.items()}
    )


class QueueEntry(data.Struct):
    """An instruction on its way to a module, with its place in the stream."""

    bits: isa.INSTRUCTION_WIDTH
    index: INDEX_WIDTH


class FaultPort(wiring.Signature):
    """The fault at which a module stopped. ``valid`` stays until the machine is cleared."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "index": Out(INDEX_WIDTH), "cause": Out(3)})


class TakePort(wiring.Signature):
    """Tokens from a neighbour: ``take`` one only while ``available``."""

    def __init__(self) -> None:
        super().__init__({"available": In(1), "take": Out(1)})


class GivePort(wiring.Signature):
    """Tokens to a neighbour: ``give`` one only while not ``full``.

    Who finds it full waits. Whether the neighbour makes room depends on the program, not on how
    fast who is: it is a fault only when the whole machine is stuck.
    """

    def __init__(self) -> None:
        super().__init__({"full": In(1), "give": Out(1)})


class ModuleStatus(wiring.Signature):
    """What a module tells the core about itself.

    ``retire``
        high for one cycle for each instruction that is done; its place in the queue is free.
    ``idle``
        no instruction is held and nothing is under way.
    ``waiting``
        the oldest instruction waits for a neighbour, and nothing is under way. ``overflowing``
        says that it is done and waits for room for its tokens, otherwise it waits for tokens
        (FINISH: for the other modules).
    ``executing``
        the oldest instruction has been issued, and waits for no neighbour.
    ``accessing``
        accesses to memory are under way.
    ``index``
        of the oldest instruction, while waiting, executing or accessing.
    ``quiet``
        idle, waiting, or stopped by a fault with nothing under way any more.
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
