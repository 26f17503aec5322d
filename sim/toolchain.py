"""The C++ compiler of this machine, and what its output depends on besides the sources."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from amaranth_vta.sim.cache import ToolchainError, cache_folder

Command = Sequence[str | Path]


def compiler() -> tuple[str, ...]:
    """The C++ compiler, $CXX or g++: its path, and the options that $CXX has after its name.

    Raises `ToolchainError` if there is none.
    """
    given = os.environ.get("CXX", "").strip() or "g++"
    try:
        name, *options = shlex.split(given)
    except ValueError as error:
        raise ToolchainError(f"CXX = {given} is not a command: {error}") from None
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(
            f"there is no C++ compiler {name}: install it (Debian: apt install g++) or set CXX; "
            "the functional and pysim devices need none"
        )
    return path, *options


@cache
def target_of(command: tuple[str, ...]) -> str:
    """What the compiler ``command`` makes of ``-march=native``: itself and the processor."""
    return subprocess.run(
        [*command, "-march=native", "-E", "-dM", "-x", "c++", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def run_tool(command: Command, problem: str, environment: Mapping[str, str] | None = None) -> None:
    """Runs ``command``; if it fails, raises `ToolchainError` with ``problem`` and the first error,
    and leaves the tool's output in a log in the cache folder."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if done.returncode:
        log = cache_folder() / "build.log"
        log.write_text(f"{' '.join(map(str, command))}\n\n{done.stdout}{done.stderr}")
        first = next((line for line in done.stderr.splitlines() if "rror" in line), "")
        raise ToolchainError(f"{problem}; the log is {log}: {first.strip()[:200]}")
