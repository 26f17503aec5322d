"""Writes the netlist of a component as RTLIL, the text that Yosys reads.

Differs from `amaranth.back.rtlil.convert` in three ways:

- Memories have no initial contents: scratchpads are undefined after power-up, as in an ASIC.
- Ports of inner modules have names (`port_names`).
- The wire of an array element is named ``data.0``, like a structure field, instead of ``data[0]``.

Relies on `amaranth.hdl._ir.build_netlist`, on the attributes of `amaranth.hdl._nir.Netlist`, and on
`ModuleEmitter`, `EmptyModuleChecker` and `Design` of `amaranth.back.rtlil`; `rtlil_of` repeats the
loop of `amaranth.back.rtlil.convert_fragment`.

Why: Amaranth initializes each memory, by default to zeros, which Yosys writes one statement per
word; and Yosys fails an assertion where the name of a wire equals its own name for bit 0 of
another.

Unnecessary with: memories that opt out of initialization, amaranth-lang/amaranth#270 (open); and
YosysHQ/yosys#4349 (open), the assertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Value, _ast, _ir, _nir

from .port_names import name_ports


def rtlil_of(component: Any, name: str, ports: Mapping[str, Value], reset_less: bool) -> str:
    """RTLIL of a component, as module ``name`` with ``ports``; ``reset_less`` says whether clock
    domains that the component does not define itself have no reset.
    """
    netlist = _ir.build_netlist(
        _ir.Fragment.get(component, None),
        ports={port: (value, None) for port, value in ports.items()},
        name=name,
        missing_domain=lambda domain: ClockDomain(domain, reset_less=reset_less),
    )
    name_ports(netlist)
    _name_elements(netlist)
    empty = rtlil.EmptyModuleChecker(netlist)
    design = rtlil.Design(emit_src=False)
    names = _ast.SignalDict()
    for index, module in enumerate(netlist.modules):
        if not empty.is_empty(index):
            builder = design.module(".".join(module.name), src_loc=module.src_loc)
            if index == 0:
                builder.attribute("top", 1)
            _ModuleEmitter(builder, netlist, module, names, empty_checker=empty).emit()
    return str(design)


class _ModuleEmitter(rtlil.ModuleEmitter):
    """Writes modules whose memories have no initial contents."""

    def emit_memory(self, cell_idx: int, cell: _nir.Memory) -> None:
        pass


def _name_elements(netlist: _nir.Netlist) -> None:
    """Give array elements names like those of structure fields."""
    for signal, fields in netlist.signal_fields.items():
        netlist.signal_fields[signal] = {
            tuple(map(str, path)): field for path, field in fields.items()
        }
