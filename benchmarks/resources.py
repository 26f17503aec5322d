"""FPGA resources of machines by module, on a Zynq-7020 and an ECP5, synthesized with Yosys.

    python benchmarks/resources.py [--config NAME ... --family xc7|ecp5] [-o FILE]

Writes ``bitstreams/resources.md`` for the default machines of each chip (or those given by
``--config``), and its first table into ``docs/performance.md``. Nothing is placed or routed: the
counts are the cells that synthesis infers with each module kept separate. Needs the extra ``fpga``;
takes minutes per machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path

import pages
from performance import AREA, PAGE, area
from tables import head, row

from amaranth_vta.fpga.flows import FLOWS
from amaranth_vta.fpga.synthesis import merged_modules, xc7_usage
from amaranth_vta.fpga.tools import path_of, tool
from amaranth_vta.fpga.usage import synthesized
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.elaborate import verilog

REPORT = pages.REPOSITORY / "bitstreams" / "resources.md"


@dataclass(frozen=True)
class Family:
    """A family of chips: the Yosys ``command``, the table's columns and how cells are counted in
    them, the default machines, a chip with its capacity per column, and published figures of other
    designs.
    """

    command: str
    columns: tuple[str, ...]
    usage: Callable[[str], Iterable[float]]
    machines: tuple[str, ...]
    chip: str
    capacity: tuple[int, ...]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


FAMILIES = {
    "xc7": Family(
        "synth_xilinx -family xc7 -noiopad -top vta",
        ("LUT", "FF", "DSP", "BRAM36"),
        lambda cell: (xc7_usage(cell).get(key, 0) for key in ("lut", "ff", "dsp", "bram36")),
        ("pynq", "pynq-extended"),
        "XC7Z020",
        (53_200, 106_400, 220, 140),
        {
            "AMD's DPU, 256 MACs": ("20,500", "32,000", "66-98", "69.5"),
            "VTA by HLS, 256 MACs": ("49,000", "20,600", "138", ""),
        },
    ),
    "ecp5": Family(
        f"{FLOWS['ecp5'].command} -noflatten -top vta",
        ("LUT", "FF", "multipliers", "block RAMs"),
        lambda cell: astuple(synthesized({cell: 1})),
        ("ecp5-25f",),
        "LFE5U-25F",
        (24_288, 24_288, 28, 56),
    ),
}
# Hide wire names: Yosys 0.70 fails with `count_id(wire->name) == 0` when a name that ABC restores
# already exists in the module.
UNNAMED = "hierarchy -top vta; rename -hide */w:*"
# Modules with fewer LUTs get no row; their parents' counts include them.
_LEAST_LUTS = 200

Usage = list[float]


def synthesize(config: Config, family: Family) -> dict[str, Usage]:
    """Resource usage of each module with its submodules, by name; the machine itself is "vta"."""
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder, "vta.v"), Path(folder, "report.json")
        source.write_text(merged_modules(verilog(config)))
        # File names alone: the tool has its own /tmp, but sees the folder that it is started in.
        script = (
            f"read_verilog {source.name}; {UNNAMED}; {family.command}; "
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
            total = [0.0] * len(family.columns)
            for cell, count in cells[module].items():
                name = cell.removeprefix("\\")
                part = usage_of(name) if name in cells else family.usage(name)
                total = [have + count * value for have, value in zip(total, part, strict=True)]
            usages[module] = total
        return usages[module]

    usage_of("vta")
    return usages


def _number(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def machines(family: Family, results: Mapping[str, tuple[Config, dict[str, Usage]]]) -> list[str]:
    """The table of whole machines."""
    per_mac = f"{family.columns[0]} per MAC", f"{family.columns[2]} per MAC"
    lines = head("machine", *family.columns, *per_mac)
    for name, (config, usages) in results.items():
        total = usages["vta"]
        each = [f"{total[column] / config.macs_per_cycle:.2f}" for column in (0, 2)]
        lines.append(row(f"`{name}`", *map(_number, total), *each))
    capacity = map(_number, family.capacity)
    lines.append(row(f"all of an {family.chip}", *capacity, "", ""))
    return [*lines, *(row(name, *values, "", "") for name, values in family.others.items())]


def by_module(family: Family, name: str, usages: Mapping[str, Usage]) -> list[str]:
    """The table of the modules of a machine."""
    lines = ["", f"## `{name}`, by module", "", *head("module", *family.columns)]
    for module in sorted(usages):
        usage = usages[module]
        if usage[0] >= _LEAST_LUTS or any(usage[2:]):
            place = module.removeprefix("vta_core_machine_")
            lines.append(row(f"`{place}`", *map(_number, usage)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", action="append", help="may be given several times")
    parser.add_argument("--family", choices=list(FAMILIES), default="xc7", help="for --config")
    parser.add_argument("-o", type=Path, default=REPORT)
    arguments = parser.parse_args()
    wanted = {name: family.machines for name, family in FAMILIES.items()}
    if arguments.config:
        wanted = {arguments.family: arguments.config}
    whole, parts = [], []
    for key, names in wanted.items():
        family, results = FAMILIES[key], {}
        for name in names:
            started = time.monotonic()
            config = Config.load(name)
            results[name] = config, synthesize(config, family)
            seconds = time.monotonic() - started
            print(f"{name}, {key}: synthesized in {seconds:.0f} s", file=sys.stderr)
        whole += ["", *machines(family, results)]
        for name, (_, usages) in results.items():
            parts += by_module(family, name, usages)
    said = subprocess.run([path_of(tool("YOSYS")), "--version"], capture_output=True, text=True)
    version = said.stdout.split()[1]
    used = " or ".join(f"`{FAMILIES[key].command}`" for key in wanted)
    lines = [
        "# Resources",
        "",
        f"Made by `make resources`: cells after {used}, not placed or routed, by Yosys {version}.",
        "A module's row counts what it holds; of modules that are alike the first is shown.",
        "Memory in LUTs, carries of an ECP5 and inverters count as LUTs, half a block RAM of",
        "36 kbit as 0.5; those of an ECP5 have 18 kbit.",
        "",
        "How to read it: the first tables have whole machines. In the others a row is a module",
        "with all that is in it, so rows do not add up; modules with less than 200 LUTs and",
        "neither multipliers nor block RAM have no row. Each module is synthesized by itself,",
        "unlike in place and route: constants and registers are not moved across its ports, and",
        "two small LUTs that could share one of six inputs count as two. So these are upper",
        "bounds of area, for comparing versions of the machine by one command; they say nothing",
        "about its clock frequency. Flattened, as for a chip, machines take what",
        "[area.json](area.json) says (`make area`).",
        *whole,
        *parts,
    ]
    arguments.o.parent.mkdir(parents=True, exist_ok=True)
    arguments.o.write_text("\n".join(lines) + "\n")
    print("\n".join(lines[6:]))
    if arguments.o == REPORT:
        pages.replace(AREA, area(), PAGE)


if __name__ == "__main__":
    main()
