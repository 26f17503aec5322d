"""Proves properties of the hardware: python -m tests.formal [--only NAME]

Prints the verdict on each and the processor time that it took. Ends with 1 if one does not hold, is
never reached, or holds with a bug planted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from amaranth.hdl import UnusedElaboratable

from . import arbiter, banks, bursts, loads, queues, retirement, runs, stores

PROOFS = tuple(
    proof
    for subject in (queues, arbiter, bursts, retirement, banks, loads, stores, runs)
    for proof in subject.PROOFS
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.formal")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    options = parser.parse_args()
    # Of some components a proof uses the ports alone.
    warnings.simplefilter("ignore", UnusedElaboratable)
    wrong = 0
    # Not in /tmp, of which YoWASP's tools have one of their own.
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        for proof in PROOFS:
            if options.only not in proof.name:
                continue
            for number, (what, mode, replaced, must_pass) in enumerate(proof.runs()):
                started = _processor_seconds()
                place = Path(folder) / f"{proof.name.replace(' ', '_')}_{number}"
                good = proof.passes(mode, replaced, place) == must_pass
                wrong += not good
                seconds = _processor_seconds() - started
                verdict = "ok" if good else "WRONG"
                print(f"{verdict:6} {seconds:6.1f} s  {proof.name} {what}", flush=True)
    print(f"{_processor_seconds() / 60:.1f} minutes of processor time")
    return 1 if wrong else 0


def _processor_seconds() -> float:
    """What this process and those that it started have taken so far."""
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
