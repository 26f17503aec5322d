"""The three walks over the rows of a transfer: its bursts, its beats, and its padding.

A LOAD or STORE moves rows of elements between strided places in memory and consecutive places
in a scratchpad. Addresses run ahead of the data: `BurstWalker`, which cuts rows into bursts, and
`BeatWalker`, which says where each beat belongs, walk over the same rows at different times.
`PaddingWalker` finds the elements around the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.bus.axi import BurstRequest
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.structures import address_width
from amaranth_vta.hw.timing import BURST_BEATS, BURST_BYTES, is_small


@dataclass(frozen=True)
class Kind:
    """How the elements of a memory lie in beats.

    A beat holds ``elements`` of them, or one takes ``beats`` beats; one of the two is 1. With
    ``serial``, a step takes one of several elements in a beat.
    """

    memory: isa.Memory
    element_bytes: int
    elements: int
    beats: int
    serial: bool = False

    @property
    def log_bytes(self) -> int:
        return _log2(self.element_bytes)

    @property
    def step(self) -> int:
        """The most elements that a step takes."""
        return 1 if self.serial else self.elements

    def lane(self, index: Value) -> Value:
        """The lane of its beat in which element ``index`` of the memory lies."""
        return index[: _log2(self.elements)]

    @classmethod
    def of(cls, config: Config, memory: isa.Memory) -> Self:
        """How ``memory`` lies in DRAM. Elements that are widened on their way in are serial."""
        tile = config.memory(memory)
        elements = max(1, config.bus_bytes // tile.element_bytes)
        return cls(
            memory=memory,
            element_bytes=tile.element_bytes,
            elements=elements,
            beats=max(1, tile.element_bytes // config.bus_bytes),
            serial=widens(config, memory) and elements > 1,
        )


def widens(config: Config, memory: isa.Memory) -> bool:
    """Whether scalars in DRAM are narrower than in the scratchpad."""
    return memory is isa.Memory.ACC_8BIT and config.out_width < config.acc_width


def _log2(value: int) -> int:
    return value.bit_length() - 1


class Rows:
    """Widths that suffice for the transfers of ``kinds`` in ``config``.

    Only transfers that are in range come here, so there are at most as many rows, and elements in a
    row, as the deepest memory has elements.
    """

    def __init__(self, config: Config, kinds: Sequence[Kind]) -> None:
        self.kinds = tuple(kinds)
        # Whether the end of a row is known a cycle before, which takes some flip-flops and
        # comparisons, and shortens paths that limit the clock of large machines alone.
        self.looks_ahead = not is_small(config)
        self.depth = max(config.memory(kind.memory).depth for kind in kinds)
        self.bus_bytes = config.bus_bytes
        self.address = unsigned(address_width(config))
        self.count = range(self.depth + 1)
        self.elements = max(kind.elements for kind in kinds)
        self.lane = range(max(max(kind.elements, kind.beats) for kind in kinds))
        # Index of the element in the first lane of a beat, which may lie before the scratchpad.
        self.index = signed(_log2(max(self.depth, self.elements)) + 2)
        self.kind = range(len(kinds))
        self.row_bytes = range(self.depth * max(kind.element_bytes for kind in kinds))
        # A scalar of padding; of no bits where padding is always zero.
        self.scalar = unsigned(
            max(
                config.memory(kind.memory).scalar_width
                if config.pad_value and isa.padding_of(kind.memory) is not None
                else 0
                for kind in kinds
            )
        )
        self.stride = range((1 << isa.SIZE_WIDTH) * max(kind.element_bytes for kind in kinds))

    def bursts(self) -> data.StructLayout:
        """A command to `BurstWalker`: ``rows`` rows, one or more, of ``last_byte`` + 1 bytes,
        the first at ``address``, each ``stride`` bytes after the one before."""
        return data.StructLayout(
            {
                "address": self.address,
                "stride": self.stride,
                "last_byte": self.row_bytes,
                "rows": self.count,
            }
        )

    def beats(self) -> data.StructLayout:
        """A command to `BeatWalker`: ``rows`` rows, one or more, of ``row_size`` elements.

        Element ``index`` of the scratchpad is the first; ``gap`` elements lie between rows.
        ``lane`` is the lane in which the first row starts, and grows by ``lane_stride`` per row.
        """
        lane = unsigned(_log2(self.elements))
        return data.StructLayout(
            {
                "kind": self.kind,
                "index": self.index,
                "row_size": self.count,
                "rows": self.count,
                "gap": range(2 << isa.PAD_WIDTH),
                "lane": lane,
                "lane_stride": lane,
            }
        )

    def padding(self) -> data.StructLayout:
        """A command to `PaddingWalker`: the fields of a LOAD that has padding, the ``width`` of a
        row with its padding, and the scalar ``value`` of all of it."""
        pad = unsigned(isa.PAD_WIDTH)
        return data.StructLayout(
            {
                "kind": self.kind,
                "index": self.index,
                "x_size": self.count,
                "y_size": self.count,
                "width": self.count,
                "y_pad_0": pad,
                "y_pad_1": pad,
                "x_pad_0": pad,
                "x_pad_1": pad,
                "value": self.scalar,
            }
        )


class BurstWalker(wiring.Component):
    """Cuts rows into bursts. Addresses take only additions.

    Timing: one burst per cycle, also from one row to the next and, if the last row of a command is
    of two bursts or more, to the next command; the first burst of a command two cycles after it is
    taken::

        command  a       b
        request          a0  a1  b0

    Ports
    -----
    command : of `Rows.bursts`
    request : the bursts
    last : the burst on ``request`` is the last one of its command
    stop : nothing follows the burst that is being offered; no command is taken
    idle : nothing is held
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        super().__init__(
            {
                "command": In(stream.Signature(rows.bursts())),
                "request": Out(stream.Signature(BurstRequest)),
                "last": Out(1),
                "stop": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        log_bus = _log2(self._rows.bus_bytes)
        # Bursts end where their address is a multiple of this.
        log_chunk = _log2(min(BURST_BEATS * self._rows.bus_bytes, BURST_BYTES))

        # The row that comes next.
        row_valid, row = Signal(), Signal(self._rows.bursts())
        # The rest of the row that is being cut: its place in the chunk, the chunks after this
        # one, and where in the last of them it ends.
        cutting = Signal()
        chunk = Signal(self._rows.address.width - log_chunk)
        first = Signal(log_chunk - log_bus)
        last = Signal(log_chunk - log_bus)
        ends_at = Signal(range((1 << log_chunk) + self._rows.row_bytes.stop))
        chunks_after = Signal(len(ends_at) - log_chunk)
        last_row = Signal()

        last_chunk, cut, take_row = Signal(), Signal(), Signal()
        m.d.comb += [
            last_chunk.eq(chunks_after == 0),
            cut.eq(cutting & self.request.ready),
            take_row.eq(row_valid & (~cutting | (cut & last_chunk)) & ~self.stop),
            # From registers alone: whether memory takes a burst is known late in a cycle, and the
            # path through the issue of instructions that follows is long.
            self.command.ready.eq(~row_valid & ~self.stop),
            self.request.valid.eq(cutting),
            self.request.payload.address.eq((chunk << log_chunk) | (first << log_bus)),
            self.last.eq(last_chunk & last_row),
            self.idle.eq(~row_valid & ~cutting),
            ends_at.eq(row.address[:log_chunk] + row.last_byte),
        ]
        # To the end of its chunk a burst has ~first + 1 beats: the largest length less first.
        full = (1 << log_chunk - log_bus) - 1
        m.d.comb += self.request.payload.length.eq(Mux(last_chunk, last, full) - first)

        with m.If(cut):
            m.d.sync += [
                chunk.eq(chunk + 1),
                first.eq(0),
                chunks_after.eq(chunks_after - 1),
                cutting.eq(~last_chunk & ~self.stop),
            ]
        with m.If(take_row):
            m.d.sync += [
                cutting.eq(1),
                chunk.eq(row.address >> log_chunk),
                first.eq(row.address[log_bus:log_chunk]),
                last.eq(ends_at[log_bus:log_chunk]),
                chunks_after.eq(ends_at >> log_chunk),
                last_row.eq(row.rows == 1),
                row.address.eq(row.address + row.stride),
                row.rows.eq(row.rows - 1),
                row_valid.eq(row.rows != 1),
            ]
        # Whether or not there is a command, which is known late in a cycle.
        with m.If(~row_valid):
            m.d.sync += row.eq(self.command.payload)
        with m.If(self.stop):
            m.d.sync += row_valid.eq(0)
        with m.Elif(self.command.valid & self.command.ready):
            m.d.sync += row_valid.eq(1)
        return m


class BeatWalker(wiring.Component):
    """Says of each beat, in order, which elements are in it.

    Timing: a command that is taken shows its first beat in the next cycle, and can be taken in the
    cycle of the last ``step`` of the one before::

        command  a       b
        valid        a0  a1  b0
        step         1   1   1
        last             1

    Ports
    -----
    command : of `Rows.beats`
    valid : there is a beat, which the other outputs describe
    step : go on, to the next beat if ``release``
    kind : of the elements
    index : of the element in lane 0 of the beat (serial: of the element of this step)
    mask : one bit per element of the beat: it belongs to the row (serial, or elements wider than
        the beat: 1)
    lane : which beat of its element this is; serial: where in the beat the element is
    release : this step is the last one for the beat
    last : this is the last step of the command
    taken : elements that a step completes
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
        command = Signal(rows.beats())
        # The elements of this row that are still to come, and where they go.
        left, index, lane = Signal(rows.count), Signal(rows.index), Signal(rows.lane)
        # Found a cycle before, or when needed: bit n, that n + 1 elements are left, or fewer, and
        # that a row has so many; that this is the last row, and the last beat of an element that is
        # wider.
        few_left, few_in_row, last_row = Signal(rows.elements), Signal(rows.elements), Signal()
        final, final_next, final_first = Signal(), Signal(), Signal()
        # Elements that a step completes, unless it ends the row, and what is left then.
        advance, left_after = Signal(range(rows.elements + 1)), Signal(rows.count)
        if not rows.looks_ahead:
            m.d.comb += [few_left.eq(self._at_most(left)), last_row.eq(command.rows == 1)]
        # Where this row and the next one begin, and what is between.
        row, next_row = Signal(rows.index), Signal(rows.index)
        pitch = Signal(range(rows.depth + (2 << isa.PAD_WIDTH)))

        taken, row_ends = self.taken, Signal()
        lane_next, row_lane = Signal(rows.lane), Signal(rows.lane)
        m.d.comb += [
            self.kind.eq(command.kind),
            self.index.eq(index),
            self.lane.eq(lane),
            self.mask.eq(1),
            self.release.eq(1),
        ]
        with m.Switch(command.kind):
            for number, kind in enumerate(rows.kinds):
                with m.Case(number):
                    m.d.comb += row_lane.eq(kind.lane(command.lane))
                    if kind.serial:
                        m.d.comb += [
                            advance.eq(1),
                            taken.eq(1),
                            row_ends.eq(few_left[0]),
                            self.release.eq((lane == kind.elements - 1) | row_ends),
                            lane_next.eq(Mux(self.release, 0, lane + 1)),
                        ]
                    elif kind.elements > 1:
                        room = Signal(range(kind.elements + 1), name=f"room_{number}")
                        end = Signal(range(rows.depth + kind.elements), name=f"end_{number}")
                        m.d.comb += [
                            room.eq(kind.elements - lane),
                            advance.eq(room),
                            # By the room behind each lane.
                            row_ends.eq(few_left[: kind.elements][::-1].bit_select(lane, 1)),
                            taken.eq(Mux(row_ends, left, room)),
                            self.index.eq(index - lane),
                            end.eq(lane + left),
                        ]
                        m.d.comb += [
                            self.mask[j].eq((lane <= j) & (end > j)) for j in range(kind.elements)
                        ]
                    else:
                        m.d.comb += [
                            advance.eq(final),
                            taken.eq(final),
                            row_ends.eq(few_left[0] & final),
                            lane_next.eq(Mux(final, 0, lane + 1)),
                        ]
                        if not rows.looks_ahead:
                            m.d.comb += final.eq(lane == kind.beats - 1)
                        elif kind.beats > 1:
                            m.d.comb += final_next.eq((lane == kind.beats - 2) & ~final)
                        else:
                            m.d.comb += final_next.eq(1)

        m.d.comb += [
            left_after.eq(left - advance),
            next_row.eq(row + pitch),
            self.last.eq(row_ends & last_row),
            self.command.ready.eq(~self.valid | (self.step & self.last)),
        ]
        with m.If(self.step):
            m.d.sync += [
                left.eq(left_after),
                index.eq(index + advance),
                lane.eq(lane_next),
            ]
            if rows.looks_ahead:
                m.d.sync += [few_left.eq(self._at_most(left_after)), final.eq(final_next)]
            with m.If(row_ends):
                m.d.sync += [
                    left.eq(command.row_size),
                    Cat(index, row).eq(Cat(next_row, next_row)),
                    lane.eq(row_lane),
                    command.lane.eq(command.lane + command.lane_stride),
                    command.rows.eq(command.rows - 1),
                    self.valid.eq(~last_row),
                ]
                if rows.looks_ahead:
                    m.d.sync += [few_left.eq(few_in_row), last_row.eq(command.rows == 2)]
        new, few_in_new = self.command.payload, Signal(rows.elements)
        m.d.comb += few_in_new.eq(self._at_most(new.row_size))
        with m.Switch(new.kind):
            for number, kind in enumerate(rows.kinds):
                with m.Case(number):
                    m.d.comb += final_first.eq(kind.beats == 1)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [
                command.eq(new),
                # That of the second row.
                command.lane.eq(new.lane + new.lane_stride),
                left.eq(new.row_size),
                Cat(index, row).eq(Cat(new.index, new.index)),
                pitch.eq(new.row_size + new.gap),
                lane.eq(new.lane),
                self.valid.eq(1),
            ]
            if rows.looks_ahead:
                m.d.sync += [
                    Cat(few_left, few_in_row).eq(Cat(few_in_new, few_in_new)),
                    last_row.eq(new.rows == 1),
                    final.eq(final_first),
                ]
        return m

    def _at_most(self, count: Value) -> Value:
        """Bit n: ``count`` is n + 1 or less."""
        return Cat(count <= n + 1 for n in range(self._rows.elements))


class _Part(enum.Enum, shape=2):
    """Where in a transfer a run of padding lies."""

    ABOVE = 0
    LEFT = 1
    RIGHT = 2
    BELOW = 3


# Of each length of a run: one step takes all of it, and it has no elements.
_RUNS = data.StructLayout(
    {name: data.StructLayout({"short": 1, "none": 1}) for name in ("width", "x_pad_0", "x_pad_1")}
)


class PaddingWalker(wiring.Component):
    """Finds the elements of a transfer that are padding: per cycle one, or a beat of narrow ones.

    Timing: a command that is taken shows its first padding in the next cycle. A side of the rows
    that has no padding takes a cycle without any.

    Ports
    -----
    command : of `Rows.padding`; taken when nothing is held
    active : there is more to come; low from the cycle after the last ``step`` on
    write : the other outputs describe padding to be written
    step : it is written now; only while ``write``
    kind, index, mask : as in `BeatWalker`, ``index`` being that of the first element to write
    value : of each of its scalars
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
        command = Signal(rows.padding())
        part = Signal(_Part)
        # Elements left of this run of padding; rows of this part, this one included.
        run, part_rows = Signal(rows.count), Signal(rows.count)

        most, taken = (Signal(range(rows.elements + 1), name=name) for name in ("most", "taken"))
        # Found a cycle before, or when needed: that a step takes the rest of the run, and that
        # there is none; and the same of all of each run, of this command and of the next.
        run_ends, ends_next, none = Signal(), Signal(), Signal()
        new, runs, new_runs = self.command.payload, Signal(_RUNS), Signal(_RUNS)
        pairs = [(name, new_runs[name]) for name in _RUNS.members]
        with m.Switch(command.kind):
            for number, kind in enumerate(rows.kinds):
                with m.Case(number):
                    m.d.comb += [most.eq(kind.step), ends_next.eq(run <= 2 * kind.step)]
        with m.Switch(new.kind):
            for number, kind in enumerate(rows.kinds):
                with m.Case(number):
                    m.d.comb += [found.short.eq(new[name] <= kind.step) for name, found in pairs]
        m.d.comb += [found.none.eq(new[name] == 0) for name, found in pairs]

        if not rows.looks_ahead:
            m.d.comb += [run_ends.eq(run <= most), none.eq(run == 0)]

        def begin_run(name: str, command: Any = command, runs: Any = runs) -> None:
            m.d.sync += run.eq(command[name])
            if rows.looks_ahead:
                m.d.sync += [run_ends.eq(runs[name].short), none.eq(runs[name].none)]

        m.d.comb += [
            taken.eq(Mux(run_ends, run, most)),
            self.kind.eq(command.kind),
            self.index.eq(command.index),
            self.value.eq(command.value),
            self.write.eq(self.active & ~none),
            self.command.ready.eq(~self.active),
        ]
        m.d.comb += [self.mask[j].eq(taken > j) for j in range(rows.elements)]

        ends, last_row = Signal(), Signal()
        below, beside = Signal(), Signal()
        m.d.comb += [
            ends.eq(self.active & (none | (self.step & run_ends))),
            last_row.eq(part_rows == 1),
            below.eq(command.y_pad_1 != 0),
            beside.eq((command.y_size != 0) & (below | ((command.x_pad_0 | command.x_pad_1) != 0))),
        ]

        def enter(target: Any) -> None:
            """Goes on with the first row of a part."""
            run_name, count = {
                _Part.ABOVE: ("width", command.y_pad_0),
                _Part.LEFT: ("x_pad_0", command.y_size),
                _Part.RIGHT: ("x_pad_1", part_rows),
                _Part.BELOW: ("width", command.y_pad_1),
            }[target]
            begin_run(run_name)
            m.d.sync += [part.eq(target), part_rows.eq(count)]

        with m.If(self.step):
            m.d.sync += [run.eq(run - taken), command.index.eq(command.index + taken)]
            if rows.looks_ahead:
                m.d.sync += run_ends.eq(ends_next)
        with m.If(ends):
            with m.Switch(part):
                with m.Case(_Part.ABOVE, _Part.BELOW):
                    with m.If(~last_row):
                        begin_run("width")
                        m.d.sync += part_rows.eq(part_rows - 1)
                    with m.Elif((part == _Part.ABOVE) & beside):
                        enter(_Part.LEFT)
                    with m.Elif((part == _Part.ABOVE) & below):
                        enter(_Part.BELOW)
                    with m.Else():
                        m.d.sync += self.active.eq(0)
                with m.Case(_Part.LEFT):
                    enter(_Part.RIGHT)
                    # Without padding on the left nothing is taken.
                    m.d.sync += command.index.eq(command.index + taken + command.x_size)
                with m.Case(_Part.RIGHT):
                    with m.If(~last_row):
                        enter(_Part.LEFT)
                        m.d.sync += part_rows.eq(part_rows - 1)
                    with m.Elif(below):
                        enter(_Part.BELOW)
                    with m.Else():
                        m.d.sync += self.active.eq(0)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += self.active.eq(1)
        # Whether or not there is a command, which is known late in a cycle.
        with m.If(~self.active):
            m.d.sync += [command.eq(new), runs.eq(new_runs)]
            with m.If(new.y_pad_0 != 0):
                begin_run("width", new, new_runs)
                m.d.sync += [part.eq(_Part.ABOVE), part_rows.eq(new.y_pad_0)]
            with m.Elif(new.y_size != 0):
                begin_run("x_pad_0", new, new_runs)
                m.d.sync += [part.eq(_Part.LEFT), part_rows.eq(new.y_size)]
            with m.Else():
                begin_run("width", new, new_runs)
                m.d.sync += [part.eq(_Part.BELOW), part_rows.eq(new.y_pad_1)]
        return m
