"""Writes the netlist of a component as RTLIL, the text that Yosys reads.

Differs from `amaranth.back.rtlil.convert` in these ways:

- Memories have no initial contents: scratchpads are undefined after power-up, as in an ASIC.
- Ports of inner modules have names (`port_names`).
- The wire of an array element is named ``data.0``, like a structure field, instead of ``data[0]``.
- Names of modules are identifiers: ``vta_core`` instead of ``vta.core``.
- The only ``src`` attributes are those of modules, without line numbers and with paths that are the
  same on every computer.

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

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Value, _ast, _ir, _nir

from .fast_nets import fast_nets
from .port_names import name_ports


def rtlil_of(
    component: Any, name: str, ports: Mapping[str, Value], reset_less: bool, prefix: str = ""
) -> str:
    """RTLIL of a component, as module ``name`` with ``ports``; ``reset_less`` says whether clock
    domains that the component does not define itself have no reset. The names of their clocks and
    resets begin with ``prefix``.
    """

    with fast_nets():
        return _rtlil_of(component, name, ports, reset_less, prefix)


def _rtlil_of(
    component: Any, name: str, ports: Mapping[str, Value], reset_less: bool, prefix: str
) -> str:
    def missing_domain(domain: str) -> ClockDomain:
        made = ClockDomain(domain, reset_less=reset_less)
        for signal in (made.clk, *([] if made.rst is None else [made.rst])):
            signal.name = prefix + signal.name
        return made

    netlist = _ir.build_netlist(
        _ir.Fragment.get(component, None),
        ports={port: (value, None) for port, value in ports.items()},
        name=name,
        missing_domain=missing_domain,
    )
    name_ports(netlist)
    _name_elements(netlist)
    empty = rtlil.EmptyModuleChecker(netlist)
    design = rtlil.Design(emit_src=False)
    names = _ast.SignalDict()
    for index, module in enumerate(netlist.modules):
        if not empty.is_empty(index):
            builder = design.module(".".join(module.name))
            builder.attribute("src", _source(module))
            if index == 0:
                builder.attribute("top", 1)
            emitter = _ModuleEmitter(builder, netlist, module, names, empty_checker=empty)
            emitter.emit()
            _empty(emitter)
    identifiers = _identifiers(netlist.modules)
    _empty(netlist)

    def renamed(name: re.Match[str]) -> str:
        return name[1] + identifiers.get(name[2], name[2])

    return _MODULE_NAME.sub(renamed, str(design))


def _empty(unused: Any) -> None:
    """Drop what ``unused`` refers to: it is in reference cycles, and the garbage collector takes
    longer to find its objects.
    """
    vars(unused).clear()


class _ModuleEmitter(rtlil.ModuleEmitter):
    """Writes modules whose memories have no initial contents."""

    def emit_memory(self, cell_idx: int, cell: _nir.Memory) -> None:
        pass

    def sigspec(self, *parts: Any) -> str:
        """The same text as by Amaranth's function, in half of the time."""
        nets: list[Any] = []
        for part in parts:
            nets += (part,) if isinstance(part, _nir.Net) else part
        chunks = []
        at = 0
        while at < len(nets):
            first = at
            if nets[at] in _CONSTANTS:
                while at < len(nets) and nets[at] in _CONSTANTS:
                    at += 1
                bits = "".join("1" if net else "0" for net in reversed(nets[first:at]))
                chunks.append(f"{at - first}'{bits}")
                continue
            wire, start = self.nets[nets[at]]
            stop = start
            while at < len(nets) and nets[at] not in _CONSTANTS:
                other, bit = self.nets[nets[at]]
                if other is not wire or bit != stop:
                    break
                at, stop = at + 1, stop + 1
            last = f"{stop - 1}:" if stop - start > 1 else ""
            chunks.append(f"{wire.name} [{last}{start}]")
        return chunks[0] if len(chunks) == 1 else f"{{ {' '.join(reversed(chunks))} }}"


_CONSTANTS = (0, 1)  # nets


def _identifiers(modules: Sequence[_nir.Module]) -> dict[str, str]:
    """An identifier for each module, by its path joined with dots."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for module in modules:
        name = "_".join(module.name)
        while name in taken:
            name += "_"
        taken.add(name)
        found[".".join(module.name)] = name
    return found


_MODULE_NAME = re.compile(r"^((?:module|  cell) \\)(\S+)", re.MULTILINE)


def _source(module: _nir.Module) -> str:
    """Source file of ``module``: its path relative to this package, or only its name if it is
    elsewhere, since its path would depend on the computer.
    """
    path = Path(module.src_loc[0])
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else path.name


_ROOT = Path(__file__).parents[3]


def _name_elements(netlist: _nir.Netlist) -> None:
    """Give array elements names like those of structure fields."""
    for signal, fields in netlist.signal_fields.items():
        netlist.signal_fields[signal] = {
            tuple(map(str, path)): field for path, field in fields.items()
        }
