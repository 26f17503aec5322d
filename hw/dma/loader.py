"""Loader: copies strided rows from memory to scratchpads, with padding."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw import isa
from amaranth_vta.hw.bus.axi import ReadSignature
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.hw.queues.levels import next_count
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.scratchpad import Geometry, geometry
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

from .beats import BeatWalker
from .bursts import BurstWalker
from .padding import PaddingWalker
from .rows import Kind, Rows, widening
from .transfer import TRANSFERS_AHEAD, Bases, DmaSignature, describe_rows, rows_of

_ALWAYS = Const(1, 1)


class Loader(wiring.Component):
    """Fills scratchpads from memory, transfer after transfer, each with its padding.

    Bursts are requested as fast as memory accepts them, also for later transfers. Beats of elements
    wider than the bus are gathered, up to four, before they are written. Padding is written in
    cycles without data. The first write of a transfer follows the last write of its predecessor, or
    one cycle later if that was padding.

    Timing, for one element of two beats; a scratchpad read in the cycle after ``done`` returns it::

        read.beat    b0  b1
        inp.enable           1
        done                 1

    Ports
    -----
    (all of `DmaSignature`)
    bases : stable while the loader is not idle
    read : the memory
    uop, inp, wgt, acc : write ports of the scratchpads in ``memories``
    hold : nothing is written in this cycle

    After an error nothing more is written or accepted; arriving data are dropped. ``moved`` counts
    elements when they arrive from memory.

    Parameters
    ----------
    memories : the scratchpads to fill, of UOP, INP, WGT and ACC; ACC includes ACC_8BIT, and WGT
        WGT_4BIT
    """

    def __init__(
        self,
        config: Config,
        memories: Sequence[isa.Memory],
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._targets = {memory: geometry(config, memory) for memory in memories}
        self._rows = rows_of(config, memories, choices)
        self._bus_bits = 8 * config.bus_bytes
        super().__init__(
            {
                **DmaSignature(config, memories).members,
                "bases": In(Bases),
                "read": Out(ReadSignature(self._bus_bits)),
                **{
                    memory.name.lower(): Out(target.write_port())
                    for memory, target in self._targets.items()
                },
                "hold": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        rows = self._rows
        m.submodules.bursts = bursts = BurstWalker(rows)
        m.submodules.beats = beats = BeatWalker(rows)
        m.submodules.padding = padding = PaddingWalker(rows)
        m.submodules.turns = turns = Queue(_turn(rows), TRANSFERS_AHEAD)
        connect(m, bursts.request, flipped(self.read.request))
        failed = Signal()
        self._accept(m, bursts, turns, failed)

        # All writes are registered.
        write = Signal(
            data.StructLayout(
                {
                    "valid": 1,
                    # Element masks per scratchpad.
                    "masks": data.ArrayLayout(rows.elements, len(self._targets)),
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
        error = beat.payload.error
        m.d.comb += [
            use.eq(beat.valid & ~error & beats.valid & free & ~failed),
            put.eq(use & ~gathers),
            fail.eq(beat.valid & error & beats.valid & free & ~failed),
            beats.step.eq(use),
            beat.ready.eq((beats.valid & free & beats.release) | failed),
        ]
        with m.If(fail):
            m.d.sync += failed.eq(1)

        # Padding, in cycles without data.
        m.d.comb += padding.step.eq(padding.write & free & ~put & ~failed)
        working, ends = self._start_transfers(m, turns, beats, padding, free & ~failed)

        with m.If(free):
            m.d.sync += [
                write.valid.eq(put | padding.step | ends | fail),
                Value.cast(write.masks).eq(self._masks(beats, padding, put)),
                write.lanes.eq(Mux(put, lanes, ~0)),
                write.index.eq(Mux(put, beats.index, padding.index)),
                write.word.eq(Mux(put, word, Mux(padding.step, self._padded(m, padding), 0))),
                write.done.eq(ends | fail),
                write.error.eq(fail),
            ]
        m.d.comb += [
            self.done.eq(write.valid & write.done & ~self.hold),
            self.error.eq(write.valid & write.error & ~self.hold),
        ]
        self._connect_writes(m, write)
        for number, kind in enumerate(rows.kinds):
            with m.If(use & (beats.kind == number)):
                counted = isa.counted_as(kind.memory).name.lower()
                m.d.comb += self.moved[counted].eq(beats.taken)

        # Bursts whose last beat has not arrived.
        in_flight = Signal(range(2 * BURSTS_IN_FLIGHT + 1))
        asked = self.read.request.valid & self.read.request.ready
        answered = beat.valid & beat.ready & beat.payload.last
        m.d.sync += in_flight.eq(next_count(in_flight, asked, answered))
        m.d.comb += self.idle.eq(
            bursts.idle & (in_flight == 0) & ~write.valid & (failed | (~working & ~turns.o.valid))
        )
        m.d.comb += self.active.eq(self.command.valid | ~self.idle)
        return m

    def _accept(self, m: Module, bursts: BurstWalker, turns: Queue, failed: Signal) -> None:
        """Accept commands: request their bursts at once; data and padding wait for their turn."""
        rows, command = self._rows, self.command.payload
        has_data, has_padding, accept = command.has_data, Signal(), Signal()
        pads_above_below = (command.y_pad_0 | command.y_pad_1) != 0
        pads_left_right = (command.x_pad_0 | command.x_pad_1) != 0
        m.d.comb += [
            has_padding.eq(
                (command.x_size != 0)
                & (pads_above_below | (pads_left_right & (command.y_size != 0)))
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
        beats, turn = Signal(rows.beats()), turns.i.payload
        describe_rows(m, rows, command, bases, bursts.command.payload, beats)
        m.d.comb += [
            turn.sram_base.eq(command.sram_base),
            turn.width.eq(command.x_pad_0 + command.x_size + command.x_pad_1),
        ]
        m.d.comb += [turn[name].eq(beats[name]) for name in _SHARED]
        m.d.comb += [turn[name].eq(command[name]) for name in _PADS]
        if self._config.pad_value:
            value = Signal(rows.scalar)
            m.d.comb += turn.value.eq(value)
            with m.If(accept & Cat(command.memory == padding for padding in isa.Padding).any()):
                m.d.sync += value.eq(command.dram_base)

    def _start_transfers(
        self, m: Module, turns: Queue, beats: BeatWalker, padding: PaddingWalker, moves: Value
    ) -> tuple[Signal, Signal]:
        """Start the walkers on the next transfer when both have finished its predecessor, padding
        at least one cycle ago, since its end arrives late in the cycle.

        Returns whether a transfer is in progress, and whether it ends in this cycle, which requires
        ``moves``: the write register can be filled.
        """
        working, ends = Signal(), Signal()
        following = turns.o.payload
        m.d.comb += [
            ends.eq(working & moves & (~beats.valid | (beats.step & beats.last)) & ~padding.active),
            turns.o.ready.eq(~working | ends),
            beats.command.payload.gap.eq(following.x_pad_0 + following.x_pad_1),
            *(beats.command.payload[name].eq(following[name]) for name in _SHARED),
            beats.command.valid.eq(turns.o.valid & turns.o.ready & following.has_data),
            padding.command.payload.kind.eq(self._padded_kind(following.kind)),
            padding.command.payload.index.eq(following.sram_base),
            padding.command.payload.x_size.eq(following.row_size),
            padding.command.payload.y_size.eq(following.rows),
            *(padding.command.payload[name].eq(following[name]) for name in _OF_PADDING),
            padding.command.valid.eq(turns.o.valid & turns.o.ready & following.has_padding),
        ]
        with m.If(turns.o.ready):
            m.d.sync += working.eq(turns.o.valid)
        return working, ends

    def _connect_writes(self, m: Module, write: Any) -> None:
        for (memory, target), mask in zip(self._targets.items(), write.masks, strict=True):
            port = getattr(self, memory.name.lower())
            m.d.comb += [
                port.enable.eq(Mux(self.hold, 0, mask)),
                port.lanes.eq(write.lanes),
                port.index.eq(write.index),
                Value.cast(port.data).eq(self._spread(target, write)),
            ]

    def _kinds_of(self, memory: isa.Memory) -> list[int]:
        """Numbers of the kinds that fill the scratchpad of ``memory``."""
        return [
            number
            for number, kind in enumerate(self._rows.kinds)
            if isa.filled_by(kind.memory) is memory
        ]

    def _masks(self, beats: BeatWalker, padding: PaddingWalker, put: Value) -> Value:
        """Element masks for each scratchpad: of a beat if ``put``, else of padding."""
        return Cat(
            Mux(
                put,
                beats.mask & self._goes_to(memory, beats.kind),
                padding.mask & self._goes_to(memory, padding.kind, padding.step),
            )
            for memory in self._targets
        )

    def _goes_to(self, memory: isa.Memory, kind: Value, writes: Value = _ALWAYS) -> Value:
        """Ones if elements of ``kind`` are written to the scratchpad of ``memory`` and ``writes``
        is high, else zeros; one bit per element written at once.
        """
        mine = Cat(kind == number for number in self._kinds_of(memory)).any() & writes
        return mine.replicate(self._rows.elements)

    def _padded_kind(self, kind: Value) -> Value:
        """Kind of the padding around elements of ``kind``: as wide as the scratchpad's scalars,
        even if they are narrower in memory.
        """
        padded = kind
        for memory in self._targets:
            as_wide, *narrower = self._kinds_of(memory)
            for number in narrower:
                padded = Mux(kind == number, as_wide, padded)
        return padded

    def _target(self, kind: Kind) -> Geometry:
        return self._targets[isa.filled_by(kind.memory)]

    @property
    def _most_beats(self) -> int:
        """Maximum number of beats gathered before a write."""
        return max(self._gathered(kind) for kind in self._rows.kinds)

    @property
    def _word_bits(self) -> int:
        """Bits written per cycle."""
        return max(self._bits_at_once(kind) for kind in self._rows.kinds)

    def _bits_at_once(self, kind: Kind) -> int:
        """Scratchpad bits that beats of ``kind`` fill at once: a lane, or a widened element or
        beat.
        """
        factor = widening(self._config, kind.memory)
        if factor == 1:
            return self._gathered(kind) * self._bus_bits
        return self._gathered(kind) * min(self._bus_bits, 8 * kind.element_bytes) * factor

    def _gathered(self, kind: Kind) -> int:
        """Number of beats of ``kind`` gathered before a write."""
        if kind.beats == 1:
            return 1
        return max(1, self._target(kind).lane_beats // widening(self._config, kind.memory))

    def _place(self, m: Module, beats: BeatWalker, beat: Any) -> tuple[Signal, Signal, Signal]:
        """Write data and lanes for a beat, and whether it waits for more beats. The latest beat is
        always at the top of the word, which needs no multiplexer.
        """
        word, gathers = Signal(self._word_bits), Signal()
        lanes = Signal(max(target.lanes for target in self._targets.values()))
        most = self._most_beats
        earlier = Signal((most - 1) * self._bus_bits)
        place = Signal(range(most))
        repeated = self._word_bits // (most * self._bus_bits)
        m.d.comb += [
            word.eq(Cat(earlier, beat.payload.data).replicate(repeated)),
            lanes.eq(~0),
        ]
        with m.Switch(beats.kind):
            for number, kind in enumerate(self._rows.kinds):
                with m.Case(number):
                    gathered = self._gathered(kind)
                    if gathered > 1:
                        log_gathered = (gathered - 1).bit_length()
                        m.d.comb += [
                            place.eq(beats.lane[:log_gathered] + (most - gathered)),
                            gathers.eq(place != most - 1),
                            lanes.eq(1 << (beats.lane >> log_gathered)),
                        ]
                    if widening(self._config, kind.memory) > 1:
                        bits = beat.payload.data
                        if gathered > 1:
                            bits = Cat(earlier, bits)[-gathered * self._bus_bits :]
                        m.d.comb += word.eq(self._widened(kind, beats, bits))
                    if gathered == 1 and kind.beats > 1:
                        # A beat becomes several lanes.
                        group = self._target(kind).lanes // kind.beats
                        m.d.comb += lanes.eq(
                            Cat(
                                (beats.lane == place).replicate(group)
                                for place in range(kind.beats)
                            )
                        )
        if most > 1:
            with m.If(beat.valid & gathers):
                m.d.sync += earlier.word_select(place, self._bus_bits).eq(beat.payload.data)
        return word, lanes, gathers

    def _widened(self, kind: Kind, beats: BeatWalker, bits: Value) -> Value:
        """Scalars in the ``bits`` of beats, or of one element in them, sign-extended to the
        scratchpad's width.
        """
        narrow = self._config.memory(kind.memory).scalar_width
        wide_scalar = self._config.memory(isa.filled_by(kind.memory)).scalar_width
        if kind.serial:
            lane = beats.lane[: (kind.elements - 1).bit_length()]
            bits = bits.word_select(lane, 8 * kind.element_bytes)
        wide = Cat(
            _sign_extended(bits.word_select(scalar, narrow), wide_scalar)
            for scalar in range(len(bits) // narrow)
        )
        return wide.replicate(self._word_bits // len(wide))

    def _padded(self, m: Module, padding: PaddingWalker) -> Value:
        """The padding value in each scalar of the word."""
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

    def _spread(self, target: Geometry, write: Any) -> Value:
        """The word replicated over all lanes and elements of a memory's write port."""
        width = target.element_bits * target.elements
        kinds = [kind for kind in self._rows.kinds if self._target(kind) is target]
        bits = min(width, max(self._bits_at_once(kind) for kind in kinds))
        return write.word[-bits:].replicate(width // bits)


# Common fields of the beat and padding walkers: rows with padding are never merged.
_SHARED = ("kind", "index", "row_size", "rows", "lane", "lane_stride")
_PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
_OF_PADDING = (*_PADS, "width", "value")


def _turn(rows: Rows) -> data.StructLayout:
    """A transfer that waits for its turn: commands to `BeatWalker` and `PaddingWalker`."""
    beats, padding = rows.beats().members, rows.padding().members
    return data.StructLayout(
        {
            **{name: beats[name] for name in _SHARED},
            "sram_base": padding["index"],
            **{name: padding[name] for name in _OF_PADDING},
            "has_data": 1,
            "has_padding": 1,
        }
    )


def _base(bases: Any, memory: isa.Memory) -> Value:
    return bases[isa.limited_as(memory).name.lower()]


def _sign_extended(scalar: Value, width: int) -> Value:
    return Cat(scalar, scalar[-1].replicate(width - len(scalar)))
