"""The best machine for each network on three FPGAs: the study of docs/exploration.md.

    python benchmarks/study.py [-o DIR] [--chip NAME ...] [--jobs N] [--write | --check]

Runs ``vta explore`` for ResNet-18, MobileNetV2 and BERT-tiny on an XC7Z020, an ECP5-85F and an
ECP5-25F, with each SPEC and its results in DIR (build/study). Prints the findings as Markdown;
``--write`` puts them into docs/exploration.md, ``--check`` exits with 1 if that page has others.
Takes a quarter of an hour of processor time, and resumes where it was stopped. Needs the extras
``explore`` and ``networks``.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pages
import tables

from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.networks.generators import NETWORKS

PAGE, BEGIN = "docs/exploration.md", "<!-- made by `python benchmarks/study.py --write` -->\n"
STUDIED = ("resnet18", "mobilenetv2", "bert-tiny")
TITLES = {name: NETWORKS[name].what.partition(",")[0] for name in STUDIED}
# Names of the parameters in the text, the most significant first.
NAMES = {
    "LOG_BUS_WIDTH": "{}-bit bus",
    "OVERLAP": ("no overlap", ""),
    "LOOKUP": ("no tables", ""),
    "FORWARD": ("", "forwarding"),
}
_SPEC = """\
networks = {networks}
memory = "ddr"
base = {base!r}
rtl = 0

[parameters]
{parameters}

[limits]
device = {chip!r}

[objectives]
minimize = ["seconds", "area"]

[search]
method = "grid"
"""


@dataclass(frozen=True)
class Space:
    """The parameters explored on a chip."""

    base: str
    parameters: dict[str, list[int]]


SPACES = {
    "xc7z020": Space(
        "pynq-extended",
        {
            "LOG_BLOCK_IN": [3, 4, 5],
            "LOG_BLOCK_OUT": [3, 4],
            "LOG_BUS_WIDTH": [6, 7],
            "FORWARD": [0, 1],
            "LOG_UOP_BUFF_SIZE": [12],
            "LOG_INP_BUFF_SIZE": [14],
            "LOG_WGT_BUFF_SIZE": [15],
            "LOG_ACC_BUFF_SIZE": [15],
        },
    ),
    "ecp5-85f": Space(
        "tiny-extended",
        {
            "LOG_BLOCK_IN": [3, 4, 5],
            "LOG_BLOCK_OUT": [2, 3],
            "LOG_BUS_WIDTH": [6, 7],
            "FORWARD": [0, 1],
            "LOG_UOP_BUFF_SIZE": [12],
            "LOG_INP_BUFF_SIZE": [14],
            "LOG_WGT_BUFF_SIZE": [15],
            "LOG_ACC_BUFF_SIZE": [14],
        },
    ),
    # With OVERLAP, ResNet-18 needs more memory than the preset addresses.
    "ecp5-25f": Space(
        "ecp5-25f",
        {
            "OVERLAP": [0, 1],
            "LOOKUP": [0],
            "DEPTHWISE": [0],
            "ROUND_TWICE": [0],
            "LOG_DRAM_SIZE": [26],
        },
    ),
}

Row = dict[str, str]


def explore(chip: str, folder: Path, jobs: list[str]) -> list[Row]:
    """Run ``vta explore`` for a chip and return its legal points: forwarding needs input and output
    blocks of the same size.
    """
    space = SPACES[chip]
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {values}" for key, values in space.parameters.items()]
    text = _SPEC.format(
        networks=list(STUDIED), base=space.base, parameters="\n".join(lines), chip=chip
    ).replace("'", '"')
    spec, out = folder / f"{chip}.toml", folder / chip
    spec.write_text(text)
    command = [sys.executable, "-m", "amaranth_vta", "explore", str(spec), "-o", str(out)]
    said = subprocess.run([*command, *jobs], check=False)
    if said.returncode not in (0, 1):
        raise SystemExit(said.returncode)
    with (out / "results.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["status"] != "illegal"]


def found(chip: str, rows: list[Row]) -> Iterator[str]:
    """Markdown: the cost of each machine for each network, and why the best one is best."""
    space = SPACES[chip]
    good = [row for row in rows if row["status"] == "ok"]
    legal = {machine(space, row) for row in good}
    yield (
        f"### {chip.upper()}, {CHIPS[chip].clock_mhz:g} MHz "
        f"({CHIPS[chip].routed + ', routed' if CHIPS[chip].routed else 'assumed'})"
    )
    yield ""
    yield (
        f"Of {len({machine(space, row) for row in rows})} machines {len(legal)} are within the "
        f"chip{refused([row for row in rows if row['status'] != 'ok'])}."
    )
    yield ""
    heads = [f"{TITLES[name]}: cycles, MACs used" for name in STUDIED]
    yield from tables.head("machine", "LUTs", "multipliers", "block RAMs", *heads)
    best = {name: min(of_network(good, name), key=cycles) for name in STUDIED}
    for row in sorted(of_network(good, STUDIED[0]), key=lambda row: int(row["lut"])):
        same = [r for r in good if machine(space, r) == machine(space, row)]
        cells = [cost(next(r for r in same if r["network"] == name), best) for name in STUDIED]
        area = f"{int(row['lut']):,}", row["dsp"], f"{float(row['bram36']):g}"
        yield tables.row(machine(space, row), *area, *cells)
    yield ""
    for name in STUDIED:
        yield f"- {reason(space, good, name, best)}"
    yield ""


def cost(row: Row, best: dict[str, Row]) -> str:
    """A cell of the table, bold if no other machine is faster."""
    text = f"{cycles(row):,.0f}, {percent(float(row['utilization']))}"
    return f"**{text}**" if row == best[row["network"]] else text


def reason(space: Space, good: list[Row], name: str, best: dict[str, Row]) -> str:
    """Why this machine is best: the cycles of smaller ones and of the other networks' best."""
    row, own = best[name], of_network(good, name)
    parts = [
        f"**{TITLES[name]}**: {machine(space, row)}, {1000 * float(row['seconds']):.1f} ms per "
        f"image, of which the bound of array and bus is "
        f"{percent(int(row['bound_cycles']) / int(row['cycles']))}."
    ]
    others: dict[str, list[str]] = {}
    for other in STUDIED:
        if machine(space, best[other]) != machine(space, row):
            others.setdefault(machine(space, best[other]), []).append(TITLES[other])
    for said, titles in others.items():
        found = next(item for item in own if machine(space, item) == said)
        if cycles(found) == cycles(row):
            continue
        parts.append(
            f"On {said}, the best for {' and '.join(titles)}, it takes "
            f"{cycles(found) / cycles(row):.2f} times the cycles, since it uses "
            f"{percent(float(found['utilization']))} of {macs(found)} MACs where it uses "
            f"{percent(float(row['utilization']))} of {macs(row)} here."
        )
    for narrow in (item for item in own if halves_bus(item, row)):
        more, saved = cycles(narrow) / cycles(row) - 1, 1 - int(narrow["lut"]) / int(row["lut"])
        parts.append(
            f"Half the bus takes {percent(more, 1)} more cycles and {percent(saved)} fewer LUTs."
        )
    return " ".join(parts)


