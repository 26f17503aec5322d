"""Queue of GEMM or ALU commands that wait for their unit and for the other unit."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, ShapeLike, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.queues.levels import next_count, next_exceeds
from amaranth_vta.hw.timing import INSTRUCTIONS_IN_FLIGHT

# Bits of an instruction count modulo a power of two. Compared counts of one unit differ by less
# than half: a command waits for the instructions in flight at its arrival, and as many younger ones
# may complete while it waits.
COUNT_WIDTH = (4 * INSTRUCTIONS_IN_FLIGHT - 1).bit_length()


class WaitingCommand(data.StructLayout):
    """A command. Unless ``independent``, it must not start before instruction number ``follows`` of
    the other unit is done, counted from 0 since the last clear, modulo 2 ** `COUNT_WIDTH`.
    """

    def __init__(self, command: ShapeLike) -> None:
        super().__init__({"command": command, "follows": COUNT_WIDTH, "independent": 1})


class CommandQueue(wiring.Component):
    """A FIFO that lets younger instructions issue behind a waiting command.

    Timing: a command that arrives at an empty queue and need not wait is offered in the same cycle.
    Here b and c wait for the instruction that ends::

        i           a   b   c
        other_ends              1
        o           a           b   c

    Parameters
    ----------
    command : shape of a command
    depth : capacity in commands

    Ports
    -----
    i : `WaitingCommand`
    o : the commands, in order
    other_done, other_ends : instructions of the other unit done before this cycle, counted as in
        `WaitingCommand`, and whether one more completes in this cycle
    level : commands in the queue
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
        # A dedicated flip-flop selects the output, so that each bit takes one LUT.
        holds, puts, full = Signal(), Signal(), Signal()
        oldest, before = Signal(self._entry), Signal(COUNT_WIDTH)
        m.d.comb += [
            puts.eq(self.i.valid & self.i.ready & (holds | ~taken)),
            Value.cast(oldest).eq(
                Mux(holds, self._stored(m, last, first), Value.cast(self.i.payload))
            ),
            # Number of instructions to complete before the awaited one; negative once that has
            # completed. The lowest bits of both operands make the carry-in.
            before.eq((Cat(1, oldest.follows) + Cat(~self.other_ends, ~self.other_done))[1:-1]),
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
            self.level.eq(next_count(*change)),
            holds.eq(next_exceeds(0, *change)),
            full.eq(next_exceeds(self._depth - 1, *change)),
        ]
        return m

    def _stored(self, m: Module, last: Signal, first: Signal) -> Value:
        """Write the command at ``i`` to slot ``last`` whenever there is room, since whether it must
        be kept is known late in the cycle. Returns slot ``first`` combinationally; the unit that
        accepts it registers it.
        """
        payload = Value.cast(self.i.payload)
        if self._depth == 2:
            # Two registers and a multiplexer are smaller than a memory with 14 of 16 words unused.
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
