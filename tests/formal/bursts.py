"""Rows are cut into legal AXI4 bursts that cover exactly the transfer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.dma import bursts, rows

from .lists import List, assert_stable, assume_stable
from .proving import Proof, narrow_addresses

# AXI4's limits are 4096 bytes and 256 beats, with addresses of 48 bits. Smaller limits give a row
# as many bursts, in a proof of seconds.
_PAGE = 64
_ADDRESS_WIDTH = 10
_MAX_ROWS = 3


class BurstProperty(wiring.Component):
    """Commands of one to three rows, with any address, stride and size. The bursts of a row begin
    with the word of its first byte, are contiguous, and end with the word of its last byte.

    No burst crosses a page or exceeds ``max_beats`` beats, and each except the last one of a row
    has maximum length. Offered bursts are stable until accepted. ``last`` marks the last burst of a
    command.
    """

    def __init__(self, rows: Any, bursts: Any, max_beats: int) -> None:
        config = PRESETS["tiny"]
        self._rows = rows.Rows(config, [rows.Kind.of(config, isa.Memory.UOP)])
        self._walker = bursts.BurstWalker(self._rows)
        self._bus_bytes, self._max_beats = config.bus_bytes, max_beats
        super().__init__({"valid": In(1), "command": In(self._rows.bursts()), "ready": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        layout = self._rows.bursts()
        m.submodules.walker = walker = self._walker
        m.submodules.commands = commands = List(layout, 3)
        request = walker.request
        m.d.comb += [
            walker.command.valid.eq(self.valid),
            walker.command.payload.eq(self.command),
            request.ready.eq(self.ready),
            Assume((self.command.rows != 0) & (self.command.rows <= _MAX_ROWS)),
            # Sums do not wrap around: bases use 47 of the 48 address bits.
            Assume((self.command.address[-2:] == 0) & (self.command.stride < 1 << 7)),
            Assume(self.command.last_byte < 3 * _PAGE),
            commands.put.eq(walker.command.valid & walker.command.ready),
            commands.item.eq(self.command),
            Assert(commands.count <= 2),
            Assert(~request.valid | (commands.count != 0)),
            Assert(walker.idle == (commands.count == 0)),
        ]
        assume_stable(m, walker.command, "command")
        assert_stable(m, request, "request")

        # State of the oldest command: first byte of its current row, number of rows before it, and
        # start of the next burst if the row has begun.
        command = data.View(layout, Value.cast(commands.items[0]))
        row, offset = Signal(range(_MAX_ROWS)), Signal.like(command.address)
        begun, place = Signal(), Signal.like(command.address)
        log_bus = (self._bus_bytes - 1).bit_length()
        first, last = Signal.like(place), Signal.like(place)
        begin, end = Signal.like(place), Signal.like(place)
        row_ends, taken = Signal(), Signal()
        m.d.comb += [
            first.eq(command.address + offset),
            last.eq(first + command.last_byte),
            begin.eq(request.payload.address),
            # Its last byte.
            end.eq(begin + ((request.payload.length + 1) << log_bus) - 1),
            row_ends.eq(end[log_bus:] == last[log_bus:]),
            taken.eq(request.valid & request.ready),
            commands.take.eq(taken & walker.last),
        ]
        with m.If(taken):
            m.d.sync += [begun.eq(~row_ends), place.eq(end + 1)]
            with m.If(walker.last):
                m.d.sync += [row.eq(0), offset.eq(0)]
            with m.Elif(row_ends):
                m.d.sync += [row.eq(row + 1), offset.eq(offset + command.stride)]
        with m.If(request.valid):
            m.d.comb += [
                Assert(begin[:log_bus] == 0),
                Assert(begin[log_bus:] == Mux(begun, place, first)[log_bus:]),
                Assert(end[log_bus:] <= last[log_bus:]),
                Assert(begin // _PAGE == end // _PAGE),
                Assert(request.payload.length < self._max_beats),
                Assert(
                    row_ends
                    | ((end + 1) % _PAGE == 0)
                    | ((end + 1) % (self._max_beats * self._bus_bytes) == 0)
                ),
                Assert(walker.last == (row_ends & (row == command.rows - 1))),
            ]
        many = Signal()
        with m.If(taken & begun & (row != 0)):
            m.d.sync += many.eq(1)
        m.d.comb += Cover(many & walker.idle)
        return m


_BUGS = (
    ("Mux(last_chunk, last, full) - first", "Mux(last_chunk, last, full)"),
    ("ends_at.eq(row.address[:log_chunk] + row.last_byte)", "ends_at.eq(row.last_byte)"),
    ("first.eq(0),", ""),
    ("log_chunk = exact_log2(min(", "log_chunk = 1 + exact_log2(min("),
    ("row.address.eq(row.address + row.stride)", "row.address.eq(row.address)"),
    ("last_row.eq(row.rows == 1)", "last_row.eq(row.rows <= 2)"),
    ("row_valid & (~cutting | (cut & last_chunk))", "row_valid & (~cutting | cut)"),
)

PROOFS = tuple(
    Proof(
        name=f"bursts of at most {max_beats} beats",
        modules=(rows, bursts),
        specify=lambda *modules, max_beats=max_beats: BurstProperty(*modules, max_beats),
        mode="bmc",
        depth=8,
        bugs=_BUGS,
        smaller=(
            narrow_addresses(_ADDRESS_WIDTH),
            ("BURST_BEATS * self", f"{max_beats} * self"),
            ("bus_bytes, BURST_BYTES", f"bus_bytes, {_PAGE}"),
        ),
    )
    # A burst is limited by its beats, or by the page.
    for max_beats in (4, 16)
)
