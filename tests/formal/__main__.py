"""Proves properties of the hardware: python -m tests.formal [--only NAME]

Ends with 1 if one does not hold, is never reached, or holds with a bug planted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

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
                started = time.monotonic()
                place = Path(folder) / f"{proof.name.replace(' ', '_')}_{number}"
                good = proof.passes(mode, replaced, place) == must_pass
                wrong += not good
                seconds = time.monotonic() - started
                verdict = "ok" if good else "WRONG"
                print(f"{verdict:6} {seconds:6.1f} s  {proof.name} {what}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
