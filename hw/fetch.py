"""The fetch module: reads the program ahead and hands each instruction to its module."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from . import isa
from .bus.axi import BurstRequest, ReadSignature
from .config import Config
from .fabric.activity import FetchActivity
from .fabric.stream import Queue
from .fabric.structures import ADDRESS_WIDTH, INDEX_WIDTH, FaultPort, QueueEntry, instruction_layout
from .timing import FETCH_BURST_BYTES


class Fetch(wiring.Component):
    """Reads instructions in bursts of up to 16, and as many again ahead, in stream order.

    A burst is asked for when there is room for all of it, so that its beats never wait. An
    instruction that cannot be handed over because its queue is full holds up all that follow.
    What is wrong with the program, or with reading it, counts when that instruction is reached:
    then fetch stops, hands over nothing more, and lets the beats under way come.

    Timing: the first request is made in the third cycle after ``start``. An instruction is
    handed over in the cycle after its last beat came, at the earliest, and one in every cycle as
    long as there are any.

    Ports
    -----
    start : for one cycle; ``insn_addr`` and ``insn_count`` are stable from then on
    insn_addr : byte address of the program
    insn_count : its instructions
    read : the memory
    load, compute, store : the queues of the modules
    fault : ``bad_stream`` (also for an empty program, or an address that is not a multiple of
        16, at index 0) or ``bus_error``
    waiting : an instruction waits for room in its queue, and nothing is under way
    quiet : not started, all handed over, or stopped by a fault; nothing is under way
    accessing : accesses to memory are under way
    index : of the next instruction to be handed over
    activity : what it is at
    """

    def __init__(self, config: Config) -> None:
        self._config = config
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

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus_bytes = self._config.bus_bytes
        # The buffer holds words of one instruction, or of a beat if it has several.
        word_bytes = max(bus_bytes, isa.INSTRUCTION_BYTES)
        per_word = word_bytes // isa.INSTRUCTION_BYTES
        per_burst = FETCH_BURST_BYTES // isa.INSTRUCTION_BYTES
        words = 2 * FETCH_BURST_BYTES // word_bytes
        word = data.StructLayout({"bits": unsigned(8 * word_bytes), "error": 1})
        m.submodules.buffer = buffer = Queue(word, words)

        active = Signal()
        bad_start = (self.insn_count == 0) | (self.insn_addr[:4] != 0)

        # Plan the bursts: up to the end of each chunk of memory, or of the program.
        shift = (per_word - 1).bit_length()
        log_burst = (per_burst - 1).bit_length()
        place = self.insn_addr >> 4  # in instructions
        last_place = Signal(ADDRESS_WIDTH - 4)
        chunk = Signal(ADDRESS_WIDTH - 4 - log_burst)
        slot, last_slot = Signal(range(per_burst)), Signal(range(per_burst))
        plan = Signal(data.StructLayout({"address": ADDRESS_WIDTH, "words": range(words + 1)}))
        planning, planned, last_chunk, ask = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            last_chunk.eq(chunk == last_place >> log_burst),
            last_slot.eq(Mux(last_chunk, last_place, per_burst - 1)),
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
                plan.words.eq((last_slot >> shift) - (slot >> shift) + 1),
                chunk.eq(chunk + 1),
                slot.eq(0),
                planning.eq(~last_chunk),
            ]

        # Ask. Words asked for and not yet handed over are never more than the buffer holds.
        reserved = Signal(range(words + 1))
        request = Signal(BurstRequest)
        asking, freed = Signal(), Signal()
        m.d.comb += [
            ask.eq(
                active
                & planned
                & (~asking | self.read.request.ready)
                & (reserved + plan.words <= words)
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
                request.length.eq(plan.words * (word_bytes // bus_bytes) - 1),
            ]
        m.d.sync += reserved.eq(reserved + Mux(ask, plan.words, 0) - freed)

        # Receive.
        beat = self.read.beat
        m.d.comb += beat.ready.eq(1)
        if bus_bytes == word_bytes:
            m.d.comb += [
                buffer.i.valid.eq(beat.valid),
                buffer.i.payload.bits.eq(beat.payload.data),
                buffer.i.payload.error.eq(beat.payload.error),
            ]
        else:
            half = Signal(8 * bus_bytes)
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
        under_way = Signal(range(2 * words + 1))
        m.d.sync += under_way.eq(
            under_way
            + (self.read.request.valid & self.read.request.ready)
            - (beat.valid & beat.payload.last)
        )

        # Hand over.
        index, last_index = Signal(INDEX_WIDTH), Signal(INDEX_WIDTH)
        part = Signal(range(per_word))
        entry = Signal(QueueEntry)
        m.d.comb += [
            entry.bits.eq(buffer.o.payload.bits.word_select(part, isa.INSTRUCTION_WIDTH)),
            entry.index.eq(index),
        ]
        fields = data.View(instruction_layout(self._config, isa.Opcode.LOAD), entry.bits)
        is_last, misplaced, good, taken = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            is_last.eq(index == last_index),
            misplaced.eq(is_last != (fields.opcode == isa.Opcode.FINISH)),
            good.eq(active & buffer.o.valid & ~buffer.o.payload.error & ~misplaced),
        ]
        to_load = [fields.memory == isa.Memory.INP, fields.memory == isa.Memory.WGT]
        if self._config.pad_value:
            to_load.append(fields.memory == isa.Padding.LOAD)
        with m.If(fields.opcode == isa.Opcode.STORE):
            target = self.store
            m.d.comb += [target.valid.eq(good), taken.eq(good & target.ready)]
        with m.Elif((fields.opcode == isa.Opcode.LOAD) & Cat(to_load).any()):
            target = self.load
            m.d.comb += [target.valid.eq(good), taken.eq(good & target.ready)]
        with m.Else():
            target = self.compute
            m.d.comb += [target.valid.eq(good), taken.eq(good & target.ready)]
        for target in (self.load, self.compute, self.store):
            m.d.comb += target.payload.eq(entry)
        m.d.comb += [
            freed.eq(taken & ((part == per_word - 1) | is_last)),
            buffer.o.ready.eq(freed),
        ]
        with m.If(taken):
            m.d.sync += [index.eq(index + 1), part.eq(part + 1)]
            with m.If(is_last):
                m.d.sync += active.eq(0)
        with m.If(active & buffer.o.valid & ~good):
            m.d.sync += [
                active.eq(0),
                self.fault.valid.eq(1),
                self.fault.index.eq(index),
                self.fault.cause.eq(
                    Mux(
                        buffer.o.payload.error,
                        int(isa.Cause.BUS_ERROR),
                        int(isa.Cause.BAD_STREAM),
                    )
                ),
            ]

        with m.If(self.start):
            m.d.sync += [
                active.eq(~bad_start),
                planning.eq(~bad_start),
                chunk.eq(place >> log_burst),
                slot.eq(place),
                last_place.eq(place + self.insn_count - 1),
                part.eq(place),
                index.eq(0),
                last_index.eq(self.insn_count - 1),
                self.fault.valid.eq(bad_start),
                self.fault.index.eq(0),
                self.fault.cause.eq(isa.Cause.BAD_STREAM),
            ]
        still = (under_way == 0) & ~asking
        m.d.comb += [
            self.quiet.eq(~active & still),
            self.waiting.eq(good & ~taken & still),
            self.accessing.eq(~still),
            self.index.eq(index),
            self.activity.index.eq(index),
            self.activity.hands_over.eq(taken),
            self.activity.blocked.eq(good & ~taken),
            self.activity.starved.eq(active & ~buffer.o.valid),
        ]
        return m
