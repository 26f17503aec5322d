"""The resources that the machine takes on a Zynq-7020, by Yosys.

    python benchmarks/resources.py [--config pynq --config pynq-extended] [-o FILE]

Writes ``bitstreams/resources.md``, and its first table into the README. Nothing is placed or
routed: these are the cells that synthesis infers, each module by itself. Needs the extra ``fpga``;
takes minutes for each configuration.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from performance import AREA, area, replace

from amaranth_vta.fpga.synthesis import merged_modules, xc7_usage
from amaranth_vta.fpga.tools import path_of, tool
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.elaborate import verilog

REPOSITORY = Path(__file__).parent.parent
REPORT = REPOSITORY / "bitstreams" / "resources.md"
COLUMNS = ("LUT", "FF", "DSP", "BRAM36")
# Capacity of the device, and other designs.
DEVICE = (53_200, 106_400, 220, 140)
OTHERS = {
    "AMD's DPU, 256 MACs": ("20,500", "32,000", "66-98", "69.5"),
    "VTA by HLS, 256 MACs": ("49,000", "20,600", "138", ""),
}
# Hides the names of wires: Yosys 0.70 fails with `count_id(wire->name) == 0` when a name that ABC
# brings back is one that the module has already.
UNNAMED = "hierarchy -top vta; rename -hide */w:*"
# Modules with fewer LUTs have no row: they only count in the modules that hold them.
_LEAST_LUTS = 200

Usage = collections.defaultdict[str, float]


def synthesize(config: Config) -> dict[str, Usage]:
    """The usage of each module with its submodules, by name; the machine itself is "vta"."""
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder, "vta.v"), Path(folder, "report.json")
        source.write_text(merged_modules(verilog(config)))
        # File names alone: the tool has its own /tmp, but sees the folder that it is started in.
        script = (
            f"read_verilog {source.name}; {UNNAMED}; synth_xilinx -family xc7 -noiopad -top vta; "
            f"tee -q -o {report.name} stat -json"
        )
        command = [path_of(tool("YOSYS")), "-q", "-p", script]
        result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if result.returncode or not report.exists():
            said = (result.stderr or result.stdout)[-2000:]
            raise SystemExit(f"synthesis failed ({result.returncode})\n{said}")
        modules = json.loads(report.read_text())["modules"]
    cells = {
        name.removeprefix("\\"): module["num_cells_by_type"] for name, module in modules.items()
    }
    usages: dict[str, Usage] = {}

    def usage_of(module: str) -> Usage:
        if module not in usages:
            total: Usage = collections.defaultdict(float)
            for cell, count in cells[module].items():
                name = cell.removeprefix("\\")
                part = usage_of(name) if name in cells else xc7_usage(name)
                for column, value in part.items():
                    total[column.upper()] += count * value
            usages[module] = total
        return usages[module]

    usage_of("vta")
    return usages


def _row(name: str, values: list[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}".removesuffix(".0")


def tables(results: dict[str, tuple[Config, dict[str, Usage]]]) -> list[str]:
    """The text of the report: whole machines, then each by its modules."""
    lines = [
        "| machine | " + " | ".join(COLUMNS) + " | LUT per MAC | DSP per MAC |",
        "|---|" + "--:|" * (len(COLUMNS) + 2),
    ]
    for name, (config, usages) in results.items():
        total, macs = usages["vta"], config.macs_per_cycle
        values = [_number(total[column]) for column in COLUMNS]
        a_mac = [f"{total[column] / macs:.2f}" for column in ("LUT", "DSP")]
        lines.append(_row(f"`{name}`", values + a_mac))
    lines += [
        _row("all of an XC7Z020", [*map(_number, DEVICE), "", ""]),
        *(_row(name, [*values, "", ""]) for name, values in OTHERS.items()),
    ]
    for name, (_, usages) in results.items():
        lines += ["", f"## `{name}`, by module", ""]
        lines += ["| module | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
        for module in sorted(usages):
            usage = usages[module]
            if usage["LUT"] >= _LEAST_LUTS or usage["DSP"] or usage["BRAM36"]:
                values = [_number(usage[column]) for column in COLUMNS]
                lines.append(_row(f"`{module.removeprefix('vta.core.machine.')}`", values))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", action="append", help="may be given several times")
    parser.add_argument("-o", type=Path, default=REPORT)
    arguments = parser.parse_args()
    results = {}
    for name in arguments.config or ["pynq", "pynq-extended"]:
        started = time.monotonic()
        config = Config.load(name)
        results[name] = config, synthesize(config)
        print(f"{name}: synthesized in {time.monotonic() - started:.0f} s", file=sys.stderr)
    said = subprocess.run([path_of(tool("YOSYS")), "--version"], capture_output=True, text=True)
    version = said.stdout.split()[1]
    lines = [
        "# Resources",
        "",
        "Made by `make resources`: cells after `synth_xilinx -family xc7 -noiopad`, not placed or",
        f"routed, by Yosys {version}. A module's row counts what it holds; of modules that",
        "are alike the first is shown. Memory in LUTs and inverters count as LUTs, half a block",
        "RAM as 0.5.",
        "",
        "How to read it: the first table has whole machines. In the others a row is a module",
        "with all that is in it, so rows do not add up; modules with less than 200 LUTs and",
        "neither DSP slices nor block RAM have no row. Each module is synthesized by itself,",
        "unlike in place and route: constants and registers are not moved across its ports, and",
        "two small LUTs that could share one of six inputs count as two. So these are upper",
        "bounds of area, for comparing versions of the machine by one command; they say nothing",
        "about its clock frequency.",
        "",
        *tables(results),
    ]
    arguments.o.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))
    if arguments.o == REPORT:
        replace(AREA, area())


if __name__ == "__main__":
    main()
