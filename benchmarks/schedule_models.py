"""Compare the model of schedules with programs built from them.

    python benchmarks/schedule_models.py [--config pynq-extended] [--networks shufflenet …]
                                         [--candidates 12]

For each operator whose schedule is its own model (`amaranth_vta.sw.compiler.tuner.output_tile`),
over its workloads in the networks: estimated cycles of the programs with the tiles that the
compiler chooses; cycles of the best of the first ``--candidates``, as a difference; how many of
these cannot be built; and the greatest differences between model and program, of the chosen tiles.
The memory is ``ddr``. For a machine with a slower memory (LOG_WORD_CYCLES), it transfers a word in
the configured number of cycles.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from itertools import islice

from tables import head, row

from amaranth_vta.explore.tuning import estimated, workloads_of
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.memory_timing import DDR
from amaranth_vta.networks import generate
from amaranth_vta.sim.machine.dram import TIMINGS
from amaranth_vta.sw.compiler.build import BuildError
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.output_tile import Tiled
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned

NETWORKS = ["shufflenet", "squeezenet", "inception", "unet", "ocr", "yolo", "bert-tiny", "vit-tiny"]


class Totals:
    """Sums over the workloads of an operator."""

    def __init__(self) -> None:
        self.count = self.cycles = self.best = self.refused = 0
        self.errors: list[float] = []

    def add(self, workload: Tiled, config: Config, memory: str, candidates: int) -> None:
        cycles: list[int] = []
        choice = choose(workload, config)
        for knobs in islice(choice.ranked, candidates):
            try:
                function = tuned(workload, Environment(config), knobs, "tile")
            except BuildError:
                self.refused += 1
                continue
            cycles.append(estimated(function, config, memory))
        self.count += 1
        self.cycles += cycles[0]
        self.best += min(cycles)
        self.errors.append(choice.cycles / cycles[0] - 1)


def memory_of(config: Config) -> str:
    """A memory named in `TIMINGS` that transfers words at the rate for which ``config`` is made."""
    pause = (1 << config.log_word_cycles) - 1
    if not pause:
        return "ddr"
    TIMINGS["slow"] = replace(DDR, refresh_period=pause + 1, refresh_stall=pause)
    return "slow"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="pynq-extended")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--candidates", type=int, default=12)
    args = parser.parse_args()
    config = Config.load(args.config)
    memory, found = memory_of(config), dict.fromkeys(list[Tiled]())
    for name in args.networks:
        model = generate(name).sized.SerializeToString(deterministic=True)
        workloads = workloads_of(model, config, None)
        found |= dict.fromkeys(item for item in workloads if isinstance(item, Tiled))
    totals: defaultdict[str, Totals] = defaultdict(Totals)
    for workload in found:
        totals[type(workload).__name__].add(workload, config, memory, args.candidates)
    print("\n".join(head("operator", "workloads", "cycles", "best", "not built", "model")))
    for name, total in sorted(totals.items()):
        best, errors = total.best / total.cycles - 1, total.errors
        range_of_errors = f"{min(errors):+.1%} to {max(errors):+.1%}"
        cells = (f"{total.cycles:,}", f"{best:+.1%}", str(total.refused), range_of_errors)
        print(row(name, str(total.count), *cells))


if __name__ == "__main__":
    main()
