"""The fetch module: prefetches the program and dispatches each instruction to its module."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from . import isa
from .bus.axi import BurstRequest, ReadSignature
from .config import Config
from .counters.activity import FetchActivity
from .counters.events import Events
from .interfaces import (
    ADDRESS_WIDTH,
    INDEX_WIDTH,
    FaultPort,
    QueueEntry,
    address_width,
    index_width,
    instruction_layout,
    is_for_load,
)
from .microarchitecture import Microarchitecture, Storage
from .queues.queue import Queue
from .timing import FETCH_BURST_BYTES


class Fetch(wiring.Component):
    """Reads instructions in stream order, in bursts of up to 16, and buffers two bursts.

    A burst is requested only if the buffer has room for all of it, so its beats never stall. An
    instruction whose queue is full stalls all later ones. An error in the program, or in reading
    it, takes effect when its instruction is reached: fetch then stops, dispatches nothing more, and
    drains the beats in flight.

    Timing: the first request is made in the third cycle after ``start``. An instruction is
    dispatched at the earliest in the cycle after its last beat arrived, then one per cycle while
    instructions are available.

    Ports
    -----
    start : for one cycle; ``insn_addr`` and ``insn_count`` are stable from then on
    insn_addr : byte address of the program
    insn_count : number of its instructions
    read : the memory
    load, compute, store : the queues of the modules
    fault : ``bad_stream`` (also for an empty program, or an address that is not a multiple of
        16, at index 0) or ``bus_error``
    waiting : an instruction waits for room in its queue, and no read is in flight
    quiet : not started, everything dispatched, or stopped by a fault; no read is in flight
    accessing : reads are in flight
    index : of the next instruction to be dispatched
    activity : of `FetchActivity`
    """

    def __init__(self, config: Config, choices: Microarchitecture | None = None) -> None:
        self._config = config
        self._choices = choices or Microarchitecture.of(config)
        self._address_width, self._index_width = address_width(config), index_width(config)
        entry = stream.Signature(QueueEntry)
        super().__init__(
            {
                "start": In(1),
                "insn_addr": In(ADDRESS_WIDTH),
                "insn_count": In(INDEX_WIDTH),
                "read": Out(ReadSignature(8 * config.bus_bytes)),
                "load": Out(entry),
                "compute": Out(entry),
                "store": Out(entry),
                "fault": Out(FaultPort()),
                "waiting": Out(1),
                "quiet": Out(1),
                "accessing": Out(1),
                "index": Out(INDEX_WIDTH),
                "activity": Out(FetchActivity()),
            }
        )

    @property
    def events(self) -> Events:
        """Increments of the counters of fetch."""
        return {
            "fetch_waits_for_modules": self.activity.blocked,
            "fetch_waits_for_memory": self.activity.starved,
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus_bytes = self._config.bus_bytes
        # A buffer word is one instruction, or one beat if a beat has several instructions.
        word_bytes = max(bus_bytes, isa.INSTRUCTION_BYTES)
        words = 2 * FETCH_BURST_BYTES // word_bytes
        word = data.StructLayout({"bits": unsigned(8 * word_bytes), "error": 1})
        in_block_ram = self._choices.fetch_buffer is Storage.BLOCK_RAM
        m.submodules.buffer = buffer = Queue(word, words, in_block_ram=in_block_ram)
        self._decisive = buffer.o.payload
        if in_block_ram:
            self._decisive = self._keep_in_luts(m, buffer, words)

        # Clamped: a stream longer than DRAM ends with a bus error at the end of DRAM.
        longest = (1 << self._index_width) - 1
        self._count = Signal(self._index_width)
        m.d.comb += self._count.eq(Mux(self.insn_count > longest, longest, self.insn_count))

        active, ask, freed = Signal(), Signal(), Signal()
        bad_start = (self.insn_count == 0) | (self.insn_addr[:4] != 0)
        planned, plan = self._plan(m, word_bytes, words, bad_start, ask)

        # Requests. Words requested and not yet dispatched never exceed the buffer.
        reserved = Signal(range(words + 1))
        request = Signal(BurstRequest)
        asking = Signal()
        m.d.comb += [
            ask.eq(
                active
                & planned
                # Not while a request is accepted, which is known late in the cycle; bursts are
                # long.
                & ~asking
                & (reserved + plan.further < words)
            ),
            self.read.request.valid.eq(asking),
            self.read.request.payload.eq(request),
        ]
        with m.If(self.read.request.ready):
            m.d.sync += asking.eq(0)
        with m.If(ask):
            m.d.sync += [
                asking.eq(1),
                request.address.eq(plan.address),
                request.length.eq((plan.further + 1) * (word_bytes // bus_bytes) - 1),
            ]
        # ``freed`` arrives late, so it only selects between two sums, which differ by a carry-in.
        # So ``added`` is the number of requested words less 1.
        added = plan.further | (~ask).replicate(len(plan.further))
        m.d.sync += reserved.eq(
            Mux(freed, reserved + added, (Cat(1, reserved) + Cat(1, added))[1:])
        )

        in_flight = self._receive(m, buffer, words)
        good, taken = self._dispatch(m, buffer, active, freed, bad_start)
        still = (in_flight == 0) & ~asking
        m.d.comb += [
            self.quiet.eq(~active & still),
            self.waiting.eq(good & ~taken & still),
            self.accessing.eq(~still),
            self.activity.index.eq(self.index),
            self.activity.hands_over.eq(taken),
            self.activity.blocked.eq(good & ~taken),
            self.activity.starved.eq(active & ~buffer.o.valid),
        ]
        return m

    def _plan(
        self, m: Module, word_bytes: int, words: int, bad_start: Value, ask: Signal
    ) -> tuple[Signal, Any]:
        """Plan the next burst: up to the end of its memory chunk or of the program. Returns whether
        it is planned, and the burst with its number of words after the first.
        """
        shift = (word_bytes // isa.INSTRUCTION_BYTES - 1).bit_length()
        per_burst = FETCH_BURST_BYTES // isa.INSTRUCTION_BYTES
        log_burst = (per_burst - 1).bit_length()
        place = self.insn_addr >> 4  # in instructions
        chunk = Signal(self._address_width - 4 - log_burst)
        slot, end_slot, last_slot = (
            Signal(range(per_burst), name=name) for name in ("slot", "end_slot", "last_slot")
        )
        plan = Signal(
            data.StructLayout({"address": self._address_width, "further": range(words + 1)})
        )
        planning, planned, last_chunk = Signal(), Signal(), Signal()
        # Position of the last instruction, counted from the start of the first chunk; and the
        # number of chunks after ``chunk``.
        last = Signal(self._index_width + 1)
        chunks_left = Signal(len(last) - log_burst)
        ends_here = Signal()
        few = log_burst + 1
        m.d.comb += [
            last.eq(place[:log_burst] + self._count - 1),
            # Whether the last instruction is in chunk 0, by a shorter adder than the sum above.
            ends_here.eq(
                (self._count >> few == 0) & (place[:log_burst] + self._count[:few] <= per_burst)
            ),
            last_slot.eq(Mux(last_chunk, end_slot, per_burst - 1)),
        ]
        with m.If(ask):
            m.d.sync += planned.eq(0)
        with m.If(planning & (~planned | ask)):
            m.d.sync += [
                planned.eq(1),
                plan.address.eq(
                    (chunk << (FETCH_BURST_BYTES - 1).bit_length())
                    | ((slot >> shift) << (word_bytes - 1).bit_length())
                ),
                plan.further.eq((last_slot >> shift) - (slot >> shift)),
                chunk.eq(chunk + 1),
                slot.eq(0),
                chunks_left.eq(chunks_left - 1),
                last_chunk.eq(chunks_left == 1),
                planning.eq(~last_chunk),
            ]
        with m.If(self.start):
            m.d.sync += [
                planning.eq(~bad_start),
                chunk.eq(place >> log_burst),
                slot.eq(place),
                end_slot.eq(last),
                chunks_left.eq(last >> log_burst),
                last_chunk.eq(ends_here),
            ]
        return planned, plan

    def _keep_in_luts(self, m: Module, buffer: Queue, words: int) -> Any:
        """The word at the output of the buffer. The bits that select the module come from a queue
        in LUTs, since the output of block RAM is late in the cycle.
        """
        fields = instruction_layout(self._config, isa.Opcode.LOAD)
        width = max(fields[name].offset + fields[name].width for name in ("opcode", "memory"))
        per_word = len(buffer.i.payload.bits) // isa.INSTRUCTION_WIDTH
        first = data.StructLayout({"bits": data.ArrayLayout(width, per_word), "error": 1})
        m.submodules.decisive = queue = Queue(first, words)
        word = Signal.like(buffer.o.payload)
        m.d.comb += [
            queue.i.valid.eq(buffer.i.valid),
            queue.i.payload.error.eq(buffer.i.payload.error),
            queue.o.ready.eq(buffer.o.ready),
            word.eq(buffer.o.payload),
            word.error.eq(queue.o.payload.error),
        ]
        for part in range(per_word):
            begin = part * isa.INSTRUCTION_WIDTH
            bits = slice(begin, begin + width)
            m.d.comb += [
                queue.i.payload.bits[part].eq(buffer.i.payload.bits[bits]),
                word.bits[bits].eq(queue.o.payload.bits[part]),
            ]
        return word

    def _receive(self, m: Module, buffer: Queue, words: int) -> Signal:
        """Fill the buffer; returns the number of bursts in flight."""
        beat = self.read.beat
        m.d.comb += beat.ready.eq(1)
        if len(buffer.i.payload.bits) == len(beat.payload.data):
            m.d.comb += [
                buffer.i.valid.eq(beat.valid),
                buffer.i.payload.bits.eq(beat.payload.data),
                buffer.i.payload.error.eq(beat.payload.error),
            ]
        else:
            half = Signal.like(beat.payload.data)
            half_held, half_error = Signal(), Signal()
            m.d.comb += [
                buffer.i.valid.eq(beat.valid & half_held),
                buffer.i.payload.bits.eq(Cat(half, beat.payload.data)),
                buffer.i.payload.error.eq(beat.payload.error | half_error),
            ]
            with m.If(beat.valid):
                m.d.sync += [
                    half.eq(beat.payload.data),
                    half_error.eq(beat.payload.error),
                    half_held.eq(~half_held),
                ]
        in_flight = Signal(range(2 * words + 1))
        m.d.sync += in_flight.eq(
            in_flight
            + (self.read.request.valid & self.read.request.ready)
            - (beat.valid & beat.payload.last)
        )
        return in_flight

    def _dispatch(
        self, m: Module, buffer: Queue, active: Signal, freed: Signal, bad_start: Value
    ) -> tuple[Signal, Signal]:
        """Whether there is an error-free instruction, and whether its module accepts it."""
        per_word = len(buffer.o.payload.bits) // isa.INSTRUCTION_WIDTH
        index, last_but_one = Signal(self._index_width), Signal(self._index_width)
        part = Signal(range(per_word))
        entry = Signal(QueueEntry)
        m.d.comb += [
            entry.bits.eq(self._decisive.bits.word_select(part, isa.INSTRUCTION_WIDTH)),
            entry.index.eq(index),
            self.index.eq(index),
            self.fault.index.eq(index),
        ]
        fields = data.View(instruction_layout(self._config, isa.Opcode.LOAD), entry.bits)
        is_last, misplaced, good, taken = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            misplaced.eq(is_last != (fields.opcode == isa.Opcode.FINISH)),
            good.eq(active & buffer.o.valid & ~self._decisive.error & ~misplaced),
        ]
        self._route(m, entry, good, taken)
        m.d.comb += [
            freed.eq(taken & ((part == per_word - 1) | is_last)),
            buffer.o.ready.eq(freed),
        ]
        with m.If(taken):
            m.d.sync += [
                index.eq(index + 1),
                is_last.eq(index == last_but_one),
                part.eq(part + 1),
            ]
            with m.If(is_last):
                m.d.sync += active.eq(0)
        with m.If(active & buffer.o.valid & ~good):
            m.d.sync += [
                active.eq(0),
                self.fault.valid.eq(1),
                self.fault.cause.eq(
                    Mux(
                        self._decisive.error,
                        int(isa.Cause.BUS_ERROR),
                        int(isa.Cause.BAD_STREAM),
                    )
                ),
            ]
        with m.If(self.start):
            m.d.sync += [
                active.eq(~bad_start),
                part.eq(self.insn_addr >> 4),
                index.eq(0),
                last_but_one.eq(self._count - 2),
                is_last.eq(self._count == 1),
                self.fault.valid.eq(bad_start),
                self.fault.cause.eq(isa.Cause.BAD_STREAM),
            ]
        return good, taken

    def _route(self, m: Module, entry: Any, good: Signal, taken: Signal) -> None:
        """Offer the instruction to its module; ``taken`` is high when the module accepts it."""
        fields = data.View(instruction_layout(self._config, isa.Opcode.LOAD), entry.bits)
        is_load = fields.opcode == isa.Opcode.LOAD
        with m.If(fields.opcode == isa.Opcode.STORE):
            m.d.comb += [self.store.valid.eq(good), taken.eq(good & self.store.ready)]
        with m.Elif(is_load & is_for_load(self._config, fields.memory)):
            m.d.comb += [self.load.valid.eq(good), taken.eq(good & self.load.ready)]
        with m.Else():
            m.d.comb += [self.compute.valid.eq(good), taken.eq(good & self.compute.ready)]
        for target in (self.load, self.compute, self.store):
            m.d.comb += target.payload.eq(entry)
