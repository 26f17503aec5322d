"""Synthesizes a machine with Yosys for its area: `synthesized_area`."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.datapath.dot_products import product_name
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.elaborate import system_verilog

from .area import UNLIMITED, Area, products_in_luts
from .flows import FLOWS
from .refinement.refine import refine
from .timing import NET_NS
from .tools import Call, run, tool
from .usage import synthesized

# ABC maps to LUTs in more rounds than by default. For the 7-series, a wire to a LUT counts a fifth
# more than in the clock estimate, since ABC ignores wires to enables, resets and memories. In
# picoseconds.
_WIRE = 1200 * NET_NS
_THOROUGH = (
    "scratchpad -copy abc9.script.flow3 abc9.script; "
    f"scratchpad -set synth_xilinx.abc9.W {_WIRE:.0f}"
)
# Flattened into one module. Not with -widemux, which would save 4 to 20 % of the LUTs: Yosys 0.70
# then miscompiles the machine, as `benchmarks/netlists.py` shows.
_SYNTH_XC7 = "synth_xilinx -family xc7 -noiopad -flatten -top vta"
# By family, options that leave out cells for pins.
_WITHOUT_PINS = {"gowin": " -noiopads"}
# Steps of Yosys' `%ci` from the register of a product back to its multiplication.
_STEPS = 3
_SOURCE, _REPORT, _NETLIST = "vta.v", "area.json", "netlist.json"


def commands(family: str) -> str:
    """The Yosys commands that map a machine to the cells of a ``family`` of `FAMILIES`, or of
    ``gowin``, without cells for pins.
    """
    if family == "xc7":
        return f"{_THOROUGH}; {_SYNTH_XC7}"
    flow = FLOWS[family]
    return replace(flow, command=flow.command + _WITHOUT_PINS.get(family, "")).commands("vta")


def in_luts(config: Config, family: str, most: int) -> list[str]:
    """The Yosys commands that map `products_in_luts` to LUTs, for the machine of ``config`` on a
    chip of ``family`` with ``most`` multipliers.

    They use Booth's algorithm, run before synthesis infers multipliers, and fail unless they find
    every selected product.

    The selected products are spread evenly over the array, so that the remaining multipliers are
    too.
    """
    if not (count := products_in_luts(config, family, most)):
        return []
    places = list(product(range(config.batch), range(config.block_out), range(config.block_in)))
    chosen = [places[number * len(places) // count] for number in range(count)]
    registers = " ".join(f"*/w:{product_name(*place)}" for place in chosen)
    return [
        "proc",
        f"select -set registers {registers}",
        f"select -set products @registers %ci{_STEPS} */t:$mul %i",
        f"select -assert-count {count} @products",
        "booth @products",
    ]


def synthesized_area(
    system: SystemConfig, family: str, netlist: Path | None = None, most: int = UNLIMITED
) -> Area:
    """The area of the flattened machines of ``system``, with their arbiter, on a ``family`` of
    `FAMILIES`, or on one of its chips with ``most`` multipliers, of which each machine gets an
    equal part.

    ``netlist`` is an optional output file: the netlist for place and route. Takes one to four
    minutes. Raises `MissingExtra` without Yosys, and `ToolchainError` if it fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = merged_modules(system_verilog(system))
        (folder / _SOURCE).write_text(text, encoding="utf-8")
        own = most // system.machines
        script = [f"read_verilog {_SOURCE}", *in_luts(system.config, family, own)]
        script += [commands(family), f"tee -q -o {_REPORT} stat -json"]
        if family == "ecp5" or netlist is not None:
            script.append(f"write_json {_NETLIST}")
        run(Call(tool("YOSYS"), ("-q", "-p", "; ".join(script))), folder)
        design = json.loads((folder / _REPORT).read_text(encoding="utf-8"))["design"]
        cells = design["num_cells_by_type"]
        if (folder / _NETLIST).exists():
            cells["LUT4"] = cells.get("LUT4", 0) - refine(folder / _NETLIST, family)
        if netlist is not None:
            shutil.move(folder / _NETLIST, netlist)  # it may be on another file system
    return area_of(cells, family)


def area_of(cells: Mapping[str, int], family: str) -> Area:
    """The area of a design, given Yosys' counts of ``cells`` by type."""
    if family == "ecp5":
        usage = synthesized(cells)
        return Area(usage.luts, usage.ffs, usage.dsps, usage.brams / 2)
    counts = dict.fromkeys(("lut", "ff", "dsp", "bram36"), 0.0)
    for cell, count in cells.items():
        for column, weight in xc7_usage(cell).items():
            counts[column] += count * weight
    return Area(int(counts["lut"]), int(counts["ff"]), int(counts["dsp"]), counts["bram36"])


def xc7_usage(cell: str) -> Mapping[str, float]:
    """Resources of a 7-series cell; a LUT used as memory is a LUT too."""
    if cell in _LUT_MEMORIES:
        return {"lut": _LUT_MEMORIES[cell]}
    return next((usage for prefix, usage in _XC7.items() if cell.startswith(prefix)), {})


_XC7: dict[str, dict[str, float]] = {
    "LUT": {"lut": 1},
    "INV": {"lut": 1},
    "SRL": {"lut": 1},
    "FD": {"ff": 1},
    "DSP48": {"dsp": 1},
    "RAMB36": {"bram36": 1},
    "RAMB18": {"bram36": 0.5},
}
_LUT_MEMORIES = {
    "RAM32X1S": 1,
    "RAM64X1S": 1,
    "RAM128X1S": 2,
    "RAM256X1S": 4,
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM256X1D": 8,
    "RAM32M": 4,
    "RAM64M": 4,
}


def merged_modules(text: str) -> str:
    """Merges modules of Verilog ``text`` that differ only in their names.

    Otherwise Yosys would synthesize each copy: the sixteen lanes of the ALU take most of the time.
    """
    parts = _MODULE.split(_COMMENT.sub("", text))
    kept = [parts[0]]
    first_names: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        first = first_names.setdefault(body, name)
        if first == name:
            kept.append(f"module {name}{body}")
        else:
            renamed[name] = first
    return _NAME.sub(lambda match: renamed.get(match[0], match[0]), "".join(kept))


_MODULE = re.compile(r"^module (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"^//.*\n", re.MULTILINE)
_NAME = re.compile(r"\bvta_\w+")
