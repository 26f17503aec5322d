"""How much of quantized files runs on the machine, and whether the results equal ONNX Runtime's.

    python benchmarks/quantized_files.py [--networks 500] [--cases] [--forms [DIR]] [--config NAME]
        [FILE ...]

Takes random networks quantized by ONNX Runtime with random options, ONNX's own test cases of float
operators with their inputs and outputs quantized, a small network for each form of quantized file
(kept in DIR), and the given files. Prints one line per kind: how many are equal in every element,
different and refused, and the share of their MACs that runs on the machine; then why operators run
on the host. A random network whose results differ is reduced and printed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta.report.host_summary import host_groups
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.network.model_error import ModelError
from tests.support.qdq_cases import qdq_cases
from tests.support.quantized_files import Case
from tests.support.quantized_forms import FORMS


@dataclass
class Tally:
    """The counts of one kind of files."""

    equal: int = 0
    different: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    macs: int = 0
    host_macs: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, model: onnx.ModelProto, inputs: Any, config: str) -> bool:
        """Compile, run and compare a model; returns False only if results differ, not if it is
        refused."""
        try:
            with Session(model, config) as session:
                report = session.check(random_inputs(session) if inputs is None else inputs)
                layers = session.layers
        except ModelError as error:
            self.refused.append(f"{name}: {error}")
            return True
        for group in host_groups(layers):
            self.reasons[group.reason] += group.count
        self.macs += sum(layer.macs_per_run for layer in layers)
        self.host_macs += sum(layer.host_macs for layer in layers)
        if report.mismatches:
            self.different.append(name)
        self.equal += not report.mismatches
        return not report.mismatches

    def __str__(self) -> str:
        total = self.macs + self.host_macs
        share = f"{self.macs / total:.2%} of {total:,} MACs on the machine" if total else "no MACs"
        return (
            f"{self.equal} equal, {len(self.different)} different, {len(self.refused)} refused; "
            f"{share}"
        )


def networks(count: int, config: str) -> Tally:
    tally = Tally()

    def fails(case: Case) -> bool:
        try:
            return not Tally().add("", case.quantized(), {"x": case.images()[0]}, config)
        except Exception:  # raised by the quantizer itself
            return False

    for seed in range(count):
        case = Case.drawn(seed)
        try:
            model = case.quantized()
        except Exception as error:  # raised by the quantizer itself
            tally.refused.append(f"seed {seed}: the quantizer: {error}")
            continue
        if not tally.add(f"seed {seed}", model, {"x": case.images()[0]}, config):
            print(f"smallest that differs: {case.smallest(fails)}")
    return tally


def cases(config: str) -> Tally:
    tally = Tally()
    for case in qdq_cases():
        tally.add(case.name, case.model, {"given": case.images}, config)
    return tally


def forms(folder: str, config: str) -> Tally:
    """Compare all forms; with a ``folder``, keep their files there."""
    tally = Tally()
    for name, form in FORMS.items():
        model = form.make()
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            onnx.save(model, Path(folder) / f"{re.sub('[^a-zA-Z0-9.]+', '_', name)}.onnx")
        tally.add(name, model, None, config)
    return tally


def files(paths: list[str], config: str) -> Tally:
    tally = Tally()
    for path in paths:
        tally.add(path, onnx.load(path), None, config)
    return tally


def _tallies(options: argparse.Namespace) -> Iterator[tuple[str, Tally]]:
    if options.files:
        yield "files", files(options.files, options.config)
    if options.networks:
        yield "random networks", networks(options.networks, options.config)
    if options.cases:
        yield "ONNX's cases", cases(options.config)
    if options.forms is not None:
        yield "forms", forms(options.forms, options.config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--networks", type=int, default=0, metavar="N")
    parser.add_argument("--cases", action="store_true")
    parser.add_argument("--forms", nargs="?", const="", metavar="DIR")
    parser.add_argument("--config", default="pynq-extended")
    options = parser.parse_args()
    np.seterr(all="ignore")
    wrong = 0
    for kind, tally in _tallies(options):
        print(f"{kind}: {tally}")
        for line in (*tally.different, *tally.refused):
            print(f"    {line[:160]}")
        for reason, count in tally.reasons.most_common():
            print(f"{count:>8,}  {reason}")
        wrong += len(tally.different)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
