"""Proves properties of the hardware: python -m tests.formal [--only NAME] [--jobs 2]

Prints each verdict and its processor time. Exits with 1 if a property fails, its cover is never
reached, or it holds although a bug is planted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from amaranth.hdl import UnusedElaboratable

from . import arbiter, banks, bursts, loads, queues, retirement, runs, sharing, stores

PROOFS = tuple(
    proof
    for subject in (queues, arbiter, bursts, retirement, banks, loads, stores, runs, sharing)
    for proof in subject.PROOFS
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formal")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once")
    options = parser.parse_args()
    tasks = [
        (place, number)
        for place, proof in enumerate(PROOFS)
        if options.only in proof.name
        for number in range(len(proof.runs()))
    ]
    wrong, total = 0, 0.0
    # Not in /tmp, which YoWASP's tools map to their own.
    with (
        tempfile.TemporaryDirectory(dir=Path.home()) as folder,
        ProcessPoolExecutor(options.jobs) as pool,
    ):
        verdicts = pool.map(partial(_run, Path(folder)), tasks)
        for (place, number), (good, seconds) in zip(tasks, verdicts, strict=True):
            wrong += not good
            total += seconds
            verdict, what = "ok" if good else "WRONG", PROOFS[place].runs()[number][0]
            print(f"{verdict:6} {seconds:6.1f} s  {PROOFS[place].name} {what}", flush=True)
    print(f"{total / 60:.1f} minutes of processor time")
    return 1 if wrong else 0


def _run(folder: Path, task: tuple[int, int]) -> tuple[bool, float]:
    """Whether a run of a proof ends as expected, and its processor time."""
    # A proof may use only the ports of a component.
    warnings.simplefilter("ignore", UnusedElaboratable)
    place, number = task
    started = _processor_seconds()
    _, mode, replaced, must_pass = PROOFS[place].runs()[number]
    good = PROOFS[place].passes(mode, replaced, folder / f"{place}_{number}") == must_pass
    return good, _processor_seconds() - started


def _processor_seconds() -> float:
    """Processor time of this process and its children so far."""
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
