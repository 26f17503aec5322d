"""STOREs write each element once, to its address, in bursts of the announced length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma import beats, bursts, rows, storer, transfer

from .lists import List, assert_stable, assume_stable
from .proving import Proof, narrow_addresses

# Scaled down from 4096-byte pages, 48 address bits, 8 bursts and 8 transfers in flight.
_PAGE, _ADDRESS_WIDTH, _IN_FLIGHT = 32, 10, 3
# Maximum number of words still written from registers after an error, and likewise of bursts.
_LATE_WORDS, _LATE_BURSTS = 2, 2
# Commands in a run, and an upper bound on the number of anything else.
_COMMANDS, _MOST = 2, 6

# Up to three rows of up to three elements.
_COMMAND = data.StructLayout({"dram": 3, "sram": 2, "x_size": 2, "y_size": 2, "x_stride": 2})
_BURST = data.StructLayout({"word": _ADDRESS_WIDTH, "length": 8})
_BEAT = data.StructLayout({"word": _ADDRESS_WIDTH, "last": 1, "final": 1})


class StoreProperty(wiring.Component):
    """Checked against a walk over the elements: each beat carries the row's next elements that lie
    in its word, each in its lane with its strobe. Beats and bursts have the same addresses, and the
    last beat of each burst is marked.

    Two commands of any rows, or empty ones, arrive in any cycle. Memory accepts bursts and beats in
    either order, and answers at any time, also with errors. A command is done when memory has
    confirmed all of it, or at its first error, after which nothing is done. Once an error is on
    the bus at most two words are written; once it is reported, or the run is stopped, at most two
    registered bursts appear. Offered items are stable until accepted. Nothing is outstanding when
    the storer reports idle or drained.
    """

    def __init__(self, rows: Any, *others: Any, config: Config, faults: bool) -> None:
        self._storer = others[-1].Storer(config)
        self._faults = faults
        self._log_bus = (config.bus_bytes - 1).bit_length()
        self._kind = rows.Kind.of(config, isa.Memory.OUT)
        super().__init__(
            {
                "valid": In(1),
                "command": In(_COMMAND),
                "burst_ready": In(1),
                "beat_ready": In(1),
                "answers": In(1),
                "error": In(1),
                "stop": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.storer = storer = self._storer
        m.submodules.commands = commands = List(1, _MOST)
        m.submodules.to_write = to_write = List(_COMMAND, _MOST)
        taken, has_data = Signal(), Signal()
        m.d.comb += [
            has_data.eq((self.command.x_size != 0) & (self.command.y_size != 0)),
            taken.eq(storer.command.valid & storer.command.ready),
            commands.put.eq(taken),
            commands.item.eq(has_data),
            to_write.put.eq(taken & has_data),
            to_write.item.eq(self.command),
        ]
        self._drive(m)
        refused = Signal()
        beats = self._check_beats(m, to_write, refused)
        bursts, complete = self._check_bursts(m, beats)
        outcomes = self._answer(m, complete, refused)

        done, error, failed = storer.done, storer.error, Signal()
        m.d.comb += [
            commands.take.eq(done),
            outcomes.take.eq(done & commands.items[0]),
            Assert(~done | ((commands.count != 0) & ~failed)),
            Assert(~outcomes.take | (outcomes.count != 0)),
            Assert(~done | (error == (commands.items[0] & outcomes.items[0]))),
            Assert(~storer.idle | failed | (commands.count == 0)),
            Assert(~storer.drained | ((bursts.count == 0) & (beats.count == 0))),
        ]
        with m.If(done & error):
            m.d.sync += failed.eq(1)
        late = Signal(3)
        with m.If((failed | storer.stop) & bursts.put):
            m.d.sync += late.eq(late + 1)
        m.d.comb += Assert(late <= _LATE_BURSTS)

        # A command of several beats is done, or fails.
        several = Signal()
        with m.If((bursts.count != 0) & (bursts.items[0].length != 0)):
            m.d.sync += several.eq(1)
        m.d.comb += Cover(done & (error == self._faults) & several)
        return m

    def _drive(self, m: Module) -> None:
        storer, command = self._storer, self.command
        payload, port = storer.command.payload, storer.scratchpad
        stopped, given = Signal(), Signal(range(_COMMANDS + 1))
        m.d.sync += stopped.eq(self.stop)
        with m.If(storer.command.valid & storer.command.ready):
            m.d.sync += given.eq(given + 1)
        m.d.comb += [
            storer.stop.eq(self.stop & self._faults),
            Assume(self.stop | ~stopped),
            storer.command.valid.eq(self.valid & (given != _COMMANDS)),
            payload.memory.eq(isa.Memory.OUT),
            payload.sram_base.eq(command.sram),
            payload.first.eq(command.sram),
            payload.dram_base.eq(command.dram),
            payload.x_size.eq(command.x_size),
            payload.y_size.eq(command.y_size),
            payload.x_stride.eq(command.x_stride),
            payload.elements.eq(command.x_size * command.y_size),
            payload.has_data.eq(payload.elements != 0),
            storer.write.request.ready.eq(self.burst_ready),
            storer.write.beat.ready.eq(self.beat_ready),
        ]
        assume_stable(m, storer.command, "command")
        assert_stable(m, storer.write.request, "burst")
        assert_stable(m, storer.write.beat, "beat")
        # Each word of an element holds the element's number and the word's position in it.
        contents = Signal.like(Value.cast(port.data))
        bits = 8 << self._log_bus
        with m.If(port.enable):
            for place, element in enumerate(port.data):
                size = min(bits, len(element))
                for word in range(len(element) // size):
                    part = contents.word_select(place, len(element)).word_select(word, size)
                    m.d.sync += part.eq(Cat((port.index + place)[:5], word))
        m.d.comb += Value.cast(port.data).eq(contents)

    def _check_beats(self, m: Module, to_write: List, refused: Signal) -> List:
        """Compare each beat with the walk; return the beats that are not yet assigned to a
        burst."""
        beat, kind = self._storer.write.beat, self._kind
        command = data.View(_COMMAND, Value.cast(to_write.items[0]))
        row, column, part = Signal(2), Signal(4), Signal(range(kind.beats))
        place, first, left, count = Signal(7), Signal(range(kind.elements)), Signal(4), Signal(4)
        # Rows without a gap are joined.
        joined, row_size, rows = command.x_stride == command.x_size, Signal(4), Signal(2)
        row_ends, final, taken = Signal(), Signal(), Signal()
        room = kind.elements - first
        m.d.comb += [
            row_size.eq(Mux(joined, command.x_size * command.y_size, command.x_size)),
            rows.eq(Mux(joined, 1, command.y_size)),
            place.eq(command.dram + row * command.x_stride + column),
            first.eq(place),
            left.eq(row_size - column),
            count.eq(Mux(left < room, left, room)),
            row_ends.eq((column + count == row_size) & (part == kind.beats - 1)),
            final.eq(row_ends & (row + 1 == rows)),
            taken.eq(beat.valid & beat.ready),
            to_write.take.eq(taken & final),
            Assert(~beat.valid | (to_write.count != 0)),
        ]
        with m.If(taken):
            m.d.sync += part.eq(Mux(part == kind.beats - 1, 0, part + 1))
            with m.If(row_ends):
                m.d.sync += [row.eq(Mux(final, 0, row + 1)), column.eq(0)]
            with m.Elif(part == kind.beats - 1):
                m.d.sync += column.eq(column + count)

        bits = (8 << self._log_bus) // kind.elements
        strobe = Signal(len(beat.payload.strobe))
        for lane in range(kind.elements):
            here = (first <= lane) & (lane - first < count)
            number = command.sram + row * row_size + column + lane - first
            found = beat.payload.data.word_select(lane, bits)
            m.d.comb += strobe.word_select(lane, bits // 8).eq(here.replicate(bits // 8))
            m.d.comb += Assert(
                ~beat.valid | (found == 0) | (beat.payload.strobe.word_select(lane, bits // 8) != 0)
            )
            if not self._faults:
                m.d.comb += Assert(~beat.valid | ~here | (found == Cat(number[:5], part)))
        silent = beat.payload.strobe == 0
        late = Signal(3)
        with m.If(refused & taken & ~silent):
            m.d.sync += late.eq(late + 1)
        if self._faults:
            m.d.comb += Assert(late <= _LATE_WORDS)
        else:
            m.d.comb += Assert(~beat.valid | (beat.payload.strobe == strobe))
        m.submodules.beats = beats = List(_BEAT, _MOST)
        log_element = (kind.element_bytes - 1).bit_length()
        address = (place << log_element) + (part << self._log_bus)
        m.d.comb += [
            beats.put.eq(taken),
            beats.item.word.eq(address >> self._log_bus),
            beats.item.last.eq(beat.payload.last),
            beats.item.final.eq(final),
        ]
        return beats

    def _check_bursts(self, m: Module, beats: List) -> tuple[List, Signal]:
        """Compare bursts and beats. Return the bursts that lack beats, and, in the cycle in which
        the last beat of a burst is found, 2, or 3 if the burst ends its command.
        """
        request = self._storer.write.request
        m.submodules.bursts = bursts = List(_BURST, _MOST)
        burst = data.View(_BURST, Value.cast(bursts.items[0]))
        beat = data.View(_BEAT, Value.cast(beats.items[0]))
        sent, complete, found = Signal(8), Signal(2), Signal()
        m.d.comb += [
            bursts.put.eq(request.valid & request.ready),
            bursts.item.word.eq(request.payload.address >> self._log_bus),
            bursts.item.length.eq(request.payload.length),
            found.eq((bursts.count != 0) & (beats.count != 0)),
            Assert(~found | (beat.last == (sent == burst.length))),
            Assert(~found | ~beat.final | beat.last),
            beats.take.eq(found),
            bursts.take.eq(found & beat.last),
            complete.eq(Cat(beat.final, bursts.take)),
        ]
        if not self._faults:
            m.d.comb += Assert(~found | (beat.word == burst.word + sent))
        with m.If(found):
            m.d.sync += sent.eq(Mux(beat.last, 0, sent + 1))
        return bursts, complete

    def _answer(self, m: Module, complete: Signal, refused: Signal) -> List:
        """Let memory answer complete bursts. Return, per command, whether a burst was answered with
        an error; the first error is the last outcome.
        """
        response = self._storer.write.response
        m.submodules.unanswered = unanswered = List(1, _MOST)
        m.submodules.outcomes = outcomes = List(1, _MOST)
        answered = response.valid & response.ready
        failed, error = Signal(), self.error & self._faults
        m.d.comb += [
            unanswered.put.eq(complete[1]),
            unanswered.item.eq(complete[0]),
            unanswered.take.eq(answered),
            response.valid.eq(self.answers & (unanswered.count != 0)),
            response.payload.error.eq(error),
            outcomes.put.eq(answered & ~failed & (error | unanswered.items[0])),
            outcomes.item.eq(error),
        ]
        assume_stable(m, response, "response")
        with m.If(answered & error):
            m.d.sync += failed.eq(1)
        with m.If(response.valid & error):
            m.d.sync += refused.eq(1)
        return outcomes


# Planted bugs for two separate proofs, since each takes long: beats and bursts, errors and stops.
_OF_BEATS = (
    (
        "announced.o.ready.eq(reads & (sent == announced.o.payload.length))",
        "announced.o.ready.eq(reads & (sent == 0))",
    ),
    ("strobe.eq(beats.mask)", "strobe.eq(~0)"),
    ("bit.replicate(8) for bit in written", "(bit | 1).replicate(8) for bit in written"),
    ("(~packs | buffered.i.ready)", "1"),
    ("unanswered.o.payload.last | response.payload.error", "1"),
    ("command.rows.eq(command.rows - 1)", "command.rows.eq(command.rows)"),
)
_OF_FAULTS = (
    ("with m.If(refused):", "with m.If(0):"),
    ("unanswered.o.payload.last | response.payload.error", "unanswered.o.payload.last"),
    ("                & ~failed\n                & (\n", "                & (\n"),
    ("& unanswered.i.ready & ~self.stop", "& unanswered.i.ready"),
)
_WIDE = replace(PRESETS["tiny"], log_block_out=4, log_acc_buff_size=13)


PROOFS = tuple(
    Proof(
        name=name,
        modules=(rows, bursts, beats, transfer, storer),
        specify=partial(StoreProperty, config=config, faults=faults),
        mode="bmc",
        depth=12 if faults else 10,
        bugs=bugs,
        smaller=(
            narrow_addresses(_ADDRESS_WIDTH),
            ("bus_bytes, BURST_BYTES", f"bus_bytes, {_PAGE}"),
            ("8}), BURSTS_IN_FLIGHT", f"8}}), {_IN_FLIGHT}"),
            ("1}), BURSTS_IN_FLIGHT", f"1}}), {_IN_FLIGHT}"),
            ("TRANSFERS_AHEAD = 8", f"TRANSFERS_AHEAD = {_IN_FLIGHT}"),
        ),
    )
    for name, config, faults, bugs in (
        ("stores of several elements to a beat", PRESETS["tiny"], False, _OF_BEATS),
        (
            "stores of several beats to an element",
            _WIDE,
            False,
            (("lane.eq(beats.lane)", "lane.eq(0)"),),
        ),
        ("stores with errors and stops", PRESETS["tiny"], True, _OF_FAULTS),
    )
)
