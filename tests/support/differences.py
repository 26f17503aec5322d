"""Compares two forms of the same logic cycle by cycle, in Verilator."""

from __future__ import annotations

import ctypes
from pathlib import Path

from amaranth_vta.sim.machine.rtl.build import Harness, design_library


def differences(verilog: str, harness: Path, count: int, flags: tuple[str, ...] = ()) -> int:
    """Simulate module ``vta`` of ``verilog`` with ``count`` random steps of ``harness``, a C++ file
    with a function ``differences(seed, count)``; return its result, a bit per form that differed.
    """
    library = ctypes.CDLL(str(design_library(verilog, Harness(harness), flags)))
    library.differences.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
    library.differences.restype = ctypes.c_uint32
    return int(library.differences(1, count))
