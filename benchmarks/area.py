"""What machines take of a Zynq-7020 and of an ECP5, flattened, and whether that has grown.

    python benchmarks/area.py [--config NAME ...] [--family xc7|ecp5 ...] [--check]

Synthesizes each preset for each family, as one module, and prints a table. Writes what it has
measured into ``bitstreams/area.json``, which holds what was measured before for the others; with
``--check`` it writes nothing, and ends with 1 if a count has grown by more than 1 %. Needs the
extra ``fpga``; takes minutes for each machine. The modules of a machine: ``resources.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from resources import REPOSITORY, cell_usage, merged, tool

from amaranth_vta.fpga.usage import synthesized
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.machine.elaborate import verilog

REPORT = REPOSITORY / "bitstreams" / "area.json"
COMMANDS = {
    "xc7": "synth_xilinx -family xc7 -noiopad -flatten -top vta",
    "ecp5": "synth_ecp5 -top vta",
}
# For ECP5 LUT4s: those that are memories and carries included, as nextpnr counts TRELLIS_COMB.
COLUMNS = ("luts", "ffs", "dsps", "brams")
GROWTH = 0.01

Area = dict[str, float]


def measure(config: Config, family: str) -> Area:
    """What a machine takes, by column; block RAMs of 36 kbit on xc7, of 18 kbit on ecp5."""
    with tempfile.TemporaryDirectory() as folder:
        # By names without folders: the tool has a /tmp of its own, but sees where it is started.
        Path(folder, "vta.v").write_text(merged(verilog(config)))
        script = f"read_verilog vta.v; {COMMANDS[family]}; tee -q -o area.json stat -json"
        done = subprocess.run([tool(), "-q", "-p", script], capture_output=True, cwd=folder)
        report = Path(folder, "area.json")
        if done.returncode or not report.exists():
            raise SystemExit(f"synthesis failed: {done.stderr.decode()[-2000:]}")
        design = json.loads(report.read_text())["design"]
    return area_of(design["num_cells_by_type"], family)


def area_of(cells: Mapping[str, int], family: str) -> Area:
    """The columns of a design of so many ``cells`` of each type."""
    if family == "ecp5":
        return {column: float(value) for column, value in asdict(synthesized(cells)).items()}
    area = dict.fromkeys(COLUMNS, 0.0)
    columns = dict(zip(("LUT", "FF", "DSP", "BRAM36"), COLUMNS, strict=True))
    for cell, count in cells.items():
        for column, value in cell_usage(cell).items():
            area[columns[column]] += count * value
    return area


def grown(before: Area, after: Area) -> list[str]:
    """What has grown by more than `GROWTH`, a line each."""
    return [
        f"{column} {before[column]:g} -> {after[column]:g}"
        for column in COLUMNS
        if after[column] > before[column] * (1 + GROWTH)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", action="append", choices=list(PRESETS))
    parser.add_argument("--family", action="append", choices=list(COMMANDS))
    parser.add_argument("--check", action="store_true", help="end with 1 if a count has grown")
    arguments = parser.parse_args()
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    problems = []
    print(f"{'machine':<24}{'LUT':>9}{'FF':>9}{'DSP':>6}{'BRAM':>8}")
    for family in arguments.family or list(COMMANDS):
        for name in arguments.config or list(PRESETS):
            area, key = measure(PRESETS[name], family), f"{name}, {family}"
            values = [f"{area[column]:,g}" for column in COLUMNS]
            print("{:<24}{:>9}{:>9}{:>6}{:>8}".format(key, *values), flush=True)
            if arguments.check:
                problems += [f"{key}: {line}" for line in grown(known.get(key, area), area)]
            else:
                known[key] = area
                REPORT.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    if problems:
        sys.exit("more than it was:\n" + "\n".join(problems))


if __name__ == "__main__":
    main()
