"""Exported networks as libraries, and machines that they reach through a `vta_port`."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.machine.rtl.engine import RtlDevice

# Where the network's memory begins; it may be anywhere.
PLACE = 0x3000
DONE, WRONG_MACHINE, FAULT, TIMEOUT = range(4)
READ = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
WRITE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32)
CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Options under which exported sources and examples compile without a warning.
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wshadow", "-Werror")
STANDARDS = {"c99": ("-x", "c", "-std=c99"), "c++": ("-x", "c++", "-std=c++17")}
ZIG = (sys.executable, "-m", "ziglang", "cc")
RISCV = ("-target", "riscv32-freestanding-none", "-mcpu=generic_rv32+m")


class Port(ctypes.Structure):
    """`vta_port`."""

    _fields_ = [
        ("context", ctypes.c_void_p),
        ("read_register", READ),
        ("write_register", WRITE),
        ("memory", ctypes.c_void_p),
        ("address", ctypes.c_uint64),
        ("flush", CALL),
        ("invalidate", CALL),
        ("most_polls", ctypes.c_uint32),
        ("wait_for_interrupt", CALL),
    ]


def memory_bytes(header: Path) -> int:
    """The size of the network's memory that ``header`` states."""
    size = re.search(r"#define \w+_MEMORY_BYTES (\d+)", header.read_text())
    assert size is not None
    return int(size[1])


def device_for(header: Path, config: str = "tiny") -> Any:
    """The RTL with the memory that ``header`` states."""
    return RtlDevice(PRESETS[config], PLACE + memory_bytes(header))


def port_of(device: Any, most_polls: int = 0, wait: Callable[[Any], object] | None = None) -> Port:
    machine = device.machine
    return Port(
        None,
        READ(lambda _, offset: machine.read_register(offset)),
        WRITE(lambda _, offset, value: machine.write_register(offset, value)),
        device.memory.ctypes.data + PLACE,
        PLACE,
        CALL(),
        CALL(),
        most_polls,
        CALL(wait) if wait else CALL(),
    )


def compile_c(sources: Sequence[Path], library: Path, *options: str) -> ctypes.CDLL:
    """Compiles ``sources``, without a warning in C and C++, to a library."""
    files = [str(source) for source in sources]
    common = ["gcc", *STRICT, *options]
    subprocess.run([*common, *STANDARDS["c++"], "-fsyntax-only", *files], check=True)
    made = ["-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*common, *STANDARDS["c99"], *files, *made], check=True)
    return ctypes.CDLL(str(library))


def pointer(array: Any) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)
