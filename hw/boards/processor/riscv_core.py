"""The RISC-V core, VexRiscv, with word accesses as on the rest of the board: `RiscvCore`.

Its Verilog comes from the package pythondata-cpu-vexriscv: the default variant, RV32IM with caches
of 4 KiB each for instructions and data. The data cache writes through, and holds nothing of the
upper half of the address space.
"""

from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.boards.link import HostAccessSignature
from amaranth_vta.hw.boards.protocol import FIRMWARE_BASE

_FILE = "VexRiscv.v"


def core_verilog() -> str:
    """Verilog of the module `RiscvCore` instantiates; raises `MissingExtra` without its package."""
    with explain_missing_extras():
        from pythondata_cpu_vexriscv import data_location
    return Path(data_location, _FILE).read_text(encoding="utf-8")


class RiscvCore(wiring.Component):
    """The processor, which starts at `FIRMWARE_BASE`.

    Timing: an access takes one cycle more than its target. ``rst`` is synchronous; the caches are
    cleared in the 128 cycles after it falls. An access in flight at a reset is abandoned: the
    response is ignored.

    Ports
    -----
    rst : holds the processor in reset
    interrupts : level-sensitive; masked by the CSR 0xBC0, and readable, masked, in 0xFC0
    instructions : reads of instructions, eight in a row when the cache misses
    data : stores, also of single bytes, loads of what is not cached, and eight loads in a row when
        the cache misses
    """

    rst: In(1)
    interrupts: In(32)
    instructions: Out(HostAccessSignature())
    data: Out(HostAccessSignature())

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if platform is not None:
            platform.add_file(_FILE, core_verilog())
        m.submodules.core = Instance(
            "VexRiscv",
            i_clk=ClockSignal(),
            i_reset=self.rst,
            i_externalResetVector=Const(FIRMWARE_BASE, 32),
            i_timerInterrupt=Const(0),
            i_softwareInterrupt=Const(0),
            i_externalInterruptArray=self.interrupts,
            **self._bus(m, "i", self.instructions),
            **self._bus(m, "d", self.data),
        )
        return m

    def _bus(self, m: Module, letter: str, access: Any) -> dict[str, Value]:
        """The pins of a Wishbone bus of the core, whose cycles become accesses."""

        def signal(name: str, width: int = 1) -> Signal:
            return Signal(width, name=f"{letter}_{name}")

        cyc, stb, we, sel = signal("cyc"), signal("stb"), signal("we"), signal("sel", 4)
        adr, mosi = signal("adr", 30), signal("mosi", 32)
        in_flight, request = signal("in_flight"), access.request
        done = in_flight & access.done
        m.d.comb += [
            request.valid.eq(cyc & stb & ~in_flight & ~self.rst),
            request.payload.address.eq(Cat(Const(0, 2), adr)),
            request.payload.data.eq(mosi),
            request.payload.strobe.eq(sel),
            request.payload.write.eq(we),
        ]
        with m.If(self.rst | done):
            m.d.sync += in_flight.eq(0)
        with m.Elif(request.valid & request.ready):
            m.d.sync += in_flight.eq(1)
        pins = {
            "o_CYC": cyc,
            "o_STB": stb,
            "o_WE": we,
            "o_SEL": sel,
            "o_ADR": adr,
            "o_DAT_MOSI": mosi,
            "i_DAT_MISO": access.data,
            "i_ACK": done & ~access.error,
            "i_ERR": done & access.error,
        }
        return {f"{pin[:2]}{letter}BusWishbone_{pin[2:]}": value for pin, value in pins.items()}
