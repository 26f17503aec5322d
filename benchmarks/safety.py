"""Disturb runs of the RTL, and check that they end, do no harm, and leave nothing behind.

    python benchmarks/safety.py [--runs 10000] [--seed 1] [--jobs 2]

The disturbances: a soft reset or the reset line in any cycle; a memory that stalls for longer than
the watchdog's timeout; a memory that ends within the program, or lacks one word that it uses, so
that any beat of a burst may be an error; flipped bits in instructions, micro-ops and parameters;
garbage instead of instructions. Each run must end by itself or after a stop, within the time that
the watchdog sets; report memory errors; write only the bytes of its STOREs; and obey the bus
protocol. The next program must behave as on a fresh machine.
Most programs have base registers, all have limits. Prints how the runs ended; exits with 1 if one
broke a rule. The same seed and number produce the same run. Takes a quarter of an hour on one core.
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

# Number of runs per task of a process.
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
