"""Compare systems of several machines.

    python benchmarks/scaling.py [--write | --check]
    python benchmarks/scaling.py [NAME ...] [--config NAME] [--dram ddr] [--rtl 2x128 ...]

Prints the table of docs/machines.md, for several widths of the memory bus: cycles for an image on
each machine at once, and the speed-up over one machine that runs the images sequentially; then
cycles, launches and speed-up for one image that all machines share. ``--write`` puts it into the
page, ``--check`` exits with 1 if the page has another.

With --rtl, runs only the given systems (machines x bits of the memory bus) on the RTL, and prints
their cycles beside the estimate's. Exits with 1 if results differ from the functional model, or
cycles by more than 2 %. ResNet-18 takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pages
from tables import head, row

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.devices import RunOptions

NAMES = ("resnet18", "mobilenetv2", "vit-tiny")
# Machines, and bits of their memory bus.
SYSTEMS = ((1, 64), (2, 64), (2, 128), (4, 64), (4, 128), (4, 256), (8, 128), (8, 256), (8, 512))
COLUMNS = ("machines", "memory bus", "cycles", "speed-up", "of linear")
OF_ONE = ("one image", "launches", "speed-up")
PAGE, BEGIN = "docs/machines.md", "<!-- made by `python benchmarks/scaling.py --write` -->\n"
# Of the estimate's cycles to the RTL's.
TOLERANCE = 0.02


class Run(NamedTuple):
    """A run of a network: an image per machine, or one that all machines share."""

    cycles: int
    launches: int
    outputs: dict[str, np.ndarray]


def run(name: str, config: Config, options: RunOptions, split: bool) -> Run:
    """Run ``name`` on as many images as the machines run at once."""
    network = generate(name)
    with Session(network.sized, config, options, split=split) as session:
        given = network.inputs or random_inputs(session)
        images = {name: given[name][: session.images_per_run] for name in session.inputs}
        runs = session.runs_at_once
        outputs = session.run({name: np.concatenate([x] * runs) for name, x in images.items()})
        return Run(session.cycles or 0, len(session.launches), outputs)


def speed_ups(name: str, config: Config, dram: str) -> Iterator[str]:
    """Yield a row of estimated cycles for each system."""
    single = 0
    for machines, bits in SYSTEMS:
        if bits < 8 * config.bus_bytes:
            continue
        options = RunOptions("estimate", dram, timing_only=True, machines=machines, memory_bus=bits)
        found = run(name, config, options, split=False).cycles
        shared = run(name, config, options, split=True)
        single = single or found
        speed = machines * single / found
        numbers = f"{found:,}", f"{speed:.2f}", f"{speed / machines:.0%}"
        of_one = f"{shared.cycles:,}", str(shared.launches), f"{single / shared.cycles:.2f}"
        yield row(f"`{name}`", str(machines), str(bits), *numbers, *of_one)


def compare_with_rtl(name: str, config: Config, dram: str, system: str) -> bool:
    """Print the cycles of the RTL and the estimate; returns whether cycles and results agree."""
    machines, bits = map(int, system.split("x"))
    agrees = True
    for split in (False, True):
        rtl, estimate, functional = (
            run(
                name,
                config,
                RunOptions(device, dram, machines=machines, memory_bus=bits),
                split,
            )
            for device in ("rtl", "estimate", "functional")
        )
        deviation = estimate.cycles / rtl.cycles - 1
        equal = all(
            np.array_equal(output, rtl.outputs[name]) for name, output in functional.outputs.items()
        )
        use = "one image" if split else "an image each"
        cycles = f"{rtl.cycles:,}", f"{estimate.cycles:,}", f"{deviation:+.3%}"
        results = "equal" if equal else "different"
        print(row(f"`{name}`", str(machines), str(bits), use, *cycles, results), flush=True)
        agrees &= equal and abs(deviation) <= TOLERANCE
    return agrees


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--dram", default="ddr")
    parser.add_argument("--rtl", nargs="+", metavar="MACHINESxBITS")
    pages.add_options(parser, PAGE)
    chosen = parser.parse_args()
    config, names = Config.load(chosen.config), chosen.names or NAMES
    if chosen.rtl:
        columns = "machines", "memory bus", "use", "RTL", "estimate", "deviation", "results"
        print(*head("network", *columns), sep="\n", flush=True)
        pairs = [(name, system) for name in names for system in chosen.rtl]
        agree = [compare_with_rtl(name, config, chosen.dram, system) for name, system in pairs]
        return 0 if all(agree) else 1
    lines = head("network", *COLUMNS, *OF_ONE)
    print(*lines, sep="\n", flush=True)
    for name in names:
        for line in speed_ups(name, config, chosen.dram):
            print(line, flush=True)
            lines.append(line)
    return int(pages.put(chosen, BEGIN, lines, PAGE))


if __name__ == "__main__":
    sys.exit(main())
