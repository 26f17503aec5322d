"""From accumulators to memory: strided rows of their low bits."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw import isa
from amaranth_vta.hw.bus.axi import (
    BurstRequest,
    WriteBeat,
    WriteResponse,
    WriteSignature,
)
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.buffer import geometry
from amaranth_vta.hw.fabric.stream import Queue
from amaranth_vta.hw.fabric.structures import ADDRESS_WIDTH
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

from .rows import BeatWalker, BurstWalker
from .transfer import TRANSFERS_AHEAD, describe_rows, moved_elements, rows_of, transfer_layout


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
        self._rows = rows_of(config, [isa.Memory.OUT])
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
        m.submodules.turns = turns = Queue(rows.beats(), TRANSFERS_AHEAD)
        # Of each transfer, whether it has data at all; of each burst, how long it is, and
        # whether it is the last one of its transfer.
        m.submodules.order = order = Queue(data.StructLayout({"has_data": 1}), TRANSFERS_AHEAD)
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
        describe_rows(m, rows, command, [self.base], bursts.command.payload, turns.i.payload)

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
