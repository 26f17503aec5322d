"""Compare systems of several machines.

    python benchmarks/scaling.py [NAME ...] [--config NAME] [--device estimate] [--dram ddr]

Prints a table for docs/machines.md, for several widths of the memory bus: cycles for an image on
each machine at once, and the speed-up over one machine that runs the images sequentially; then
cycles, launches and speed-up for one image that all machines share.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
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


def cycles(name: str, config: Config, options: RunOptions, split: bool) -> tuple[int, int]:
    """Cycles and launches of ``name`` for as many images as there are runs at once."""
    network = generate(name)
    with Session(network.sized, config, options, split=split) as session:
        given = network.inputs or random_inputs(session)
        images = {name: given[name][: session.images_per_run] for name in session.inputs}
        runs = session.runs_at_once
        session.run({name: np.concatenate([x] * runs) for name, x in images.items()})
        assert session.cycles is not None
        return session.cycles, len(session.launches)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--device", default="estimate", choices=("estimate", "rtl"))
    parser.add_argument("--dram", default="ddr")
    chosen = parser.parse_args()
    config = Config.load(chosen.config)
    print(*head("network", *COLUMNS, *OF_ONE), sep="\n", flush=True)
    for name in chosen.names or NAMES:
        single = 0
        for machines, bits in SYSTEMS:
            if bits < 8 * config.bus_bytes:
                continue
            options = RunOptions(
                chosen.device,
                chosen.dram,
                timing_only=chosen.device == "estimate",
                machines=machines,
                memory_bus=bits,
            )
            found, _ = cycles(name, config, options, split=False)
            shared, launches = cycles(name, config, options, split=True)
            single = single or found
            speed = machines * single / found
            numbers = f"{found:,}", f"{speed:.2f}", f"{speed / machines:.0%}"
            of_one = f"{shared:,}", str(launches), f"{single / shared:.2f}"
            print(row(f"`{name}`", str(machines), str(bits), *numbers, *of_one), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
