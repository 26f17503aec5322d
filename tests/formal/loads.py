"""A loader does nothing after its first error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.dma import beats, bursts, loader, padding, rows, transfer

from .lists import List, assert_stable, assume_stable
from .proving import Proof, narrow_addresses

# Scaled down from 4096-byte pages, 48 address bits and 8 transfers.
_PAGE, _ADDRESS_WIDTH, _AHEAD = 32, 10, 3
_MEMORIES = (isa.Memory.INP, isa.Memory.WGT)
_COMMANDS, _MOST = 3, 8
_KIND = ("weights", "packed")
# Up to three rows of up to three elements, with padding on every side.
_COMMAND = data.StructLayout(
    {
        "weights": 1,
        "packed": 1,
        "dram_base": 3,
        "x_size": 2,
        "y_size": 2,
        "x_stride": 2,
        "x_pad_0": 1,
        "x_pad_1": 1,
        "y_pad_0": 1,
        "y_pad_1": 1,
    }
)


class LoadFaultProperty(wiring.Component):
    """Up to three LOADs of inputs and weights, of 8 or 4 bits, with any rows and padding, arrive in
    any cycle; memory accepts bursts, answers, and fails in any cycle.

    The loader completes what it has accepted, and fails if and only if memory did. After a failure
    it completes nothing, writes nothing, makes no new requests, and drains arriving beats. When it
    is idle no burst is in flight, and without an error no command is left.
    """

    def __init__(self, *modules: Any) -> None:
        config = replace(PRESETS["tiny"], wgt_4bit=1)
        self._loader = modules[-1].Loader(config, _MEMORIES)
        super().__init__(
            {
                "valid": In(1),
                "command": In(_COMMAND),
                "burst_ready": In(1),
                "answers": In(1),
                "error": In(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.loader = loader = self._loader
        commands, given, refused, failed = Signal(3), Signal(3), Signal(), Signal()
        taken = loader.command.valid & loader.command.ready
        m.d.sync += [
            given.eq(given + taken),
            commands.eq(commands + taken - loader.done),
            refused.eq(refused | self._answer(m)),
            failed.eq(failed | (loader.done & loader.error)),
        ]
        self._give_commands(m, given)
        request, waited = loader.read.request, Signal()
        m.d.sync += waited.eq(request.valid & ~request.ready)
        m.d.comb += [
            Assert(~loader.done | (commands != 0)),
            Assert(~(loader.done & loader.error) | refused),
            Assert(~loader.idle | failed | (commands == 0)),
            Assert(~loader.idle | (refused == failed)),
            Assert(~failed | ~loader.done),
            Assert(~failed | (loader.inp.enable == 0)),
            Assert(~failed | (loader.wgt.enable == 0)),
            Assert(~failed | ~request.valid | waited),
            Assert(~failed | ~loader.command.ready),
            Assert(~failed | loader.read.beat.ready),
        ]
        written = Signal()
        with m.If(loader.wgt.enable != 0):
            m.d.sync += written.eq(1)
        m.d.comb += Cover(written & failed & loader.idle & (commands == 2))
        return m

    def _give_commands(self, m: Module, given: Signal) -> None:
        command, payload = self.command, self._loader.command.payload
        weights = Mux(command.packed, isa.Memory.WGT_4BIT, isa.Memory.WGT)
        m.d.comb += [
            self._loader.command.valid.eq(self.valid & (given != _COMMANDS)),
            payload.memory.eq(Mux(command.weights, weights, isa.Memory.INP)),
            payload.elements.eq(command.x_size * command.y_size),
            payload.has_data.eq(payload.elements != 0),
            *(payload[name].eq(command[name]) for name, _ in _COMMAND if name not in _KIND),
        ]
        assume_stable(m, self._loader.command, "command")

    def _answer(self, m: Module) -> Signal:
        """Answer bursts in order; return whether a beat with an error is accepted."""
        read = self._loader.read
        m.submodules.bursts = bursts = List(8, _MOST)
        sent, answered, refused = Signal(8), Signal(), Signal()
        beat = read.beat
        m.d.comb += [
            read.request.ready.eq(self.burst_ready),
            bursts.put.eq(read.request.valid & read.request.ready),
            bursts.item.eq(read.request.payload.length),
            beat.valid.eq(self.answers & (bursts.count != 0)),
            beat.payload.error.eq(self.error),
            beat.payload.last.eq(sent == bursts.items[0]),
            answered.eq(beat.valid & beat.ready),
            refused.eq(answered & self.error),
            bursts.take.eq(answered & beat.payload.last),
            Assume(bursts.count < _MOST),
            Assert(~self._loader.idle | (bursts.count == 0)),
        ]
        assume_stable(m, beat, "beat")
        assert_stable(m, read.request, "request")
        with m.If(answered):
            m.d.sync += sent.eq(Mux(beat.payload.last, 0, sent + 1))
        return refused


PROOFS = (
    Proof(
        name="loads after an error",
        modules=(rows, bursts, beats, padding, transfer, loader),
        specify=LoadFaultProperty,
        mode="bmc",
        depth=14,
        bugs=(
            ("bursts.stop.eq(failed)", "bursts.stop.eq(0)"),
            ("padding.write & free & ~put & ~failed", "padding.write & free & ~put"),
            ("m.d.sync += failed.eq(1)", "m.d.sync += failed.eq(0)"),
            ("write.done.eq(ends | fail)", "write.done.eq(ends)"),
            ("(in_flight == 0) & ~write.valid", "~write.valid"),
            ("bursts.command.ready | ~has_data) & ~failed", "bursts.command.ready | ~has_data)"),
        ),
        smaller=(
            narrow_addresses(_ADDRESS_WIDTH),
            ("bus_bytes, BURST_BYTES", f"bus_bytes, {_PAGE}"),
            ("TRANSFERS_AHEAD = 8", f"TRANSFERS_AHEAD = {_AHEAD}"),
        ),
    ),
)
