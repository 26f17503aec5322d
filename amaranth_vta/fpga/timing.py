"""Estimates a machine's clock on the 7-series, for which PyPI has no place and route:
`longest_path`.

The estimate is the longest path of the netlist, with the cell delays of `cell_times`. Wire delays
are known only after placement: each wire counts as `NET_NS`, and as zero within a carry chain, a
cascade of DSP slices or a slice.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .cell_times import CellTimes, Pin, cell_times, kind
from .netlist import Bit, Cell, outputs, uses

# Delay of a wire from one slice, block RAM or DSP slice to another. As a rule of thumb, wires make
# up half of a long path on such chips; with this delay they do for the machines here.
NET_NS = 0.5
# Clock ports, on global wires. Port C is one on flip-flops only: on a DSP slice it is an addend.
_CLOCKS = ("CLK", "WCLK", "CLKARDCLK", "CLKBWRCLK")
# Ports with dedicated wires from the neighbouring cell.
_CASCADES = ("CI", "PCIN", "ACIN", "BCIN")


@dataclass(frozen=True)
class LongestPath:
    """From register or memory to register or memory: the net names at its start and end,
    nanoseconds in cells, and the number of wires and of logic cells on it.
    """

    begin: str
    end: str
    cells_ns: float
    nets: int
    levels: int

    @property
    def mhz(self) -> float:
        """The clock frequency that the path allows."""
        return 1000 / (self.cells_ns + self.nets * NET_NS)

    def __str__(self) -> str:
        return (
            f"{self.cells_ns:.1f} ns in cells, {self.nets} wires, {self.levels} levels, "
            f"{self.begin} -> {self.end}"
        )


def longest_path(netlist: Path) -> LongestPath:
    """The longest path of a ``netlist`` that `synthesized_area` wrote for the family xc7.

    Raises `MissingExtra` without Yosys, and `ToolchainError` if it fails.
    """
    module = json.loads(netlist.read_text(encoding="utf-8"))["modules"]["vta"]
    return longest_path_of(module, cell_times(module))


def longest_path_of(module: Mapping[str, Any], times: Mapping[str, CellTimes]) -> LongestPath:
    """The longest path of a netlist ``module``, given the delays of its cells by `kind`."""
    return _Paths(module, times).longest()


def _is_clock(cell: Cell, port: str) -> bool:
    return port in _CLOCKS or (port == "C" and cell["type"].startswith("FD"))


class _Step(NamedTuple):
    """An edge to a bit: from the bit ``source``, through a cell and possibly over a wire."""

    source: Bit
    ns: float
    nets: int

    def after(self, ns: float) -> float:
        """Arrival time if ``source`` arrives at ``ns``."""
        return ns + self.ns + self.nets * NET_NS


class _Paths:
    """Longest-path search over the bits of a netlist."""

    def __init__(self, module: Mapping[str, Any], times: Mapping[str, CellTimes]) -> None:
        cells: dict[str, Cell] = module["cells"]
        self._uses = uses(module)
        self._names = _names(module)
        self._drivers: dict[Bit, Cell] = {}
        self._steps: dict[Bit, list[_Step]] = defaultdict(list)
        self._begins: dict[Bit, float] = {}
        # Path ends: the capturing cell, and the last bit with its wire and setup time.
        self._ends: list[tuple[Cell, _Step]] = []
        for cell in cells.values():
            self._drivers |= dict.fromkeys(outputs(cell), cell)
        for cell in cells.values():
            if (found := times.get(kind(cell))) is not None:
                self._add(cell, found)

    def _add(self, cell: Cell, times: CellTimes) -> None:
        connections = cell["connections"]
        for pin, ns in times.after_clock.items():
            for bit in _bits(connections, pin):
                self._begins[bit] = ns
        for port in connections:
            if cell["port_directions"][port] == "output" or _is_clock(cell, port):
                continue
            for place, bit in enumerate(connections[port]):
                if isinstance(bit, str):
                    continue
                pin, nets = (port, place), self._nets(cell, port, bit)
                for other, ns in times.through.get(pin, ()):
                    for target in _bits(connections, other):
                        self._steps[target].append(_Step(bit, ns, nets))
                if pin in times.before_clock:
                    self._ends.append((cell, _Step(bit, times.before_clock[pin], nets)))

    def _nets(self, cell: Cell, port: str, bit: Bit) -> int:
        """1 if a wire leads to the ``port`` of a cell, 0 within a slice or a cascade."""
        driver = self._drivers.get(bit, {"type": ""})["type"]
        alone = self._uses[bit] == 1 and driver.startswith(("LUT", "MUXF", "CARRY4"))
        joins = cell["type"].startswith("FD") and port == "D"
        adds = cell["type"] == "CARRY4" and port in ("S", "DI") and driver.startswith("LUT")
        chooses = cell["type"].startswith("MUXF") and port.startswith("I")
        inverts = cell["type"] == "INV"  # absorbed by its readers
        within = port in _CASCADES or chooses or inverts or (alone and (joins or adds))
        return 0 if within else 1

    def longest(self) -> LongestPath:
        arrivals: dict[Bit, float] = {}
        before: dict[Bit, _Step] = {}
        for bit in self._ordered():
            arrivals[bit] = self._begins.get(bit, 0.0)
            for step in self._steps[bit]:
                if step.source not in arrivals:
                    continue
                if (ns := step.after(arrivals[step.source])) > arrivals[bit]:
                    arrivals[bit], before[bit] = ns, step
        cell, last = max(self._ends, key=lambda end: end[1].after(arrivals.get(end[1].source, 0.0)))
        names = [self._names[bit] for bit in outputs(cell) if bit in self._names]
        steps, bit = [last], last.source
        while bit in before:
            steps.append(before[bit])
            bit = before[bit].source
        return LongestPath(
            begin=self._names.get(bit, "?"),
            end=min(names, key=lambda name: ("$" in name, name), default="?"),
            cells_ns=self._begins.get(bit, 0.0) + sum(step.ns for step in steps),
            nets=sum(step.nets for step in steps),
            levels=len(steps) - 1,
        )

    def _ordered(self) -> Iterator[Bit]:
        """All bits driven by cells, in topological order. A false combinational loop is cut
        somewhere.
        """
        begun: set[Bit] = set()
        for first in self._drivers:
            if first in begun:
                continue
            begun.add(first)
            path = [(first, iter(self._steps.get(first, ())))]
            while path:
                bit, steps = path[-1]
                before = next((step.source for step in steps if step.source not in begun), None)
                if before is None:
                    path.pop()
                    yield bit
                else:
                    begun.add(before)
                    path.append((before, iter(self._steps.get(before, ()))))


def _bits(connections: Mapping[str, list[Bit]], pin: Pin) -> list[Bit]:
    port, place = pin
    bits = connections.get(port, [])
    return [bits[place]] if place < len(bits) and isinstance(bits[place], int) else []


def _names(module: Mapping[str, Any]) -> dict[Bit, str]:
    """A name for each bit, from the design rather than from synthesis if possible."""
    names: dict[Bit, str] = {}
    for name, item in module["netnames"].items():
        for place, bit in enumerate(item["bits"]):
            known = names.get(bit, "$")
            if "$" in known and ("$" not in name or bit not in names):
                names[bit] = f"{name}[{place}]"
    return names
