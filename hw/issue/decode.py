"""Instruction decoding between a module's queue and its issue logic."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import CheckedEntry, instruction_layout
from amaranth_vta.hw.microarchitecture import Microarchitecture


class DecodedEntry(data.StructLayout):
    """An instruction with its unit (1 to ``units``, or 0 for none), whether it is illegal, and
    whether it transfers data like a LOAD or STORE.
    """

    def __init__(self, units: int) -> None:
        super().__init__(
            {"checked": CheckedEntry, "unit": range(units + 1), "illegal": 1, "has_data": 1}
        )


class Decoder(wiring.Component):
    """Holds the next instruction of a module together with its decoded properties.

    Timing: an instruction appears at ``decoded``, registered, in the cycle after it is accepted;
    throughput is one per cycle. Without `Microarchitecture.decode_register` it appears in the same
    cycle.

    Ports
    -----
    insn, decoded : instructions
    unit, illegal : properties of the instruction at ``insn``, decoded by the module
    """

    def __init__(
        self, config: Config, units: int, choices: Microarchitecture | None = None
    ) -> None:
        self._registered = (choices or Microarchitecture.of(config)).decode_register
        self._layout = instruction_layout(config, isa.Opcode.LOAD)
        self._entry = DecodedEntry(units)
        super().__init__(
            {
                "insn": In(stream.Signature(CheckedEntry)),
                "unit": In(range(units + 1)),
                "illegal": In(1),
                "decoded": Out(stream.Signature(self._entry)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        found = Signal(self._entry)
        fields = data.View(self._layout, self.insn.payload.entry.bits)
        m.d.comb += [
            found.has_data.eq((fields.x_size != 0) & (fields.y_size != 0)),
            found.checked.eq(self.insn.payload),
            found.unit.eq(self.unit),
            found.illegal.eq(self.illegal),
        ]
        if not self._registered:
            m.d.comb += [
                self.insn.ready.eq(self.decoded.ready),
                self.decoded.valid.eq(self.insn.valid),
                self.decoded.payload.eq(found),
            ]
            return m
        entry = Signal(self._entry, reset_less=True)
        m.d.comb += [
            self.insn.ready.eq(~self.decoded.valid | self.decoded.ready),
            self.decoded.payload.eq(entry),
        ]
        with m.If(self.insn.ready):
            m.d.sync += [self.decoded.valid.eq(self.insn.valid), entry.eq(found)]
        return m
