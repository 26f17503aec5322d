"""Measure the numbers of docs/performance.md and update the page: ``make performance``.

    python benchmarks/performance.py [--only cycles] [--seconds 10] [--check]

Measures ResNet-18, its convolutions and steady-state rates on the RTL of `pynq-extended` with the
memory ``ddr``, and the simulation speed; takes the area from ``bitstreams/resources.md`` (``make
resources``) and the lost cycles of whole networks from the estimate. Replaces the text between the
markers of the page, or only its part ``cycles``, ``speed``, ``area`` or ``lost``. All but the speed
are the same on every host; for the speed, the page names the processor. ``--check`` compares the
page with the measurements, except for the speed, instead of writing it. Exits with 1 if a result is
wrong or the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

import pages
from lost_cycles import table as lost_cycles
from simulation_speed import simulated_cycles_per_second
from tables import head, row

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.measurements.layers import measure_layers
from amaranth_vta.measurements.measurement import Measurement
from amaranth_vta.measurements.rates import KINDS, measure_rates
from amaranth_vta.measurements.rounds import ROUNDS, Round, measure_rounds
from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.counters import Spent

RESOURCES = pages.REPOSITORY / "bitstreams" / "resources.md"
PAGE = "docs/performance.md"
MEASURED, AREA = "<!-- made by `make performance` -->\n", "<!-- made from resources.md -->\n"
LOST = "<!-- lost cycles, made by `make performance` -->\n"
SPEED = "<!-- simulation speed, made by `make performance` -->\n"
CONFIG, DRAM = "pynq-extended", "ddr"
PARTS = ("cycles", "speed", "area", "lost")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each speed measured (10)")
    parser.add_argument("--only", choices=PARTS, help="the part of the page to renew (all)")
    pages.add_options(parser, PAGE, writes=True)
    arguments = parser.parse_args()
    parts = [arguments.only] if arguments.only else PARTS
    wrong = False
    if "area" in parts:
        wrong |= pages.put(arguments, AREA, area(), PAGE)
    if "lost" in parts:
        wrong |= pages.put(arguments, LOST, lost_cycles(), PAGE)
    if "speed" in parts and not arguments.check:
        pages.replace(SPEED, _speeds(arguments.seconds), PAGE)
    if "cycles" in parts:
        lines, is_wrong = _cycles()
        wrong |= pages.put(arguments, MEASURED, lines, PAGE) or is_wrong
    return int(wrong)


def _cycles() -> tuple[list[str], bool]:
    """Markdown lines about cycles, and whether a result is wrong."""
    config = PRESETS[CONFIG]
    options = RunOptions("rtl", DRAM)
    layers = list(measure_layers(config, options))
    by_hand = list(measure_layers(config, options, by_hand=True))
    rates = [item for kind in KINDS for item in measure_rates(kind, config, options)]
    rounds = list(measure_rounds(config, RunOptions("rtl")))
    whole, mismatches = _network()
    lines = [*whole, "", *_layers(layers, by_hand), "", *_rates(rates), "", *_rounds(rounds)]
    print("\n".join(lines))
    wrong = mismatches + sum(item.mismatches for item in (*layers, *by_hand, *rates))
    wrong += sum(item.mismatches for item in rounds)
    return lines, wrong > 0


def _network() -> tuple[list[str], int]:
    """Markdown lines about ResNet-18 as a whole, and its number of wrong results."""
    network = generate("resnet18")
    with Session(network.model, CONFIG, "rtl", DRAM) as session:
        report = session.check(network.inputs)
        cycles, macs, peak = session.cycles, session.macs, session.config.macs_per_cycle
    assert cycles is not None
    return [
        "ResNet-18, one image of 224×224, uint8 activations, every layer on the machine (`vta "
        f"bench resnet18`: `{CONFIG}`, RTL, memory `{DRAM}`): {cycles:,} cycles for "
        f"{macs:,} MACs, {macs / cycles / peak:.1%} of {peak} MACs per cycle; "
        f"{report.mismatches:,} of {report.elements:,} results differ from ONNX Runtime.",
    ], report.mismatches


def _layers(layers: Sequence[Measurement], by_hand: Sequence[Measurement]) -> list[str]:
    lines = [
        "Convolutions of ResNet-18 with bias, requantization and clipping, from launch to done, "
        "everything in DRAM at the start (`vta bench resnet18-layers`). The bound is the larger of "
        "256 MACs per cycle and the bus time for each pixel that the kernel meets, each weight and "
        "each result once. The last two columns are from "
        "the machine's counters: the share of the cycles in which GEMM is busy, and the share of "
        "load's busy cycles in which GEMM is busy too.",
        "",
        *head(
            "layer", "cycles", "hand-written schedule", "bound", "of bound", "GEMM busy", "overlap"
        ),
    ]
    for item, other in zip(layers, by_hand, strict=True):
        spent = Spent(item.name, item.counters)
        lines.append(
            row(
                item.name,
                f"{item.cycles:,}",
                f"{other.cycles:,}",
                f"{item.bound_cycles:,.0f}",
                f"{item.of_bound:.1%}",
                f"{spent.share('gemm_busy'):.1%}",
                f"{spent.overlap or 0:.0%}",
            )
        )
    return lines


def _rates(rates: Iterable[Measurement]) -> list[str]:
    lines = [
        "Rates in the steady state, as a share of what the configuration and the memory allow "
        "(`vta bench gemm`, `alu`, `load`, `store`):",
        "",
        *head("rate", "of bound"),
    ]
    lines += [row(f"{item.operator}: {item.name}", f"{item.of_bound:.1%}") for item in rates]
    return lines


def _rounds(rounds: Iterable[Round]) -> list[str]:
    lines = [
        "Rounds of one element or micro-op each, unless stated otherwise, in which every "
        "instruction waits for its predecessor (`amaranth_vta/measurements/rounds.py`, memory "
        "`ideal`):",
        "",
        *head("round", "cycles"),
    ]
    lines += [row(item.name, f"{(item.cycles or 0) / ROUNDS:.1f}") for item in rounds]
    return lines


def _speeds(seconds: float) -> list[str]:
    speeds = {
        name: simulated_cycles_per_second(PRESETS[name], "ideal", seconds)
        for name in ("pynq", CONFIG)
    }
    said = ", ".join(f"`{name}` {speed / 1e3:,.0f} k" for name, speed in speeds.items())
    return [
        f"Simulated cycles per second of processor time, everything busy (`make bench`): {said}."
    ]


def area() -> list[str]:
    """Markdown lines about area: the first table of the resource report."""
    lines = RESOURCES.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| machine"))
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return [
        "Area after synthesis for a Zynq-7020 (`make resources`; by module in "
        "[bitstreams/resources.md](../bitstreams/resources.md)). Block RAM limits an XC7Z020 "
        "before logic does.",
        "",
        *(line for line in lines[first:last] if not line.startswith("| target")),
    ]


if __name__ == "__main__":
    sys.exit(main())
