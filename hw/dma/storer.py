"""Storer: copies strided rows of the accumulators' low bits to memory."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw import isa
from amaranth_vta.hw.bus.axi import (
    BurstRequest,
    WriteBeat,
    WriteResponse,
    WriteSignature,
)
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import ADDRESS_WIDTH
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.hw.queues.queue import Queue
from amaranth_vta.hw.scratchpad import geometry
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

from .beats import BeatWalker
from .bursts import BurstWalker
from .transfer import TRANSFERS_AHEAD, DmaSignature, describe_rows, rows_of


class Storer(wiring.Component):
    """Writes rows of the accumulators' low bits to memory, transfer after transfer.

    Bursts are announced ahead of their data, also for later transfers; at most `BURSTS_IN_FLIGHT`
    have no response. Transfers are written without a bubble as long as memory accepts their beats.

    Timing: an element is read at the earliest three cycles after its command is accepted; its first
    beat is offered two cycles later::

        command      c
        scratchpad               i
        write.beat                       b0  b1

    Ports
    -----
    (all of `DmaSignature`)
    base : byte address of element 0 of OUT; stable while the storer is not idle
    scratchpad : read port
    write : the memory
    stop : no more bursts are announced; announced ones are still written
    drained : all announced bursts are written and answered

    A transfer is done when memory has confirmed all of it. After an error nothing more is accepted
    or announced. Beats of announced bursts are still sent, but without strobes, so that memory is
    unchanged; at most two registered words are written after the response. ``moved`` counts
    elements when they are read from the scratchpad.
    """

    def __init__(self, config: Config, choices: Microarchitecture | None = None) -> None:
        self._registered = (choices or Microarchitecture.of(config)).in_flight_register
        self._rows = rows_of(config, [isa.Memory.OUT], choices)
        self._bus_bits = 8 * config.bus_bytes
        out = geometry(config, isa.Memory.OUT)
        super().__init__(
            {
                **DmaSignature(config, [isa.Memory.OUT]).members,
                "base": In(ADDRESS_WIDTH),
                "scratchpad": Out(out.read_port()),
                "write": Out(WriteSignature(self._bus_bits)),
                "stop": In(1),
                "drained": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.beats = beats = BeatWalker(self._rows)
        # The length of each announced burst; and, per unanswered burst, whether it is the last one
        # of its transfer.
        m.submodules.announced = announced = Queue(
            data.StructLayout({"length": 8}), BURSTS_IN_FLIGHT
        )
        m.submodules.unanswered = unanswered = Queue(
            data.StructLayout({"last": 1}), BURSTS_IN_FLIGHT, registered=self._registered
        )
        # No combinational path leads from a memory input to an output.
        m.submodules.requests = requests = Queue(BurstRequest, 2)
        m.submodules.buffered = buffered = Queue(WriteBeat(self._bus_bits), 2)
        m.submodules.responses = responses = Queue(WriteResponse, 2)
        connect(m, requests.o, flipped(self.write.request))
        connect(m, buffered.o, flipped(self.write.beat))
        connect(m, flipped(self.write.response), responses.i)

        failed = Signal()
        bursts, order = self._accept(m, beats, failed)
        self._announce(m, bursts, requests, announced, unanswered)
        packs = self._read(m, beats, announced, buffered)
        self._confirm(m, order, responses, unanswered, failed)
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
        m.d.comb += self.active.eq(self.command.valid | ~self.idle)
        return m

    def _accept(self, m: Module, beats: BeatWalker, failed: Signal) -> tuple[BurstWalker, Queue]:
        """Accept commands. Returns their burst walker, and a queue that says of each command
        whether it has data.
        """
        rows = self._rows
        m.submodules.bursts = bursts = BurstWalker(rows)
        m.submodules.turns = turns = Queue(rows.beats(), TRANSFERS_AHEAD)
        m.submodules.order = order = Queue(
            data.StructLayout({"has_data": 1}), TRANSFERS_AHEAD, registered=self._registered
        )
        connect(m, turns.o, beats.command)
        command = self.command.payload
        has_data, accept = command.has_data, Signal()
        m.d.comb += [
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
        describe_rows(m, rows, command, [self.base], bursts.command.payload, turns.i.payload)
        return bursts, order

    def _announce(
        self, m: Module, bursts: BurstWalker, requests: Queue, announced: Queue, unanswered: Queue
    ) -> None:
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

    def _read(self, m: Module, beats: BeatWalker, announced: Queue, buffered: Queue) -> Signal:
        """Read elements and pack them into beats in the next cycle; returns whether it does.

        The scratchpad's read port holds an element of several beats.
        """
        (kind,) = self._rows.kinds
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
        # Not registered: each cycle of delay would let one more word be written.
        refused = Signal()
        with m.If(self.write.response.valid & self.write.response.payload.error):
            m.d.sync += refused.eq(1)
        with m.If(refused):
            m.d.sync += strobe.eq(0)
        elements = Value.cast(self.scratchpad.data)
        written = Cat(bit.replicate(self._bus_bits // 8 // kind.elements) for bit in strobe)
        m.d.comb += [
            buffered.i.valid.eq(packs),
            # Bytes that are not written are zero: the bus shows no other contents of scratchpads.
            buffered.i.payload.data.eq(
                elements.word_select(lane, self._bus_bits)
                & Cat(bit.replicate(8) for bit in written)
            ),
            buffered.i.payload.strobe.eq(written),
            buffered.i.payload.last.eq(last),
        ]
        return packs

    def _confirm(
        self, m: Module, order: Queue, responses: Queue, unanswered: Queue, failed: Signal
    ) -> None:
        response = responses.o
        answer, completes = Signal(), Signal()
        m.d.comb += [
            answer.eq(response.valid & response.ready),
            # An older transfer without data completes first, in a separate cycle.
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
        m.d.comb += [
            self.done.eq(completes),
            self.error.eq(completes & answer & response.payload.error),
        ]
        with m.If(answer & response.payload.error):
            m.d.sync += failed.eq(1)
