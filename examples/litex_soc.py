"""The machine in a LiteX SoC: one bus with a memory on it, the machine's registers, and a host.

    python examples/litex_soc.py [-o soc.v]

The host is a port of AXI-Lite here, where a processor, a bridge from a serial line or PCIe would be
in LiteX. It writes a program into the memory, starts it by the registers, and reads the results:
tests/cocotb/test_litex_soc.py does so in simulation. Needs LiteX (``pip install litex``).
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from litex.build.generic_platform import GenericPlatform, Pins
from litex.soc.integration.soc import SoCRegion
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import axi, wishbone
from migen import ClockDomain, ClockSignal, Instance, Module, ResetSignal, Signal

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.machine.elaborate import verilog

MEMORY, MEMORY_BYTES = 0x4000_0000, 0x4_0000
REGISTERS, REGISTERS_BYTES = 0xF000_0000, 0x1000

REQUEST = ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos")
PORTS = {
    ("m_axi", "aw"): REQUEST,
    ("m_axi", "w"): ("data", "strb", "last"),
    ("m_axi", "b"): ("id", "resp"),
    ("m_axi", "ar"): REQUEST,
    ("m_axi", "r"): ("id", "data", "resp", "last"),
    ("s_axil", "aw"): ("addr",),
    ("s_axil", "w"): ("data", "strb"),
    ("s_axil", "b"): ("resp",),
    ("s_axil", "ar"): ("addr",),
    ("s_axil", "r"): ("data", "resp"),
}
# The channels that go from the master to the slave.
FORWARD = ("aw", "w", "ar")


class Vta(Module):
    """The module ``vta``: ``bus`` to memory, ``registers`` from the host."""

    def __init__(self, config: Config) -> None:
        self.bus = axi.AXIInterface(data_width=8 * config.bus_bytes, address_width=32)
        self.registers = axi.AXILiteInterface(data_width=32, address_width=32)
        self.irq = Signal()
        wires = {"i_clk": ClockSignal(), "i_rst": ResetSignal(), "o_irq": self.irq}
        for (prefix, channel), names in PORTS.items():
            interface = self.bus if prefix == "m_axi" else self.registers
            stream = getattr(interface, channel)
            out = (channel in FORWARD) == (prefix == "m_axi")
            there, back = ("o", "i") if out else ("i", "o")
            wires[f"{there}_{prefix}_{channel}valid"] = stream.valid
            wires[f"{back}_{prefix}_{channel}ready"] = stream.ready
            for name in names:
                wires[f"{there}_{prefix}_{channel}{name}"] = getattr(stream, name)
        self.specials += Instance("vta", **wires)


class Soc(SoCMini):
    """Memory, machine and host on a bus as wide as the machine's; ``host`` and ``irq`` are pins."""

    def __init__(self, config: Config) -> None:
        width = 8 * config.bus_bytes
        host = axi.AXILiteInterface(data_width=width, address_width=32)
        pins = [("clk", 0, Pins(1)), ("rst", 0, Pins(1)), ("irq", 0, Pins(1))]
        platform = GenericPlatform("", [*pins, *host.get_ios("host")], name="simulated")
        super().__init__(
            platform,
            clk_freq=100_000_000,
            bus_standard="wishbone",
            bus_data_width=width,
            with_timer=False,
        )
        self.cd_sys = ClockDomain()
        self.comb += self.cd_sys.clk.eq(platform.request("clk"))
        self.comb += self.cd_sys.rst.eq(platform.request("rst"))
        self.comb += host.connect_to_pads(platform.request("host"), mode="slave")
        self.bus.add_master("host", host)
        self.submodules.memory = memory = wishbone.SRAM(MEMORY_BYTES, bus=wishbone.Interface(width))
        self.bus.add_slave("memory", memory.bus, SoCRegion(origin=MEMORY, size=MEMORY_BYTES))
        self.submodules.vta = vta = Vta(config)
        self.comb += platform.request("irq").eq(vta.irq)
        self.bus.add_master("vta", vta.bus)
        region = SoCRegion(origin=REGISTERS, size=REGISTERS_BYTES, cached=False)
        self.bus.add_slave("vta", vta.registers, region)


def soc_verilog(config: Config) -> str:
    """The whole SoC as Verilog, with the top module ``soc``."""
    logging.disable(logging.INFO)  # LiteX logs each region that it adds
    soc = Soc(config)
    soc.finalize()
    text: str = soc.platform.get_verilog(soc, name="soc").main_source
    return text + verilog(config)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Write a LiteX SoC with the machine in it.")
    arguments.add_argument("-o", default="soc.v", metavar="FILE")
    path = Path(arguments.parse_args().o)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(soc_verilog(PRESETS["tiny"]))
    print(f"{path}: top module soc, memory at {MEMORY:#x}, registers at {REGISTERS:#x}")
