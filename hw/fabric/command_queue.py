"""Commands of GEMM or the ALU that wait for their unit, and for the other one."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT

from .counting import counted, stays_above

# Bits of a count of instructions, modulo a power of two: two counts of one unit that are compared
# differ by less than half of that. A command waits for those in flight; and while it waits for
# earlier ones of its unit, those in flight when it came may be done, and as many that came later.
COUNT_WIDTH = (4 * INSTRUCTIONS_IN_FLIGHT - 1).bit_length()


class WaitingCommand(data.StructLayout):
    """A command that, unless it is ``independent``, must not begin before instruction ``follows``
    of the other unit is done, counted from 0 since the machine was cleared, modulo
    2 ** `COUNT_WIDTH`."""

    def __init__(self, command: ShapeLike) -> None:
        super().__init__({"command": command, "follows": COUNT_WIDTH, "independent": 1})


class CommandQueue(wiring.Component):
    """A first-in first-out queue, so that the instructions behind a waiting one can be issued.

    Timing: a command is offered in the cycle in which it arrives, if it finds the queue empty and
    has nothing to wait for; here b and c follow the instruction that ends::

        i           a   b   c
        other_ends              1
        o           a           b   c

    Parameters
    ----------
    command : shape of a command
    depth : the most commands that it holds

    Ports
    -----
    i : `WaitingCommand`
    o : the commands, in order
    other_done, other_ends : how many instructions of the other unit were done before this cycle,
        counted as in `WaitingCommand`, and whether one more is in this cycle
    level : how many commands it holds
    """

    def __init__(self, command: ShapeLike, depth: int) -> None:
        self._depth = depth
        self._entry = WaitingCommand(command)
        super().__init__(
            {
                "i": In(stream.Signature(self._entry)),
                "o": Out(stream.Signature(command)),
                "other_done": In(COUNT_WIDTH),
                "other_ends": In(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        first, last = Signal(range(self._depth)), Signal(range(self._depth))
        taken, waits = Signal(), Signal()
        # A flip-flop that selects the output alone, so that each of its bits takes one LUT.
        holds, puts, full = Signal(), Signal(), Signal()
        oldest, before = Signal(self._entry), Signal(COUNT_WIDTH)
        m.d.comb += [
            puts.eq(self.i.valid & self.i.ready & (holds | ~taken)),
            Value.cast(oldest).eq(
                Mux(holds, self._stored(m, last, first), Value.cast(self.i.payload))
            ),
            # Of those before the one that it follows, how many are still to come; negative if that
            # is done too. Two ones make a carry.
            before.eq((Cat(1, oldest.follows) + Cat(~self.other_ends, ~self.other_done))[1:]),
            waits.eq(~oldest.independent & ~before[-1]),
            self.o.payload.eq(oldest.command),
            self.o.valid.eq((holds | self.i.valid) & ~waits),
            self.i.ready.eq(~full),
            taken.eq(self.o.valid & self.o.ready),
        ]
        with m.If(puts):
            m.d.sync += last.eq(Mux(last == self._depth - 1, 0, last + 1))
        with m.If(taken & holds):
            m.d.sync += first.eq(Mux(first == self._depth - 1, 0, first + 1))
        change = self.level, puts, taken & holds
        m.d.sync += [
            self.level.eq(counted(*change)),
            holds.eq(stays_above(0, *change)),
            full.eq(stays_above(self._depth - 1, *change)),
        ]
        return m

    def _stored(self, m: Module, last: Signal, first: Signal) -> Value:
        """Stores the command at ``i`` as number ``last``, as long as there is room, since whether
        it is to be kept is known late in a cycle; gives that of number ``first``, in this cycle:
        the unit that takes it has the register."""
        payload = Value.cast(self.i.payload)
        if self._depth == 2:
            # Two registers and a choice take less than a memory, of which 14 of 16 words were idle.
            words = [Signal(len(payload), name=f"word_{n}", reset_less=True) for n in range(2)]
            for number, word in enumerate(words):
                with m.If(self.i.ready & (last == number)):
                    m.d.sync += word.eq(payload)
            return Mux(first, words[1], words[0])
        m.submodules.storage = storage = Memory(shape=len(payload), depth=self._depth, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(last),
            write.data.eq(payload),
            write.en.eq(self.i.ready),
            read.addr.eq(first),
        ]
        return read.data
