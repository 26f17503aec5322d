"""Attributes with which Vivado's block designs recognize the interfaces of the machine."""

from __future__ import annotations

import re

from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

# UG994, "Inferring Interfaces in a Module": one port of each has its parameters.
_SIGNALS = {
    "clk": ("clock:1.0", "CLK", "ASSOCIATED_BUSIF {p}m_axi:{p}s_axil, ASSOCIATED_RESET {p}rst"),
    "rst": ("reset:1.0", "RST", "POLARITY ACTIVE_HIGH"),
    "irq": ("interrupt:1.0", "INTERRUPT", "SENSITIVITY LEVEL_HIGH"),
}
_BUSES = {
    "m_axi": "PROTOCOL AXI4, MAX_BURST_LENGTH 256, NUM_READ_OUTSTANDING {n}, "
    "NUM_WRITE_OUTSTANDING {n}, SUPPORTS_NARROW_BURST 0",
    "s_axil": "PROTOCOL AXI4LITE",
}
_PORT = re.compile(r"^  (?:input|output) (?:\[\d+:0\] )?(\w+);\n", re.MULTILINE)


def with_interfaces(text: str, prefix: str, machines: int = 1) -> str:
    """Put attributes before the port declarations of the top module, the first one of ``text``,
    which has ``machines`` on its memory bus.

    Names of ports begin with ``prefix``.
    """
    outstanding = BURSTS_IN_FLIGHT * machines
    described: set[str] = set()

    def attributed(port: re.Match[str]) -> str:
        name = port[1].removeprefix(prefix)
        bus, _, signal = name.rpartition("_")
        if name in _SIGNALS:
            kind, signal, parameters = _SIGNALS[name]
            bus, kind = name, f"signal:{kind}"
        else:
            kind, parameters = "interface:aximm:1.0", _BUSES[bus]
        lines = f'  (* X_INTERFACE_INFO = "xilinx.com:{kind} {prefix}{bus} {signal.upper()}" *)\n'
        if bus not in described:
            described.add(bus)
            values = (
                f"XIL_INTERFACENAME {prefix}{bus}, {parameters.format(p=prefix, n=outstanding)}"
            )
            lines += f'  (* X_INTERFACE_PARAMETER = "{values}" *)\n'
        return lines + port[0]

    end = text.index("\nendmodule")
    return _PORT.sub(attributed, text[:end]) + text[end:]
