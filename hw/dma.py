"""Transfers between memory and scratchpads: strided rows, padded on the way in."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .axi import (
    BURSTS_IN_FLIGHT,
    BurstRequest,
    ReadSignature,
    WriteBeat,
    WriteResponse,
    WriteSignature,
)
from .buffer import Geometry, geometry
from .config import Config
from .extent import CheckedEntry
from .rows import BeatWalker, BurstWalker, Kind, PaddingWalker, Rows, widens
from .stream import Queue
from .structures import ADDRESS_WIDTH, instruction_layout


class Bases(data.Struct):
    """Byte address in DRAM of element 0 of each memory; ACC_8BIT is read from OUT's."""

    uop: ADDRESS_WIDTH
    inp: ADDRESS_WIDTH
    wgt: ADDRESS_WIDTH
    acc: ADDRESS_WIDTH
    out: ADDRESS_WIDTH


_FIELDS = (
    "memory",
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
    """What a LOAD or STORE moves: fields of the instruction and of `CheckedEntry`.

    Only what is legal and in range may be given to a `Loader` or `Storer`. To a `Loader`, what
    sets its padding value is a transfer of nothing.
    """
    fields = isa.instruction_set(config).layouts[isa.Opcode.LOAD]
    checked = CheckedEntry.as_shape()
    return data.StructLayout(
        {
            **{name: unsigned(fields[name].width) for name in _FIELDS},
            "elements": checked["elements"].shape,
            "first": checked["first"].shape,
        }
    )


def transfer(config: Config, checked: data.View) -> Value:
    """The payload of `transfer_layout` for a `CheckedEntry`."""
    fields = data.View(instruction_layout(config, isa.Opcode.LOAD), checked.entry.bits)
    return Cat(*(fields[name] for name in _FIELDS), checked.elements, checked.first)


def sets_padding_wrongly(config: Config, fields: data.View) -> Value:
    """Whether a LOAD sets a padding value, and has fields besides that are not zero."""
    if not config.pad_value:
        return Const(0)
    sets = _any(fields.memory == padding for padding in isa.Padding)
    return sets & (Cat(fields[name] for name in isa.UNUSED_BY_SET_PADDING) != 0)


def moved_elements(config: Config, memories: Sequence[isa.Memory]) -> data.StructLayout:
    """For each memory, by name, the elements that have been moved in a cycle at the most."""
    return data.StructLayout(
        {
            kind.memory.name.lower(): range(kind.elements + 1)
            for kind in _rows(config, memories).kinds
        }
    )


def _rows(config: Config, memories: Sequence[isa.Memory]) -> Rows:
    """What is moved for ``memories``, of which ACC includes ACC_8BIT."""
    both = [isa.Memory.ACC_8BIT] if isa.Memory.ACC in memories else []
    return Rows(config, [Kind.of(config, memory) for memory in (*memories, *both)])


# Transfers whose data are still to come, addresses having been made: enough to hide the latency
# of a memory behind transfers of a few beats.
_TRANSFERS_AHEAD = 8


class Loader(wiring.Component):
    """Fills scratchpads from memory, transfer after transfer, each with its padding.

    Bursts are asked for as fast as the memory takes them, also for the transfers that follow.
    Beats of elements wider than the bus are put together, in fours if there are as many, before
    they are written; what write cycles that leaves, and all in which no data come, are used for
    padding. The first write of a transfer is made when everything of the one before is written.

    Timing, for one element of two beats; a scratchpad read in the cycle of ``done`` gives it::

        read.beat    b0  b1
        inp.enable           1
        done                     1

    Ports
    -----
    command : of `transfer_layout`
    bases : stable while anything is under way
    read : the memory
    uop, inp, wgt, acc : write ports of the scratchpads, those of ``memories``
    hold : nothing is written in this cycle
    done : for one cycle, a transfer is complete, in the order of the commands
    error : with ``done``: the bus answered with an error. Nothing more is written, taken or
        done; what is still to come of the data is dropped.
    idle : nothing is under way
    moved : elements, of `moved_elements`, that have come from memory in this cycle

    Parameters
    ----------
    memories : of UOP, INP, WGT and ACC, those that it fills; ACC includes ACC_8BIT
    """

    def __init__(self, config: Config, memories: Sequence[isa.Memory]) -> None:
        self._config = config
        self._targets = {memory: geometry(config, memory) for memory in memories}
        self._rows = _rows(config, memories)
        self._moved = moved_elements(config, memories)
        self._bus_bits = 8 * config.bus_bytes
        super().__init__(
            {
                "command": In(stream.Signature(transfer_layout(config))),
                "bases": In(Bases),
                "read": Out(ReadSignature(self._bus_bits)),
                **{
                    memory.name.lower(): Out(target.write_port())
                    for memory, target in self._targets.items()
                },
                "hold": In(1),
                "done": Out(1),
                "error": Out(1),
                "idle": Out(1),
                "moved": Out(self._moved),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._rows
        m.submodules.bursts = bursts = BurstWalker(rows)
        m.submodules.beats = beats = BeatWalker(rows)
        m.submodules.padding = padding = PaddingWalker(rows)
        turn = data.StructLayout(
            {"beats": rows.beats(), "padding": rows.padding(), "has_data": 1, "has_padding": 1}
        )
        m.submodules.turns = turns = Queue(turn, _TRANSFERS_AHEAD)
        connect(m, bursts.request, flipped(self.read.request))
        failed = Signal()

        # The bursts of a command are made at once; its data and its padding have their turn.
        command = self.command.payload
        has_data, has_padding, accept = Signal(), Signal(), Signal()
        pads_above_below = (command.y_pad_0 | command.y_pad_1) != 0
        pads_beside = (command.x_pad_0 | command.x_pad_1) != 0
        m.d.comb += [
            has_data.eq((command.x_size != 0) & (command.y_size != 0)),
            has_padding.eq(
                (command.x_size != 0) & (pads_above_below | (pads_beside & (command.y_size != 0)))
            ),
            self.command.ready.eq(turns.i.ready & (bursts.command.ready | ~has_data) & ~failed),
            accept.eq(self.command.valid & self.command.ready),
            turns.i.valid.eq(accept),
            turns.i.payload.has_data.eq(has_data),
            turns.i.payload.has_padding.eq(has_padding),
            bursts.command.valid.eq(accept & has_data),
            bursts.stop.eq(failed),
        ]
        bases = [_base(self.bases, kind.memory) for kind in rows.kinds]
        _describe_rows(m, rows, command, bases, bursts.command.payload, turns.i.payload.beats)
        next_padding = turns.i.payload.padding
        # Padding is written as wide as the scratchpad has it, whatever is wide in memory.
        kind = turns.i.payload.beats.kind
        if isa.Memory.ACC in self._targets:
            acc, acc_8bit = self._kinds_of(isa.Memory.ACC)
            kind = Mux(kind == acc_8bit, acc, kind)
        m.d.comb += [next_padding.kind.eq(kind), next_padding.index.eq(command.sram_base)]
        for name in ("x_size", "y_size", "y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"):
            m.d.comb += next_padding[name].eq(command[name])
        if self._config.pad_value:
            value = Signal(rows.scalar)
            m.d.comb += next_padding.value.eq(value)
            with m.If(accept & _any(command.memory == padding for padding in isa.Padding)):
                m.d.sync += value.eq(command.dram_base)

        # All writes come from a register.
        write = Signal(
            data.StructLayout(
                {
                    "valid": 1,
                    "kind": rows.kind,
                    "mask": rows.elements,
                    "lanes": max(item.lanes for item in self._targets.values()),
                    "index": rows.index,
                    "word": self._word_bits,
                    "done": 1,
                    "error": 1,
                }
            )
        )
        free = Signal()
        m.d.comb += free.eq(~write.valid | ~self.hold)

        # Data.
        beat = self.read.beat
        word, lanes, gathers = self._place(m, beats, beat)
        use, put, fail = Signal(), Signal(), Signal()
        m.d.comb += [
            use.eq(beat.valid & ~beat.payload.error & beats.valid & free & ~failed),
            put.eq(use & ~gathers),
            fail.eq(beat.valid & beat.payload.error & beats.valid & free & ~failed),
            beats.step.eq(use),
            beat.ready.eq((beats.valid & free & beats.release) | failed),
        ]
        with m.If(fail):
            m.d.sync += failed.eq(1)

        # Padding, in the cycles that data leave.
        m.d.comb += padding.step.eq(padding.write & free & ~put & ~failed)

        # The turn ends when both have ended.
        working, ends = Signal(), Signal()
        next_turn = turns.o.payload
        m.d.comb += [
            ends.eq(
                working
                & free
                & ~failed
                & (~beats.valid | (beats.step & beats.last))
                & (~padding.active | padding.over)
            ),
            turns.o.ready.eq(~working | ends),
            beats.command.payload.eq(next_turn.beats),
            beats.command.valid.eq(turns.o.valid & turns.o.ready & next_turn.has_data),
            padding.command.payload.eq(next_turn.padding),
            padding.command.valid.eq(turns.o.valid & turns.o.ready & next_turn.has_padding),
        ]
        with m.If(turns.o.ready):
            m.d.sync += working.eq(turns.o.valid)

        with m.If(free):
            m.d.sync += [
                write.valid.eq(put | padding.step | ends | fail),
                write.kind.eq(Mux(put, beats.kind, padding.kind)),
                write.mask.eq(Mux(put, beats.mask, Mux(padding.step, padding.mask, 0))),
                write.lanes.eq(Mux(put, lanes, ~0)),
                write.index.eq(Mux(put, beats.index, padding.index)),
                write.word.eq(Mux(put, word, self._padded(m, padding))),
                write.done.eq(ends | fail),
                write.error.eq(fail),
            ]
        m.d.sync += [
            self.done.eq(write.valid & write.done & ~self.hold),
            self.error.eq(write.valid & write.error & ~self.hold),
        ]
        for memory, target in self._targets.items():
            port = getattr(self, memory.name.lower())
            mine = Signal(name=f"{memory.name.lower()}_mine")
            m.d.comb += [
                mine.eq(_any(write.kind == number for number in self._kinds_of(memory))),
                port.enable.eq(Mux(write.valid & ~self.hold & mine, write.mask, 0)),
                port.lanes.eq(write.lanes),
                port.index.eq(write.index),
                Value.cast(port.data).eq(self._spread(memory, target, write)),
            ]

        for number, kind in enumerate(rows.kinds):
            with m.If(use & (beats.kind == number)):
                m.d.comb += self.moved[kind.memory.name.lower()].eq(beats.taken)

        # Bursts asked for of which the last beat has not come.
        under_way = Signal(range(2 * BURSTS_IN_FLIGHT + 1))
        asked = self.read.request.valid & self.read.request.ready
        answered = beat.valid & beat.ready & beat.payload.last
        m.d.sync += under_way.eq(under_way + asked - answered)
        m.d.comb += self.idle.eq(
            bursts.idle & (under_way == 0) & ~write.valid & (failed | (~working & ~turns.o.valid))
        )
        return m

    def _kinds_of(self, memory: isa.Memory) -> list[int]:
        """The numbers of the kinds that are written to the scratchpad of ``memory``."""
        both = (memory, isa.Memory.ACC_8BIT) if memory is isa.Memory.ACC else (memory,)
        return [number for number, kind in enumerate(self._rows.kinds) if kind.memory in both]

    def _target(self, kind: Kind) -> Geometry:
        memory = isa.Memory.ACC if kind.memory is isa.Memory.ACC_8BIT else kind.memory
        return self._targets[memory]

    @property
    def _word_bits(self) -> int:
        """Of what is written in a cycle, before it is widened."""
        return max(self._gathered(kind) for kind in self._rows.kinds) * self._bus_bits

    def _gathered(self, kind: Kind) -> int:
        """How many beats of ``kind`` are put together before they are written."""
        if kind.beats == 1 or widens(self._config, kind.memory):
            return 1
        return self._target(kind).lane_beats

    def _place(self, m: Module, beats: BeatWalker, beat: Any) -> tuple[Signal, Signal, Signal]:
        """What is written of the beat that has come, its lanes, and whether it waits for more."""
        word, gathers = Signal(self._word_bits), Signal()
        lanes = Signal(max(target.lanes for target in self._targets.values()))
        earlier = Signal(max(1, self._word_bits - self._bus_bits))
        place = Signal(beats.lane.shape())
        m.d.comb += [word.eq(beat.payload.data), lanes.eq(~0)]
        with m.Switch(beats.kind):
            for number, kind in enumerate(self._rows.kinds):
                with m.Case(number):
                    gathered = self._gathered(kind)
                    if gathered > 1:
                        log_gathered = (gathered - 1).bit_length()
                        m.d.comb += [
                            place.eq(beats.lane[:log_gathered]),
                            gathers.eq(place != gathered - 1),
                            word.eq(
                                Cat(
                                    earlier[: (gathered - 1) * self._bus_bits],
                                    beat.payload.data,
                                )
                            ),
                            lanes.eq(1 << (beats.lane >> log_gathered)),
                        ]
                    elif kind.serial:
                        m.d.comb += word.eq(
                            beat.payload.data.word_select(
                                beats.lane[: (kind.elements - 1).bit_length()],
                                8 * kind.element_bytes,
                            )
                        )
                    elif kind.beats > 1:
                        # A beat becomes several lanes.
                        group = self._target(kind).lanes // kind.beats
                        m.d.comb += lanes.eq(
                            Cat(
                                (beats.lane == place).replicate(group)
                                for place in range(kind.beats)
                            )
                        )
        with m.If(beat.valid & gathers):
            m.d.sync += earlier.word_select(place, self._bus_bits).eq(beat.payload.data)
        return word, lanes, gathers

    def _padded(self, m: Module, padding: PaddingWalker) -> Value:
        """What is written of ``padding``: its value in each scalar of the word."""
        word = Signal(self._word_bits)
        if self._config.pad_value:
            with m.Switch(padding.kind):
                for number, kind in enumerate(self._rows.kinds):
                    if isa.padding_of(kind.memory) is not None:
                        width = self._config.memory(kind.memory).scalar_width
                        with m.Case(number):
                            m.d.comb += word.eq(
                                padding.value[:width].replicate(self._word_bits // width)
                            )
        return word

    def _spread(self, memory: isa.Memory, target: Geometry, write: Any) -> Value:
        """All lanes and elements that the write port of ``memory`` has, from the one word."""
        config = self._config
        width = target.element_bits * target.elements
        bits = min(width, target.lane_beats * self._bus_bits)
        value = write.word[:bits].replicate(width // bits)
        for number in self._kinds_of(memory):
            kind = self._rows.kinds[number]
            if widens(config, kind.memory):
                scalars = min(self._bus_bits, 8 * kind.element_bytes) // config.out_width
                wide = Cat(
                    _sign_extended(write.word.word_select(scalar, config.out_width), config)
                    for scalar in range(scalars)
                )
                value = Mux(write.kind == number, wide.replicate(width // len(wide)), value)
        return value


class Storer(wiring.Component):
    """Writes rows of elements of the accumulators' low bits to memory, transfer after transfer.

    Bursts are announced ahead of their data, also those of the transfers that follow; at most
    `BURSTS_IN_FLIGHT` have no response yet. Between the first beat and the last one of a
    sequence of transfers there is no idle cycle as long as the memory takes them.

    Timing: an element is read three cycles after its command was taken, at the earliest; its
    first beat is offered in the cycle after the next::

        command      c
        scratchpad               i
        write.beat                       b0  b1

    Ports
    -----
    command : of `transfer_layout`
    base : byte address of element 0 of OUT; stable while anything is under way
    scratchpad : where the elements are read
    write : the memory
    done : for one cycle, the memory has confirmed all of a transfer, in the order of the commands
    error : with ``done``: the bus answered with an error. Nothing more is taken or done; bursts
        that have been announced are still written.
    stop : no more bursts are announced; those that have been are still written
    drained : all bursts that have been announced are written and answered
    idle : nothing is under way
    moved : elements, of `moved_elements`, that have been read in this cycle
    """

    def __init__(self, config: Config) -> None:
        self._rows = _rows(config, [isa.Memory.OUT])
        self._bus_bits = 8 * config.bus_bytes
        out = geometry(config, isa.Memory.OUT)
        super().__init__(
            {
                "command": In(stream.Signature(transfer_layout(config))),
                "base": In(ADDRESS_WIDTH),
                "scratchpad": Out(out.read_port()),
                "write": Out(WriteSignature(self._bus_bits)),
                "done": Out(1),
                "error": Out(1),
                "stop": In(1),
                "drained": Out(1),
                "idle": Out(1),
                "moved": Out(moved_elements(config, [isa.Memory.OUT])),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._rows
        (kind,) = rows.kinds
        m.submodules.bursts = bursts = BurstWalker(rows)
        m.submodules.beats = beats = BeatWalker(rows)
        m.submodules.turns = turns = Queue(rows.beats(), _TRANSFERS_AHEAD)
        # Of each transfer, whether it has data at all; of each burst, how long it is, and
        # whether it is the last one of its transfer.
        m.submodules.order = order = Queue(data.StructLayout({"has_data": 1}), _TRANSFERS_AHEAD)
        m.submodules.announced = announced = Queue(
            data.StructLayout({"length": 8}), BURSTS_IN_FLIGHT
        )
        m.submodules.unanswered = unanswered = Queue(
            data.StructLayout({"last": 1}), BURSTS_IN_FLIGHT
        )
        # Nothing goes from an input of the memory to an output without a register.
        m.submodules.requests = requests = Queue(BurstRequest, 2)
        m.submodules.buffered = buffered = Queue(WriteBeat(self._bus_bits), 2)
        m.submodules.responses = responses = Queue(WriteResponse, 2)
        connect(m, turns.o, beats.command)
        connect(m, requests.o, flipped(self.write.request))
        connect(m, buffered.o, flipped(self.write.beat))
        connect(m, flipped(self.write.response), responses.i)
        failed = Signal()

        command = self.command.payload
        has_data, accept = Signal(), Signal()
        m.d.comb += [
            has_data.eq((command.x_size != 0) & (command.y_size != 0)),
            self.command.ready.eq(
                order.i.ready & turns.i.ready & (bursts.command.ready | ~has_data) & ~failed
            ),
            accept.eq(self.command.valid & self.command.ready),
            order.i.valid.eq(accept),
            order.i.payload.has_data.eq(has_data),
            turns.i.valid.eq(accept & has_data),
            bursts.command.valid.eq(accept & has_data),
            bursts.stop.eq(failed),
        ]
        _describe_rows(m, rows, command, [self.base], bursts.command.payload, turns.i.payload)

        # Announce.
        announce = Signal()
        m.d.comb += [
            bursts.request.ready.eq(
                requests.i.ready & announced.i.ready & unanswered.i.ready & ~self.stop
            ),
            announce.eq(bursts.request.valid & bursts.request.ready),
            requests.i.valid.eq(announce),
            requests.i.payload.eq(bursts.request.payload),
            announced.i.valid.eq(announce),
            announced.i.payload.length.eq(bursts.request.payload.length),
            unanswered.i.valid.eq(announce),
            unanswered.i.payload.last.eq(bursts.last),
        ]

        # Read; in the next cycle, pack. The scratchpad keeps an element of several beats.
        reads, sent = Signal(), Signal(8)
        packs, strobe, last = Signal(), Signal(kind.elements), Signal()
        lane = Signal(range(kind.beats))
        m.d.comb += [
            reads.eq(beats.valid & announced.o.valid & (~packs | buffered.i.ready)),
            beats.step.eq(reads),
            announced.o.ready.eq(reads & (sent == announced.o.payload.length)),
            self.scratchpad.enable.eq(reads & ((beats.lane == 0) | (kind.elements > 1))),
            self.scratchpad.index.eq(beats.index),
            self.moved.out.eq(Mux(reads, beats.taken, 0)),
        ]
        with m.If(buffered.i.ready):
            m.d.sync += packs.eq(0)
        with m.If(reads):
            m.d.sync += [
                packs.eq(1),
                strobe.eq(beats.mask),
                lane.eq(beats.lane),
                last.eq(announced.o.ready),
                sent.eq(Mux(announced.o.ready, 0, sent + 1)),
            ]
        elements = Value.cast(self.scratchpad.data)
        m.d.comb += [
            buffered.i.valid.eq(packs),
            buffered.i.payload.data.eq(elements.word_select(lane, self._bus_bits)),
            buffered.i.payload.strobe.eq(
                Cat(bit.replicate(self._bus_bits // 8 // kind.elements) for bit in strobe)
            ),
            buffered.i.payload.last.eq(last),
        ]

        # Confirm.
        response = responses.o
        answer, completes = Signal(), Signal()
        m.d.comb += [
            answer.eq(response.valid & response.ready),
            # A transfer without data before it is done first, in a cycle of its own.
            response.ready.eq(order.o.valid & order.o.payload.has_data | failed),
            unanswered.o.ready.eq(answer),
            completes.eq(
                order.o.valid
                & ~failed
                & (
                    ~order.o.payload.has_data
                    | (answer & (unanswered.o.payload.last | response.payload.error))
                )
            ),
            order.o.ready.eq(completes),
        ]
        m.d.sync += [
            self.done.eq(completes),
            self.error.eq(completes & answer & response.payload.error),
        ]
        with m.If(answer & response.payload.error):
            m.d.sync += failed.eq(1)
        m.d.comb += [
            self.drained.eq(
                ~announced.o.valid
                & ~unanswered.o.valid
                & ~packs
                & ~buffered.o.valid
                & ~requests.o.valid
            ),
            self.idle.eq(bursts.idle & self.drained & (failed | ~order.o.valid)),
        ]
        return m


def _base(bases: Any, memory: isa.Memory) -> Value:
    return bases["out" if memory is isa.Memory.ACC_8BIT else memory.name.lower()]


def _any(conditions: Any) -> Value:
    return Cat(conditions).any()


def _sign_extended(scalar: Value, config: Config) -> Value:
    return Cat(scalar, scalar[-1].replicate(config.acc_width - config.out_width))


def _describe_rows(
    m: Module, rows: Rows, command: Any, bases: Sequence[Value], bursts: Any, beats: Any
) -> None:
    """Fills in the commands to `BurstWalker` and `BeatWalker` for one of `transfer_layout`.

    Rows that follow one another in memory as they do in the scratchpad are one long row.
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
