"""Plants bugs, and reports which layer of checks catches each.

    python -m tests.mutants [--hardware 6] [--software 2] [--jobs 2] [--only TEXT]
        [--json FILE]

``--hardware`` bugs are planted in each module of the hardware, in addition to the named ones, and
``--software`` bugs in each module of the functional model, the compiler's passes and the runtime;
of these, those are judged whose name has TEXT in it.

Ends with 1 if a bug survives that is not in `survivors.toml`, which argues why some are harmless.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .planting import Verdict

_SURVIVORS = Path(__file__).with_name("survivors.toml")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--hardware", type=int, default=6)
    parser.add_argument("--software", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    argued = tomllib.loads(_SURVIVORS.read_text(encoding="utf-8"))["harmless"]
    verdicts = []
    for verdict in _verdicts(options):
        verdicts.append(verdict)
        layer = verdict.layer or ("argued" if verdict.bug.name in argued else "SURVIVES")
        print(f"{layer:20} {verdict.bug.name}  {verdict.what}", flush=True)
    counts = Counter(verdict.layer or "survive" for verdict in verdicts)
    print(f"{len(verdicts)} bugs:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    open_ = [
        verdict.bug.name
        for verdict in verdicts
        if verdict.layer is None and verdict.bug.name not in argued
    ]
    if options.json is not None:
        rows = [
            {"bug": verdict.bug.name, "layer": verdict.layer, "what": verdict.what}
            for verdict in verdicts
        ]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for name in open_:
        print(f"survives, and nothing says why it may: {name}")
    return 1 if open_ else 0


def _verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    from . import software

    if options.software:
        yield from software.judge(options.software, options.jobs, options.only)
    if options.hardware:
        # From here on the hardware that this process imports has bugs.
        from . import hardware

        design = hardware.Design("tiny-extended", options.hardware)
        yield from hardware.judge(design, options.jobs, options.only)


if __name__ == "__main__":
    raise SystemExit(main())
