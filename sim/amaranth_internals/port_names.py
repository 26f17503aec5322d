"""Names the ports of inner modules.

Amaranth numbers a port that carries only part of a signal, for instance a field of a structure, as
in ``port$12$0``. Here the port is named after that part.

Relies on the attributes of `amaranth.hdl._nir.Netlist` and `Module`, and on the names that
`amaranth.hdl._ir._compute_ports` invents.

Why: readers of the Verilog, and tools that show its hierarchy, know the parts by their names.

Unnecessary with: names from Amaranth, which writes a wire for each field since
amaranth-lang/amaranth#1323 but does not name ports after them; no issue is known that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count

from amaranth.hdl import _nir

_NUMBERED = "port$"


def name_ports(netlist: _nir.Netlist) -> None:
    """Name all ports of the modules of ``netlist``."""
    for module in netlist.modules:
        _name_ports(netlist, module)


def _name_ports(netlist: _nir.Netlist, module: _nir.Module) -> None:
    taken = {*module.signal_names.values(), *module.ports}
    parts = list(_parts(netlist, module))
    ports = {}
    for name, (value, flow) in module.ports.items():
        if name.startswith(_NUMBERED):
            wanted = _name(value, parts)
            others = (f"{wanted}${number}" for number in count(1))
            name = next(name for name in chain([wanted], others) if name not in taken)
            taken.add(name)
        ports[name] = value, flow
    module.ports = ports


def _parts(netlist: _nir.Netlist, module: _nir.Module) -> Iterator[tuple[str, _nir.Value]]:
    """Signals of a module and their fields, each with its nets."""
    for signal, name in module.signal_names.items():
        for path, field in netlist.signal_fields[signal].items():
            yield "__".join((name, *map(str, path))), field.value


def _name(value: _nir.Value, parts: list[tuple[str, _nir.Value]]) -> str:
    """Name of the smallest part that contains ``value``; if none does, ``value`` spans several
    parts and is named after the first and the last.
    """
    holding = []
    first, last = (0, ""), (0, "")
    for name, nets in parts:
        if value[0] in nets:
            low = list(nets).index(value[0])
            if nets[low : low + len(value)] == value:
                # Prefer the narrowest, then names without a number from Amaranth.
                holding.append((len(nets), "$" in name, low, name))
            first = max(first, (_common(value, nets[low:]), name))
        if value[-1] in nets:
            high = list(nets).index(value[-1])
            last = max(last, (_common(value[::-1], nets[high::-1]), name))
    if not holding:
        return f"{first[1]}_to_{last[1]}"
    width, _, low, name = min(holding)
    if width == len(value):
        return name
    return f"{name}_{low}" if len(value) == 1 else f"{name}_{low + len(value) - 1}_{low}"


def _common(a: _nir.Value, b: _nir.Value) -> int:
    """The length of the longest common prefix, in nets."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
