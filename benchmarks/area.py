"""The resources that machines take on a Zynq-7020 and an ECP5, flattened, and whether they grew.

    python benchmarks/area.py [--config NAME ...] [--family xc7|ecp5 ...] [--check]

Synthesizes each preset for each family, as one module, and prints a table. Writes the counts into
``bitstreams/area.json`` and keeps those of the presets that it did not synthesize; with ``--check``
it writes nothing, and ends with 1 if a count has grown by more than 1 %. Needs the extra ``fpga``;
takes minutes for each machine. For area by module, see ``resources.py``.
"""

from __future__ import annotations

import argparse
import json
import sys

from resources import REPOSITORY

from amaranth_vta.fpga.synthesis import COMMANDS, synthesized_area
from amaranth_vta.hw.config import PRESETS, Config

REPORT = REPOSITORY / "bitstreams" / "area.json"
COLUMNS = ("luts", "ffs", "dsps", "brams")
GROWTH = 0.01

Area = dict[str, float]


def measure(config: Config, family: str) -> Area:
    """The counts of a machine, by column; block RAMs are of 36 kbit on xc7, of 18 kbit on ecp5."""
    area = synthesized_area(config, family)
    brams = area.bram36 * (1 if family == "xc7" else 2)
    return dict(zip(COLUMNS, (area.lut, area.ff, area.dsp, brams), strict=True))


def grown(before: Area, after: Area) -> list[str]:
    """The counts that have grown by more than `GROWTH`, one line each."""
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
