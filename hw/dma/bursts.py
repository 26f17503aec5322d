"""Burst walker: cuts the rows of a transfer into bursts."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from amaranth_vta.hw.bus.axi import BurstRequest
from amaranth_vta.hw.timing import BURST_BEATS, BURST_BYTES

from .rows import Rows


class BurstWalker(wiring.Component):
    """Cuts rows into bursts; addresses are computed by addition only.

    Timing: one burst per cycle, also across rows and, if the last row of a command has at least two
    bursts, across commands; the first burst of a command appears two cycles after the command is
    accepted::

        command  a       b
        request          a0  a1  b0

    Ports
    -----
    command : of `Rows.bursts`
    request : the bursts
    last : the burst on ``request`` is the last one of its command
    stop : no burst follows the one being offered, and no command is accepted
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
        log_bus = exact_log2(self._rows.bus_bytes)
        # Bursts end where their address is a multiple of this.
        log_chunk = exact_log2(min(BURST_BEATS * self._rows.bus_bytes, BURST_BYTES))

        # The next row, not being cut yet.
        row_valid, row = Signal(), Signal(self._rows.bursts())
        # The row being cut: its position in the chunk, the number of later chunks, and its end
        # within the last of them.
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
            # Independent of ``request.ready``, which arrives late in the cycle, since the path
            # through instruction issue is long.
            self.command.ready.eq(~row_valid & ~self.stop),
            self.request.valid.eq(cutting),
            self.request.payload.address.eq((chunk << log_chunk) | (first << log_bus)),
            self.last.eq(last_chunk & last_row),
            self.idle.eq(~row_valid & ~cutting),
            ends_at.eq(row.address[:log_chunk] + row.last_byte),
        ]
        # A burst up to the end of its chunk has ~first + 1 beats; its ``length``, one less, equals
        # the maximum minus ``first``.
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
        # Without ``command.valid``, which arrives late in the cycle.
        with m.If(~row_valid):
            m.d.sync += row.eq(self.command.payload)
        with m.If(self.stop):
            m.d.sync += row_valid.eq(0)
        with m.Elif(self.command.valid & self.command.ready):
            m.d.sync += row_valid.eq(1)
        return m
