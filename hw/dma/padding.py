"""Padding walker: the elements around the rows of a transfer."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .rows import Rows


class _Part(enum.Enum, shape=2):
    """Position of a run of padding in a transfer."""

    ABOVE = 0
    LEFT = 1
    RIGHT = 2
    BELOW = 3


def _run_layout(rows: Rows) -> data.StructLayout:
    """A run of padding: ``length`` elements, and the number of ``rows`` left in its part, including
    this one.
    """
    return data.StructLayout({"part": _Part, "rows": rows.count, "length": rows.count})


class PaddingWalker(wiring.Component):
    """Enumerates the padding elements of a transfer, one per cycle, or one beat of narrow elements.

    Timing: an accepted command shows its first padding in the next cycle. A side without padding
    takes one cycle.

    Ports
    -----
    command : of `Rows.padding`; accepted when nothing is held
    active : a command is in progress; low from the cycle after its last ``step`` on
    write : the other outputs describe padding to be written
    step : this padding is written now; only while ``write``
    kind, index, mask : as in `BeatWalker`; ``index`` is that of the first element to write
    value : the scalar that fills each element
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        super().__init__(
            {
                "command": In(stream.Signature(rows.padding())),
                "active": Out(1),
                "write": Out(1),
                "step": In(1),
                "kind": Out(rows.kind),
                "index": Out(rows.index),
                "mask": Out(rows.elements),
                "value": Out(rows.scalar),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._rows
        command, new = Signal(rows.padding()), self.command.payload
        # The rest of this run, its successor, and the first run of the next command.
        run, after, first = (
            Signal(_run_layout(rows), name=name) for name in ("run", "after", "first")
        )
        # A step ends this run; this run is empty; another run follows.
        ends, none, goes_on = Signal(), Signal(), Signal()
        most, taken = (Signal(range(rows.elements + 1), name=name) for name in ("most", "taken"))
        with m.Switch(command.kind):
            for number, kind in enumerate(rows.kinds):
                with m.Case(number):
                    m.d.comb += most.eq(kind.step)
        m.d.comb += [
            taken.eq(Mux(ends, run.length, most)),
            self.kind.eq(command.kind),
            self.index.eq(command.index),
            self.value.eq(command.value),
            self.write.eq(self.active & ~none),
            self.command.ready.eq(~self.active),
        ]
        m.d.comb += [self.mask[j].eq(taken > j) for j in range(rows.elements)]
        self._first_run(m, new, first)
        self._next_run(m, command, run, after, goes_on)

        moves = self.step | (self.active & none)
        with m.If(moves):
            m.d.sync += [
                run.length.eq(run.length - most),
                command.index.eq(command.index + taken),
            ]
            with m.If(ends):
                m.d.sync += [run.eq(after), self.active.eq(goes_on)]
                with m.If(run.part == _Part.LEFT):
                    m.d.sync += command.index.eq(command.index + taken + command.x_size)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += self.active.eq(1)
        # Without ``command.valid``, which arrives late in the cycle.
        with m.If(~self.active):
            m.d.sync += [command.eq(new), run.eq(first)]
        if rows.looks_ahead:
            with m.If(moves):
                m.d.sync += Cat(ends, none).eq(self._ends_run(command.kind, run.length, steps=2))
                with m.If(ends):
                    m.d.sync += Cat(ends, none).eq(self._ends_part(command, after.part))
            with m.If(~self.active):
                m.d.sync += Cat(ends, none).eq(self._ends_part(new, first.part))
        else:
            m.d.comb += [
                ends.eq(self._ends_run(command.kind, run.length)),
                none.eq(run.length == 0),
            ]
        return m

    def _first_run(self, m: Module, command: Any, first: Any) -> None:
        """Describe the ``first`` run of a command."""
        with m.If(command.y_pad_0 != 0):
            m.d.comb += [first.part.eq(_Part.ABOVE), first.rows.eq(command.y_pad_0)]
        with m.Elif(command.y_size != 0):
            m.d.comb += [first.part.eq(_Part.LEFT), first.rows.eq(command.y_size)]
        with m.Else():
            m.d.comb += [first.part.eq(_Part.BELOW), first.rows.eq(command.y_pad_1)]
        m.d.comb += first.length.eq(_of_part(first.part, *_lengths(command)))

    def _next_run(self, m: Module, command: Any, run: Any, after: Any, goes_on: Signal) -> None:
        """Describe the run ``after`` this one, and whether there is one (``goes_on``)."""
        last_row, below, beside = Signal(), Signal(), Signal()
        m.d.comb += [
            last_row.eq(run.rows == 1),
            below.eq(command.y_pad_1 != 0),
            # Rows without side padding are skipped if the transfer has no padding below.
            beside.eq((command.y_size != 0) & (below | ((command.x_pad_0 | command.x_pad_1) != 0))),
            after.rows.eq(run.rows - 1),
            after.length.eq(_of_part(after.part, *_lengths(command))),
        ]
        with m.Switch(run.part):
            with m.Case(_Part.ABOVE, _Part.BELOW):
                m.d.comb += [after.part.eq(run.part), goes_on.eq(~last_row)]
            with m.Case(_Part.LEFT):
                m.d.comb += [after.part.eq(_Part.RIGHT), after.rows.eq(run.rows), goes_on.eq(1)]
            with m.Case(_Part.RIGHT):
                m.d.comb += [after.part.eq(_Part.LEFT), goes_on.eq(~last_row)]
        with m.If(last_row & (run.part == _Part.ABOVE) & beside):
            m.d.comb += [after.part.eq(_Part.LEFT), after.rows.eq(command.y_size), goes_on.eq(1)]
        with m.Elif(last_row & ((run.part == _Part.ABOVE) | (run.part == _Part.RIGHT))):
            m.d.comb += [
                after.part.eq(_Part.BELOW),
                after.rows.eq(command.y_pad_1),
                goes_on.eq(below),
            ]

    def _ends_run(self, number: Value, length: Value, steps: int = 1) -> Value:
        """Whether ``steps`` steps suffice for ``length`` elements of kind ``number``."""
        return self._rows.of_kind(number, lambda kind: length <= steps * kind.step)

    def _ends_part(self, command: Any, part: Value) -> Value:
        """For a run of ``part``: whether one step ends it, and whether it is empty."""
        said = (
            Cat(self._ends_run(command.kind, length), length == 0) for length in _lengths(command)
        )
        return _of_part(part, *said)


def _of_part(part: Value, whole: Value, left: Value, right: Value) -> Value:
    """Select by ``part``: the value for a ``whole`` row, or for padding left or right of data."""
    beside = Mux(part == _Part.LEFT, left, right)
    return Mux((part == _Part.LEFT) | (part == _Part.RIGHT), beside, whole)


def _lengths(command: Any) -> tuple[Value, Value, Value]:
    """Lengths of the runs of a whole row, left, and right; arguments of `_of_part`."""
    return command.width, command.x_pad_0, command.x_pad_1
