"""The host's C++ compiler, and the properties of the host on which its output depends."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from amaranth_vta.sim.cache import ToolchainError, cache_folder

Command = Sequence[str | Path]


def compiler() -> tuple[str, ...]:
    """Path of the C++ compiler and the options that it needs.

    The first that exists: ``$CXX`` with its options, g++ or clang++ in PATH, or the clang of the
    package `ziglang`. Raises `ToolchainError` if there is none.
    """
    given = os.environ.get("CXX", "").strip()
    if not given:
        found = next(filter(None, map(shutil.which, ("g++", "clang++"))), None)
        command = (found,) if found else _zig()
        if command is None:
            raise ToolchainError(
                "no C++ compiler found: pip install 'amaranth-vta[toolchain]', install g++ or "
                "clang, or set CXX; the functional and pysim devices need none"
            )
        return command
    try:
        name, *options = shlex.split(given)
    except ValueError as error:
        raise ToolchainError(f"CXX = {given} is not a command: {error}") from None
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(f"there is no C++ compiler {name}, which CXX names")
    return path, *options


def _zig() -> tuple[str, ...] | None:
    package = find_spec("ziglang")
    if package is None or package.origin is None:
        return None
    # Zig enables UBSan by default, which stops at Verilator's shifts of negative values.
    return str(Path(package.origin).with_name("zig")), "c++", "-fno-sanitize=undefined"


@cache
def target_of(command: tuple[str, ...]) -> str:
    """The compiler's predefined macros for ``-march=native``, which identify compiler and
    processor.
    """
    return subprocess.run(
        [*command, "-march=native", "-E", "-dM", "-x", "c++", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def run_tool(command: Command, problem: str, environment: Mapping[str, str] | None = None) -> None:
    """Run ``command``. On failure, raise `ToolchainError` with ``problem`` and the first error
    message, and write the tool's output to a log in the cache folder.
    """
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "ZIG_GLOBAL_CACHE_DIR": str(cache_folder() / "zig"),
            **(environment or {}),
        },
        check=False,
    )
    if done.returncode:
        log = cache_folder() / "build.log"
        log.write_text(f"{' '.join(map(str, command))}\n\n{done.stdout}{done.stderr}")
        first = next((line for line in done.stderr.splitlines() if "rror" in line), "")
        raise ToolchainError(f"{problem}; the log is {log}: {first.strip()[:200]}")
