"""The resources that machines take on a Zynq-7020 and an ECP5, flattened, and whether they grew.

    python benchmarks/area.py [--config NAME ...] [--family xc7|ecp5 ...] [--check]
    python benchmarks/area.py --clock [--config NAME ...]
    python benchmarks/area.py --route [--array 4x4|8x8|16x8 ...] [--grade 8|6 ...] [--seeds N]

Synthesizes each preset for each family, as one module, and prints a table. Writes the counts into
``bitstreams/area.json`` and keeps those of the presets that it did not synthesize; with ``--check``
it writes nothing, and ends with 1 if a count has grown by more than 1 %. For area by module, see
``resources.py``.

With ``--clock`` it estimates the clock of presets on the 7-series instead, which is not placed:
times in cells are those of Yosys' library, and each wire counts as half a nanosecond.

With ``--route`` it places and routes arrays on an ECP5 instead, without requantizing lanes and
with pins for clock and reset alone: the LUTs after packing and the clock that the longest path
allows, for each speed grade and for the placer's seeds from 1 to N. Netlists are kept in the cache,
so that more seeds of the same machine need no synthesis. The floor plan of the fastest one for each
speed grade is drawn into ``docs/figures``.

Needs the extra ``fpga``; takes minutes for each machine, and ten more for each route.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pages import REPOSITORY

from amaranth_vta.fpga.area import FAMILIES
from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.floorplan import drawn
from amaranth_vta.fpga.refinement.refine import refine_sources
from amaranth_vta.fpga.routing import routed
from amaranth_vta.fpga.synthesis import commands, merged_modules, synthesized_area
from amaranth_vta.fpga.timing import longest_path
from amaranth_vta.fpga.tools import tool, version_of
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.cache import hash_of, kept
from amaranth_vta.sim.machine.elaborate import verilog

REPORT = REPOSITORY / "bitstreams" / "area.json"
FIGURES = REPOSITORY / "docs" / "figures"
COLUMNS = ("luts", "ffs", "dsps", "brams")
GROWTH = 0.01
# The machine of the arrays. Lanes with REQUANTIZE would take multipliers from the array.
_PLAIN = replace(
    PRESETS["ecp5-25f"], requantize=0, pad_value=0, lookup=0, depthwise=0, round_twice=0
)
# Logarithms of the rows that GEMM reduces and the columns that it produces, and the smallest chip
# with enough multipliers.
ARRAYS = {
    "4x4": (2, 2, "ecp5-25f"),
    "8x8": (3, 3, "ecp5-85f"),
    "16x8": (4, 3, "ecp5-85f"),
}
# The clock constraint of place and route, which stops optimizing once it is met; slightly above the
# 80 MHz target of the machines.
WANTED_MHZ = 85

Area = dict[str, float]


def measure(config: Config, family: str) -> Area:
    """The counts of a machine, by column; block RAMs are 36 kbit each on xc7, 18 kbit on ecp5."""
    area = synthesized_area(SystemConfig(config, 1), family)
    brams = area.bram36 * (1 if family == "xc7" else 2)
    return dict(zip(COLUMNS, (area.lut, area.ff, area.dsp, brams), strict=True))


def grown(before: Area, after: Area) -> list[str]:
    """One line for each count that has grown by more than `GROWTH`."""
    return [
        f"{column} {before[column]:g} -> {after[column]:g}"
        for column in COLUMNS
        if after[column] > before[column] * (1 + GROWTH)
    ]


def netlist_of(config: Config, family: str) -> Path:
    """The netlist of a machine, from the cache unless its Verilog, the synthesis commands, the
    sources of `refine` or the version of Yosys have changed.
    """
    text, yosys = merged_modules(verilog(config)), version_of(tool("YOSYS"))
    design = text, commands(family), refine_sources(), yosys

    def synthesize(path: Path) -> None:
        synthesized_area(SystemConfig(config, 1), family, path)

    return kept("routes", hash_of(*design), synthesize)


def clock(names: Iterable[str]) -> None:
    """Prints a line for each of these presets: the clock and the longest path on the 7-series."""
    print(f"{'machine':<16}{'MHz':>6}  longest path")
    for name in names:
        path = longest_path(netlist_of(PRESETS[name], "xc7"))
        print(f"{name:<16}{path.mhz:>6.0f}  {path}", flush=True)


def route(arrays: Iterable[str], grades: Iterable[int], seeds: int) -> None:
    """Print a line for each route. Results vary with the seed: a small gain may be luck."""
    head = f"{'array':<8}{'chip':<12}{'grade':>6}{'seed':>6}{'LUT':>9}{'FF':>9}{'MHz':>8}"
    print(f"{head}  longest path: logic + routing")
    for array in arrays:
        block_in, block_out, name = ARRAYS[array]
        config = replace(_PLAIN, log_block_in=block_in, log_block_out=block_out)
        netlist = netlist_of(config, "ecp5")
        for grade in grades:
            fastest = 0.0
            for seed in range(1, seeds + 1):
                made = routed(netlist, CHIPS[name], grade=grade, seed=seed, wanted_mhz=WANTED_MHZ)
                if made.result.fmax_mhz > fastest:
                    fastest = made.result.fmax_mhz
                    title = f"Floor plan of {array} on {name}, speed grade {grade}"
                    picture = drawn(made.plan, title)
                    (FIGURES / f"floorplan-{array}-grade{grade}.svg").write_text(picture)
                print(
                    f"{array:<8}{name:<12}{grade:>6}{seed:>6}{made.result.usage.luts:>9,}"
                    f"{made.result.usage.ffs:>9,}{made.result.fmax_mhz:>8.1f}  {made.plan.path}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", action="append", choices=list(PRESETS))
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--check", action="store_true", help="end with 1 if a count has grown")
    parser.add_argument("--clock", action="store_true", help="estimate clocks on the 7-series")
    parser.add_argument("--route", action="store_true", help="place and route on an ECP5")
    parser.add_argument("--array", action="append", choices=list(ARRAYS))
    parser.add_argument("--grade", action="append", type=int, choices=(8, 7, 6))
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.route:
        route(arguments.array or ARRAYS, arguments.grade or (8, 6), arguments.seeds)
        return
    if arguments.clock:
        clock(arguments.config or ("pynq", "pynq-extended"))
        return
    known = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    problems = []
    print(f"{'machine':<24}{'LUT':>9}{'FF':>9}{'DSP':>6}{'BRAM':>8}")
    for family in arguments.family or FAMILIES:
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
