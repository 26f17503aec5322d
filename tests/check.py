"""``python -m tests.check``: lint, types and the tests that a change affects, within 90 seconds.

Runs test files that import a changed module, directly or indirectly, nearest first. Skips and
counts tests that need a simulator which has not been built, and tests that would start after a
minute: `make test` runs everything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from tests.support.import_graph import ImportGraph

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def changed_files(base: str | None) -> list[str]:
    """Files that differ from the merge base with ``base``, and untracked ones.

    Without ``base``: from the merge base with origin/main, or main, whichever exists.
    """
    for name in (base,) if base else ("origin/main", "main"):
        if _git("rev-parse", "--verify", "--quiet", name):
            (start,) = _git("merge-base", "HEAD", name) or ("HEAD",)
            break
    else:
        start = "HEAD"
    return sorted(
        {*_git("diff", "--name-only", start), *_git("ls-files", "-o", "--exclude-standard")}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", help="compare with this revision (origin/main, or main)")
    parser.add_argument("--seconds", type=float, default=60, help="start no test after this (60)")
    parser.add_argument("--jobs", default="2", help="tests at a time (2)")
    arguments = parser.parse_args()
    begun = monotonic()
    tests = ImportGraph(ROOT).affected_tests(changed_files(arguments.base))
    commands = {
        "lint": [BIN / "ruff", "check", "."],
        "format": [BIN / "ruff", "format", "--check", "--quiet", "."],
        "types": [BIN / "mypy"],
    }
    if tests:
        options = ["-n", arguments.jobs, "--dist=load", "--seconds", str(arguments.seconds)]
        bounded = ["-q", "-p", "tests.support.bounded", *options]
        commands["tests"] = [sys.executable, "-m", "pytest", *bounded, *tests]
    print(f"{len(tests)} test files are affected")
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(_run, commands, commands.values()))
    print(f"check: {monotonic() - begun:.0f} s")
    return int(any(codes))


def _run(name: str, command: list[str | Path]) -> int:
    begun = monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    failed = done.returncode not in (0, 5 if name == "tests" else 0)  # 5: all were skipped
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"{name:<7}{monotonic() - begun:4.0f} s  {'FAILED' if failed else last}", flush=True)
    if failed:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return int(failed)


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
