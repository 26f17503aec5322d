"""Whether TensorFlow Lite files equal LiteRT's reference kernels in every element.

    python benchmarks/tflite_operators.py [--operators 700] [--graphs 200] [--states 20]
        [--seed SEED] [--only NAME ...] [--keep DIR] [--config NAME] [--device NAME]
    python benchmarks/tflite_operators.py FILE ... [--inputs 1000] [--config NAME] [--device NAME]

Runs the given files on random inputs, or files of one operator each over shapes, options, scales
and types, random networks, and networks that keep state. Prints a table by operator: how many are
equal with all of it on the machine, equal with an operator on the host, refused and different; then
the reasons, and the files that differ, which --keep writes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tables import head, row

from tests.support.tflite_files import Outcome, TfliteCase, file_case, run_case
from tests.support.tflite_graphs import random_graph, stateful_graph
from tests.support.tflite_operators import operator_cases

KINDS = ("on the machine", "on the host", "refused", "different")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--inputs", type=int, default=1000, metavar="N", help="for each FILE")
    parser.add_argument("--operators", type=int, default=700, metavar="N")
    parser.add_argument("--graphs", type=int, default=200, metavar="N")
    parser.add_argument("--states", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of all files that are drawn")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="operators, graph and state")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write files that differ there")
    parser.add_argument("--config", default="pynq-extended")
    parser.add_argument("--device", default="functional")
    chosen = parser.parse_args()
    np.seterr(all="ignore")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: Counter[str] = Counter()
    problems: list[str] = []
    for case in _cases(chosen):
        kind, outcome = _run(case, chosen.config, chosen.device)
        counts[case.operator][kind] += 1
        if kind == "on the host":
            reasons.update({f"{case.operator}: {reason}" for reason in outcome.reasons})
        elif kind == "refused":
            reasons[f"{case.operator}: refused: {outcome.refused}"] += 1
        elif kind == "different":
            size = sum(values.size for run in case.wanted for values in run)
            problems.append(f"{case.name}: {outcome.different} of {size} elements")
            _keep(case, chosen.keep)
        print(f"{kind}: {case.name}", file=sys.stderr, flush=True)
    _print(counts, reasons, problems)
    return 1 if problems else 0


def _cases(chosen: argparse.Namespace) -> Iterator[TfliteCase]:
    if chosen.files:
        for path in chosen.files:
            yield file_case(path, chosen.inputs, chosen.seed)
        return
    wanted, first = set(chosen.only or ()), chosen.seed * 1_000_000
    for case in operator_cases(chosen.seed, chosen.operators):
        if not wanted or case.operator in wanted:
            yield case
    if not wanted or "graph" in wanted:
        yield from map(random_graph, range(first, first + chosen.graphs))
    if not wanted or "state" in wanted:
        yield from map(stateful_graph, range(first, first + chosen.states))


def _run(case: TfliteCase, config: str, device: str) -> tuple[str, Outcome]:
    try:
        outcome = run_case(case, config, device)
    except Exception as error:  # an error of the compiler itself
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        print(f"{case.name}: {text}", flush=True)
        return "different", Outcome(sum(item.size for run in case.wanted for item in run))
    if outcome.refused:
        return "refused", outcome
    if outcome.different:
        return "different", outcome
    return ("on the host" if outcome.reasons else "on the machine"), outcome


def _keep(case: TfliteCase, folder: Path | None) -> None:
    """Write the file, its inputs and the outputs of LiteRT."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case.name.partition(':')[0].replace(' ', '-')}.tflite"
    path.write_bytes(case.model)
    arrays = {
        f"run{run}_{side}{index}": values
        for side, runs in (("input", case.runs), ("output", case.wanted))
        for run, items in enumerate(runs)
        for index, values in enumerate(items)
    }
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)


def _print(counts: dict[str, Counter[str]], reasons: Counter[str], problems: list[str]) -> None:
    print("\n".join(head("operator", *KINDS)))
    for operator in sorted(counts):
        print(row(operator, *(str(counts[operator][kind] or "") for kind in KINDS)))
    total = sum(counts.values(), Counter[str]())
    print(row("all", *(str(total[kind]) for kind in KINDS)))
    for reason, count in reasons.most_common():
        print(f"{count:6,}  {reason}")
    for problem in problems:
        print(f"different: {problem}")


if __name__ == "__main__":
    sys.exit(main())
