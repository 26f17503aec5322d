"""Delays of the cells of a 7-series FPGA, from Yosys' library: `cell_times`.

The ``specify`` blocks of the library's cell models hold measurements of an Artix-7 (Project X-Ray).
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from .netlist import Bit, Cell
from .tools import Call, run, tool

_LIBRARY = "+/xilinx/cells_sim.v"
# Nanoseconds for LUT memories without delays in the library, taken from similar ones: address to
# output, clock to output, setup.
_LUT_MEMORY = (0.642, 1.163, 0.654)

# A port of a cell and a bit index in it.
Pin = tuple[str, int]


class CellTimes(NamedTuple):
    """Delays of a cell in nanoseconds: from inputs to outputs, from the clock to outputs, and setup
    times.
    """

    through: Mapping[Pin, list[tuple[Pin, float]]]
    after_clock: Mapping[Pin, float]
    before_clock: Mapping[Pin, float]


def cell_times(module: Mapping[str, Any]) -> dict[str, CellTimes]:
    """The delays of each `kind` of cell in a ``module``, from Yosys' library."""
    kinds = {kind(cell): cell for cell in module["cells"].values()}
    names = {name: f"kind_{number}" for number, name in enumerate(kinds)}
    probes = [f"{name} {names[name]} ();" for name in kinds if not name.startswith("$")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = "\n".join(["module probes;", *probes, "endmodule\n"])
        (folder / "probes.v").write_text(source, encoding="utf-8")
        script = (
            f"read_verilog -specify {_LIBRARY}; read_verilog probes.v; hierarchy -top probes; "
            "proc; write_json times.json"
        )
        run(Call(tool("YOSYS"), ("-q", "-p", script)), folder)
        library = json.loads((folder / "times.json").read_text(encoding="utf-8"))["modules"]
    cells = library["probes"]["cells"]
    return {
        name: times_of(library[cells[names[name]]["type"]], kinds[name])
        for name in kinds
        if names[name] in cells
    }


def kind(cell: Cell) -> str:
    """The type of a cell with the parameters on which its delays depend, in Verilog syntax."""
    parameters = ", ".join(
        f".{name}({_literal(value)})"
        for name, value in sorted(cell["parameters"].items())
        if name.endswith("REG") or name.startswith("USE_")
    )
    return f"{cell['type']} #({parameters})" if parameters else str(cell["type"])


def _literal(value: str) -> str:
    """A parameter value of a netlist, bits or a string, in Verilog syntax."""
    return f'"{value.strip()}"' if value.strip("01") else f"{len(value)}'b{value}"


def times_of(module: Mapping[str, Any], cell: Cell) -> CellTimes:
    """The delays that a ``module`` of the library specifies for its pins; the longest if a delay
    depends on values.
    """
    pins: dict[Bit, list[Pin]] = defaultdict(list)
    for port, item in module["ports"].items():
        for place, bit in enumerate(item["bits"]):
            pins[bit].append((port, place))
    through: dict[Pin, list[tuple[Pin, float]]] = defaultdict(list)
    after: dict[Pin, float] = defaultdict(float)
    before: dict[Pin, float] = defaultdict(float)

    for item in module["cells"].values():
        parameters, ends = item["parameters"], item["connections"]
        if item["type"] == "$specify2":
            ns, full = _ns(parameters["T_RISE_MAX"]), int(parameters["FULL"], 2)
            pairs = (
                product(ends["SRC"], ends["DST"])
                if full
                else zip(ends["SRC"], ends["DST"], strict=False)
            )
            for source, target in pairs:
                for pin in pins[source]:
                    through[pin] += [(other, ns) for other in pins[target]]
        elif item["type"] == "$specify3":
            for pin in chain.from_iterable(pins[bit] for bit in ends["DST"]):
                after[pin] = max(after[pin], _ns(parameters["T_RISE_MAX"]))
        elif item["type"] == "$specrule":
            for pin in chain.from_iterable(pins[bit] for bit in ends["SRC"]):
                before[pin] = max(before[pin], _ns(parameters["T_LIMIT_MAX"]))
    if cell["type"].startswith("RAM") and not (through or after):
        return _times_of_lut_memory(cell)
    return CellTimes(through, after, before)


def _times_of_lut_memory(cell: Cell) -> CellTimes:
    address, clock, setup = _LUT_MEMORY
    sides: dict[str, list[str]] = {"input": [], "output": []}
    for port, direction in cell["port_directions"].items():
        sides[direction].append(port)
    through: dict[Pin, list[tuple[Pin, float]]] = {
        (port, 0): [((output, 0), address) for output in sides["output"]]
        for port in sides["input"]
        if port.startswith("A")
    }
    after = {(port, 0): clock for port in sides["output"]}
    return CellTimes(through, after, {(port, 0): setup for port in sides["input"]})


def _ns(picoseconds: str) -> float:
    return int(picoseconds.replace("x", "0"), 2) / 1000