def macs(row: Row) -> int:
    """MACs per cycle of a machine with BATCH = 1."""
    return 1 << int(row["LOG_BLOCK_IN"]) + int(row["LOG_BLOCK_OUT"])


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def halves_bus(row: Row, best: Row) -> bool:
    """Whether a machine differs from ``best`` only in a bus of half the width."""
    same = {"LOG_BLOCK_IN", "LOG_BLOCK_OUT", *NAMES} - {"LOG_BUS_WIDTH"}
    return int(row["LOG_BUS_WIDTH"]) == int(best["LOG_BUS_WIDTH"]) - 1 and all(
        row[key] == best[key] for key in same
    )


def refused(rows: list[Row]) -> str:
    """The resources that the refused machines exceed, as the end of a sentence."""
    kinds = dict.fromkeys(row["reason"].split()[0] for row in rows)
    names = {"dsp": "multipliers", "lut": "LUTs", "bram36": "block RAMs"}
    said = [names[kind] for kind in kinds if kind in names]
    return f"; the others need more {' or '.join(said)}" if said else ""


def of_network(rows: list[Row], name: str) -> list[Row]:
    return [row for row in rows if row["network"] == name]


def machine(space: Space, row: Row) -> str:
    """The parameters that differ within the space, as in ``32×4, 128-bit bus``."""
    parts = [f"{1 << int(row['LOG_BLOCK_IN'])}×{1 << int(row['LOG_BLOCK_OUT'])}"]
    for key, words in NAMES.items():
        if len(space.parameters.get(key, [])) > 1:
            value = int(row[key])
            parts.append(words.format(1 << value) if isinstance(words, str) else words[value])
    return ", ".join(filter(None, parts))


def cycles(row: Row) -> float:
    return int(row["cycles"]) / int(row["images"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", type=Path, default=pages.REPOSITORY / "build" / "study")
    parser.add_argument("--chip", action="append", choices=list(SPACES))
    parser.add_argument("--jobs", type=int)
    pages.add_options(parser, PAGE)
    arguments = parser.parse_args()
    jobs = ["--jobs", str(arguments.jobs)] if arguments.jobs else []
    lines: list[str] = []
    for chip in arguments.chip or SPACES:
        lines += found(chip, explore(chip, arguments.o, jobs))
    print("\n".join(lines))
    return int(pages.put(arguments, BEGIN, lines[:-1], PAGE))


if __name__ == "__main__":
    sys.exit(main())
