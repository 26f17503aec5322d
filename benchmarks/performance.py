"""Measures what the README says of performance, and writes it there: ``make performance``.

    python benchmarks/performance.py [--seconds 10] [--area]

Rates and convolutions on the RTL of `pynq-extended` with the memory ``ddr``, how fast the machine
simulates, and its area from ``bitstreams/resources.md`` (``make resources``). What stands between
the markers of the README is replaced; with ``--area`` only its area, which measures nothing. Ends
with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from simulation_speed import simulated_cycles_per_second

from amaranth_vta.bench.layers import measure_layers
from amaranth_vta.bench.measurement import Measurement
from amaranth_vta.bench.rates import KINDS, measure_rates
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.runtime.counters import Spent

REPOSITORY = Path(__file__).parent.parent
README, RESOURCES = REPOSITORY / "README.md", REPOSITORY / "bitstreams" / "resources.md"
MEASURED, AREA = "<!-- made by `make performance` -->\n", "<!-- made from resources.md -->\n"
END = "<!-- end -->\n"
CONFIG, DRAM = "pynq-extended", "ddr"
# Of the whole machine of pynq, before registers were put before its inputs in the simulator.
SPEED_BEFORE = 366


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each speed measured (10)")
    parser.add_argument("--area", action="store_true", help="renew the area alone")
    arguments = parser.parse_args()
    replace(AREA, area())
    if arguments.area:
        return 0
    config = PRESETS[CONFIG]
    layers = list(measure_layers(config, "rtl", DRAM))
    by_hand = list(measure_layers(config, "rtl", DRAM, by_hand=True))
    rates = [item for kind in KINDS for item in measure_rates(kind, config, "rtl", DRAM)]
    speeds = {
        name: simulated_cycles_per_second(PRESETS[name], "ideal", arguments.seconds)
        for name in ("pynq", CONFIG)
    }
    lines = [*_layers(layers, by_hand), "", *_rates(rates), "", *_speeds(speeds)]
    replace(MEASURED, lines)
    print("\n".join(lines))
    return 1 if any(item.mismatches for item in (*layers, *by_hand, *rates)) else 0


def replace(marker: str, lines: Sequence[str]) -> None:
    """Puts ``lines`` into the README, between ``marker`` and the end that follows it."""
    before, rest = README.read_text(encoding="utf-8").split(marker)
    after = rest.partition(END)[2]
    text = "\n".join(lines)
    README.write_text(f"{before}{marker}{text}\n{END}{after}", encoding="utf-8")


def _layers(layers: Sequence[Measurement], by_hand: Sequence[Measurement]) -> list[str]:
    lines = [
        "Convolutions of ResNet-18 with bias, requantization and clipping, by the schedules that "
        "the compiler chooses and by those found by hand, from launch to done, everything in DRAM "
        f"at the start (`vta bench resnet18-layers`: `{CONFIG}`, RTL, memory `{DRAM}`). The bound "
        "is the larger of one multiplication per cycle and of the bus time for each pixel that the "
        "kernel meets, each weight and each result once. The last two columns are from the "
        "machine's counters.",
        "",
        *_head(
            "layer",
            "cycles",
            "by hand",
            "bound",
            "of bound",
            "target",
            "GEMM busy",
            "GEMM overlaps load",
        ),
    ]
    for item, other in zip(layers, by_hand, strict=True):
        spent = Spent(item.name, item.counters)
        lines.append(
            _row(
                item.name,
                f"{item.cycles:,}",
                f"{other.cycles:,}",
                f"{item.bound_cycles:,.0f}",
                f"{item.of_bound:.1%}",
                f"{item.target:.0%}",
                f"{spent.share('gemm_busy'):.1%}",
                f"{spent.overlap or 0:.0%}",
            )
        )
    return lines


def _rates(rates: Iterable[Measurement]) -> list[str]:
    lines = [
        "Rates in the steady state, of what the configuration and the memory allow (`vta bench "
        "gemm`, `alu`, `load`, `store`):",
        "",
        *_head("rate", "of bound", "target"),
    ]
    for item in rates:
        lines.append(
            _row(f"{item.operator}: {item.name}", f"{item.of_bound:.1%}", f"{item.target:.0%}")
        )
    return lines


def _speeds(speeds: dict[str, float]) -> list[str]:
    said = ", ".join(f"`{name}` {speed / 1e3:,.0f} k" for name, speed in speeds.items())
    return [
        f"Simulated cycles per second of processor time, everything busy (`make bench`): {said}; "
        f"`pynq` had {SPEED_BEFORE} k before registers were put before the inputs of the simulated "
        "machine."
    ]


def area() -> list[str]:
    """The lines about area: the first table of the report on resources."""
    lines = RESOURCES.read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| machine"))
    last = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    return [
        "Area after synthesis for a Zynq-7020 (`make resources`; by module in "
        "[bitstreams/resources.md](bitstreams/resources.md)):",
        "",
        *lines[first:last],
    ]


def _head(first: str, *others: str) -> list[str]:
    return [_row(first, *others), "|---|" + "--:|" * len(others)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
