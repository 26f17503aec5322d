"""Mutation testing: plant bugs, and report which layer of checks catches each.

    python -m tests.mutants [--hardware 6] [--software 2] [--jobs 2] [--only TEXT …]
        [--json FILE [--resume]]

Besides the named bugs, plants ``--hardware`` bugs in each module of the hardware, and
``--software`` bugs in each module of the functional model, the compiler's passes and the runtime.
These are bugs in operators; a third as many are of other kinds: limits, indices, signs, stale
state. ``--only`` judges only bugs with a TEXT in their name. ``--resume`` keeps the verdicts in
FILE from an earlier run, complete or not, and judges only bugs that are new, that survived, or
whose module has changed.

Exits with 1 if a bug survives that is not in `survivors.toml`, which argues why some are harmless.
"""

from __future__ import annotations

import argparse
import json
import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from .planting import Bug, Verdict

_SURVIVORS = Path(__file__).with_name("survivors.toml")
_ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--hardware", type=int, default=6)
    parser.add_argument("--software", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume needs --json, which has the verdicts so far")

    argued = tomllib.loads(_SURVIVORS.read_text(encoding="utf-8"))["harmless"]
    earlier = _earlier(options.json, argued) if options.resume else {}
    rows = dict(earlier)
    verdicts: list[Verdict] = []

    def wanted(bug: Bug) -> bool:
        row = earlier.get(bug.name)
        if row is not None:
            verdicts.append(Verdict(bug, row["layer"], row["what"], row["seconds"]))
        return row is None and any(text in bug.name for text in options.only)

    for verdict in _verdicts(options, wanted):
        verdicts.append(verdict)
        layer = verdict.layer or ("argued" if verdict.bug.name in argued else "SURVIVES")
        print(f"{layer:20} {verdict.bug.name}  {verdict.what}", flush=True)
        if options.json is not None:
            rows[verdict.bug.name] = _row(verdict)
            _write(options.json, rows)
    counts = Counter(verdict.layer or "survive" for verdict in verdicts)
    seconds = sum(verdict.seconds or 0 for verdict in verdicts)
    print(f"{len(verdicts)} bugs:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    print(f"{seconds / 60:.1f} minutes of processor time")
    survivors = (verdict.bug.name for verdict in verdicts if verdict.layer is None)
    open_ = [name for name in survivors if name not in argued]
    for name in open_:
        print(f"survives, and nothing says why it may: {name}")
    return 1 if open_ else 0


def _verdicts(options: argparse.Namespace, wanted: Callable[[Bug], bool]) -> Iterator[Verdict]:
    from . import software

    if options.software:
        yield from software.judge(options.software, options.jobs, wanted)
    if options.hardware:
        # After this import, hardware modules imported in this process have bugs.
        from . import hardware

        design = hardware.Design(options.hardware)
        yield from hardware.judge(design, options.jobs, wanted)


def _earlier(path: Path, argued: dict[str, str]) -> dict[str, Any]:
    """The rows, by name, of bugs that need not be judged again."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {
        row["bug"]: row
        for row in rows
        if (row["layer"] or row["bug"] in argued)
        and row["module"] == _checksum(row["bug"].partition(":")[0])
    }


def _row(verdict: Verdict) -> dict[str, Any]:
    return {
        "bug": verdict.bug.name,
        "layer": verdict.layer,
        "what": verdict.what,
        "seconds": verdict.seconds and round(verdict.seconds, 1),
        "module": _checksum(verdict.bug.file),
    }


def _write(path: Path, rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(list(rows.values()), indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


@cache
def _checksum(file: str) -> int | None:
    path = _ROOT / file
    return crc32(path.read_bytes()) if path.exists() else None


if __name__ == "__main__":
    raise SystemExit(main())
