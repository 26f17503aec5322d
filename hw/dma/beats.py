"""Beat walker: the destination of each beat of a transfer."""

from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from amaranth_vta.hw import isa

from .rows import Kind, Rows


class BeatWalker(wiring.Component):
    """Determines the elements in each beat, in order.

    Timing: an accepted command shows its first beat in the next cycle, and can be accepted in the
    cycle of its predecessor's last ``step``::

        command  a       b
        valid        a0  a1  b0
        step         1   1   1
        last             1

    Ports
    -----
    command : of `Rows.beats`
    valid : there is a beat, described by the other outputs
    step : advance, to the next beat if ``release``
    kind : of the elements
    index : of the element in lane 0 of the beat (serial: of the element of this step)
    mask : one bit per element of the beat: it belongs to the row (serial, or elements wider than
        the beat: 1)
    lane : number of this beat within its element; serial: position of the element in the beat
    release : this is the last step of the beat
    last : this is the last step of the command
    taken : number of elements that a step completes
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        super().__init__(
            {
                "command": In(stream.Signature(rows.beats())),
                "valid": Out(1),
                "step": In(1),
                "kind": Out(rows.kind),
                "index": Out(rows.index),
                "mask": Out(rows.elements),
                "lane": Out(rows.lane),
                "release": Out(1),
                "last": Out(1),
                "taken": Out(range(rows.elements + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._rows
        command, new = Signal(rows.beats()), self.command.payload
        # Remaining elements of this row, and the destination of the next one.
        # Amaranth does not find the name of a variable that a generator captures.
        left, index, lane = Signal(rows.count), Signal(rows.index), Signal(rows.lane, name="lane")
        # A step ends this row; this row is the last one.
        ends, last_row = Signal(), Signal()
        # Start of this row, start of the next, and distance between rows.
        row, next_row = Signal(rows.index), Signal(rows.index)
        pitch = Signal(range(rows.depth + (2 << isa.PAD_WIDTH)))

        # Elements that a step takes if it does not end the row, and the lane of the next one.
        elements, next_lane = Signal(range(rows.elements + 1)), Signal(rows.lane)
        m.d.comb += [
            self.kind.eq(command.kind),
            self.index.eq(index),
            self.lane.eq(lane),
            self.mask.eq(1),
            self.release.eq(1),
            self.taken.eq(elements),
        ]
        with m.Switch(command.kind):
            for place, kind in enumerate(rows.kinds):
                with m.Case(place):
                    if kind.serial:
                        m.d.comb += [
                            elements.eq(1),
                            self.release.eq((lane == kind.elements - 1) | ends),
                            next_lane.eq(Mux(self.release, 0, lane + 1)),
                        ]
                    elif kind.elements > 1:
                        end = Signal(range(rows.depth + kind.elements), name=f"end_{place}")
                        m.d.comb += [
                            elements.eq(kind.elements - lane),
                            self.taken.eq(Mux(ends, left, elements)),
                            self.index.eq(index - lane),
                            end.eq(lane + left),
                        ]
                        m.d.comb += [
                            self.mask[j].eq((lane <= j) & (end > j)) for j in range(kind.elements)
                        ]
                    else:
                        m.d.comb += [
                            elements.eq(lane == kind.beats - 1),
                            next_lane.eq(Mux(elements[0], 0, lane + 1)),
                        ]
        m.d.comb += [
            next_row.eq(row + pitch),
            self.last.eq(ends & last_row),
            self.command.ready.eq(~self.valid | (self.step & self.last)),
        ]
        with m.If(self.step):
            m.d.sync += [
                left.eq(left - elements),
                index.eq(index + elements),
                lane.eq(next_lane),
            ]
            with m.If(ends):
                m.d.sync += [
                    left.eq(command.row_size),
                    Cat(index, row).eq(Cat(next_row, next_row)),
                    lane.eq(self._lane(command.kind, command.lane)),
                    command.lane.eq(command.lane + command.lane_stride),
                    command.rows.eq(command.rows - 1),
                    self.valid.eq(~last_row),
                ]
        takes = self.command.valid & self.command.ready
        with m.If(takes):
            m.d.sync += [
                command.eq(new),
                # Lane of the second row.
                command.lane.eq(new.lane + new.lane_stride),
                left.eq(new.row_size),
                Cat(index, row).eq(Cat(new.index, new.index)),
                pitch.eq(new.row_size + new.gap),
                lane.eq(new.lane),
                self.valid.eq(1),
            ]
        if rows.looks_ahead:
            with m.If(self.step):
                m.d.sync += ends.eq(self._ends_row(command.kind, left, lane, steps=2))
                with m.If(ends):
                    m.d.sync += [
                        ends.eq(self._ends_row(command.kind, command.row_size, command.lane)),
                        last_row.eq(command.rows == 2),
                    ]
            with m.If(takes):
                m.d.sync += [
                    ends.eq(self._ends_row(new.kind, new.row_size, new.lane)),
                    last_row.eq(new.rows == 1),
                ]
        else:
            m.d.comb += [
                ends.eq(self._ends_row(command.kind, left, lane)),
                last_row.eq(command.rows == 1),
            ]
        return m

    def _ends_row(self, number: Value, left: Value, lane: Value, steps: int = 1) -> Value:
        """Whether ``steps`` steps end a row with ``left`` elements of kind ``number`` from ``lane``
        on. Fewer steps must not end it.
        """
        return self._rows.of_kind(number, lambda kind: _takes_all(kind, left, lane, steps))

    def _lane(self, number: Value, lane: Value) -> Value:
        """Lane of a row of elements of kind ``number``, truncated to the existing lanes."""
        masks = (
            (number == place).replicate(len(kind.lane(lane)))
            for place, kind in enumerate(self._rows.kinds)
        )
        return lane & reduce(or_, masks)


def _takes_all(kind: Kind, left: Value, lane: Value, steps: int) -> Value:
    """Whether ``steps`` steps take all of the ``left`` elements of ``kind`` from ``lane`` on. Fewer
    steps must not take all.
    """
    if kind.beats > 1:
        return (left == 1) & (lane == kind.beats - steps)
    # By lane: the number of elements that fit in ``steps`` steps.
    room = [steps * kind.step - place for place in range(kind.step)]
    return Cat(left <= count for count in room).bit_select(lane[: exact_log2(kind.step)], 1)
