"""Compare the upper bounds on cycles with the RTL, and with the estimate for networks.

    python benchmarks/bounds.py [--programs 10000] [--networks digits resnet18 ...] [--first SEED]
        [--configs tiny tiny-extended ...]

Runs random programs, every other one a loop, on the RTL of small configurations with random
memories, each of which keeps a random contract, and prints the smallest and the median ratio of the
bound to the cycles.
For networks, prints the bound for the contract of `ddr` and the cycles of the estimate with `ddr`.
Exits with 1 if a run takes longer than its bound. 10,000 programs take some 20 minutes of processor
time.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys

from amaranth_vta.hw.config import DEFAULT, PRESETS, Config
from amaranth_vta.measurements.networks import measure_network
from amaranth_vta.sim.devices import RunOptions, open_device
from amaranth_vta.sim.programs.looping_programs import looping_program
from amaranth_vta.sim.programs.random_programs import legal_program

CONFIGS = ("tiny", "tiny-extended")
NETWORKS = ("resnet18", "resnet50", "mobilenetv2", "yolo", "digits")


def random_contract(seed: int) -> str:
    """The text of a contract: short and long latencies, none to frequent pauses."""
    dice = random.Random(seed)
    latency = dice.choice((0, 1, 4, 20, 48, 100, 200))
    period = dice.choice((2, 10, 100, 780))
    pause = dice.choice((0, 1, dice.randrange(period), period // 26))
    name = dice.choice(("refresh", "bandwidth"))
    part = pause if name == "refresh" else period - pause
    return f"latency={latency},{name}={part}/{period}"


def cycles_and_bound(config: Config, seed: int) -> tuple[int, int]:
    """Cycles of a random program on the RTL with a random memory, and their upper bound for the
    contract that the memory keeps.
    """
    contract = random_contract(seed)
    if seed % 2:
        image = looping_program(config, seed, iterations=60)
    else:
        image = legal_program(config, seed, length=random.Random(~seed).choice((5, 20, 60)))
    found = []
    for device_name in ("rtl", "bound"):
        device = open_device(device_name, config, image.dram.size, dram=f"random:{seed},{contract}")
        device.write(0, image.dram)
        found.append(device.run(image.insn_addr, image.insn_count).cycles or 0)
    return found[0], found[1]


def compare_programs(name: str, first: int, count: int) -> bool:
    """Prints the ratios of ``count`` programs; returns whether all bounds hold."""
    ratios = {}
    for seed in range(first, first + count):
        cycles, bound = cycles_and_bound(PRESETS[name], seed)
        ratios[seed] = bound / cycles
        if bound < cycles:
            print(f"{name}, seed {seed}, {random_contract(seed)}: {cycles:,} > {bound:,} cycles")
    least = min(ratios, key=lambda seed: ratios[seed])
    print(
        f"{name}: {count:,} programs, bound / cycles at least {ratios[least]:.3f} (seed {least}), "
        f"median {statistics.median(ratios.values()):.2f}, at most {max(ratios.values()):.2f}"
    )
    return ratios[least] >= 1


def compare_network(name: str) -> bool:
    """Prints the cycles of a network and their bound; returns whether it holds."""
    cycles, bound = (
        measure_network(name, PRESETS[DEFAULT], options).whole.cycles or 0
        for options in (
            RunOptions(device, "ddr", timing_only=True) for device in ("estimate", "bound")
        )
    )
    print(f"{name}: {cycles:,} cycles, bound {bound:,}, {bound / cycles - 1:+.1%}")
    return bound >= cycles


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--configs", nargs="*", default=CONFIGS, choices=PRESETS)
    chosen = parser.parse_args()
    each = chosen.programs // max(1, len(chosen.configs))
    holds = [compare_programs(name, chosen.first, each) for name in chosen.configs if each]
    holds += [compare_network(name) for name in chosen.networks]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
