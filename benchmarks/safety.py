"""Runs of the RTL that something disturbs: do they end, harm nothing, and leave nothing behind?

    python benchmarks/safety.py [--runs 10000] [--seed 1] [--jobs 2]

A soft reset or the reset line in any cycle; a memory that falls silent for longer than the watchdog
waits; one that ends within the program, or lacks one word that it uses, so that any beat of a burst
may be an error; flipped bits in instructions, micro-ops and parameters; garbage instead of
instructions. Each run must end, or stop when it is asked to, within the time that the watchdog
sets; report an error of memory; write nothing but what its STOREs may; keep to the rules of the
bus; and the next program must do what it does on a fresh machine.
Most programs have base registers, all have limits. Prints how the runs ended; ends with 1 if one
broke a rule. The same seed and number make the same run. Takes a quarter of an hour on a core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta.sim.fuzz.campaign import processes
from tests.support.disturbed_runs import KINDS, Outcome, attempt

# Runs that a process takes at once.
_CHUNK = 20


def attempts(seed: int, runs: int, first: int) -> list[tuple[int, Outcome]]:
    return [(number, attempt(seed, number)) for number in range(first, min(first + _CHUNK, runs))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    started = time.monotonic()
    ends: Counter[tuple[str, str]] = Counter()
    wrong = 0
    with processes(given.jobs) as work:
        chunks = range(0, given.runs, _CHUNK)
        for chunk in work(partial(attempts, given.seed, given.runs), chunks):
            for number, outcome in chunk:
                ends[outcome.kind, outcome.end] += 1
                wrong += bool(outcome.wrong)
                for what in outcome.wrong:
                    print(f"run {number}, {outcome.kind}: {what}", flush=True)
    for kind in KINDS:
        found = sorted((end, count) for (name, end), count in ends.items() if name == kind)
        runs = sum(count for _, count in found)
        print(f"{kind:14} {runs:6,}: {', '.join(f'{end} {count:,}' for end, count in found)}")
    seconds = time.monotonic() - started
    print(f"{ends.total():,} runs in {seconds:.0f} s, {wrong} of which broke a rule")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
