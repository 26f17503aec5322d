"""Pins of an SDRAM with their I/O registers."""

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import io, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.boards.clock import QUARTER

from .chip import WORD_BITS, WORD_BYTES, SdramChip, SdramCommand


class SdramSignature(wiring.Signature):
    """An SDRAM as its controller sees it: all pins except the clock and constant ones.

    ``dqm`` is 1 for each byte that is not written.
    """

    def __init__(self, chip: SdramChip) -> None:
        self.chip = chip
        super().__init__(
            {
                "command": Out(SdramCommand),
                "ba": Out(chip.bank_bits),
                "a": Out(chip.row_bits),
                "dqm": Out(WORD_BYTES),
                "dq_o": Out(WORD_BITS),
                "dq_oe": Out(1),
                "dq_i": In(WORD_BITS),
            }
        )


class SdramPins(wiring.Component):
    """Registers in the I/O cells.

    The chip's clock, in the domain `QUARTER`, lags the I/O clock by a quarter cycle: outputs are
    stable a quarter cycle before the chip samples them and three quarters after, and the chip's
    outputs are stable at the next I/O edge.

    Timing: outputs appear one cycle after the controller's, and ``dq_i`` is the pins' value at the
    beginning of the cycle.

    Parameters
    ----------
    ports : of the platform's resource ``sdram``
    """

    def __init__(self, chip: SdramChip, ports: Any) -> None:
        self._ports = ports
        super().__init__({"bus": In(SdramSignature(chip))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        bus = self.bus
        ras, cas, we = bus.command.as_value()
        outputs = {
            "clk_en": 1,
            "cs": 1,
            "ras": ras,
            "cas": cas,
            "we": we,
            "ba": bus.ba,
            "a": bus.a,
            "dqm": bus.dqm,
        }
        for name, value in outputs.items():
            m.submodules[name] = cell = io.FFBuffer("o", getattr(self._ports, name))
            m.d.comb += cell.o.eq(value)
        m.submodules.dq = dq = io.FFBuffer("io", self._ports.dq)
        m.d.comb += [dq.o.eq(bus.dq_o), dq.oe.eq(bus.dq_oe), bus.dq_i.eq(dq.i)]
        m.submodules.clk = clock = io.DDRBuffer("o", self._ports.clk, o_domain=QUARTER)
        m.d.comb += Cat(clock.o[0], clock.o[1]).eq(0b01)
        return m
