"""Exported networks as libraries, and machines that they reach through a `vta_port`."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from amaranth_vta.export.network import export
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.registers import IDENTITY, REGISTERS
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

# Where the network's memory begins; it may be anywhere.
PLACE = 0x3000
DONE, WRONG_MACHINE, FAULT, TIMEOUT, WRONG_INDEX = range(5)
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
    return port_to(device.machine, device.memory, PLACE, most_polls, wait)


def port_to(
    machine: Any,
    memory: Any,
    place: int,
    most_polls: int = 0,
    wait: Callable[[Any], object] | None = None,
) -> Port:
    return Port(
        None,
        READ(lambda _, offset: machine.read_register(offset)),
        WRITE(lambda _, offset, value: machine.write_register(offset, value)),
        memory.ctypes.data + place,
        place,
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


class ModelMachine:
    """The functional model with the registers that exported code uses, and ``memory`` at address
    0. A run takes no time: it is done when CONTROL was written."""

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self._device = FunctionalDevice(config, memory_bytes)
        self._values = {REGISTERS["IDENTITY"].offset: IDENTITY}
        for item in fields(config):
            self._values[REGISTERS[item.name.upper()].offset] = int(getattr(config, item.name))
        self.launches = 0

    @property
    def memory(self) -> Any:
        return self._device.memory

    def read_register(self, offset: int) -> int:
        return self._values.get(offset, 0)

    def write_register(self, offset: int, value: int) -> None:
        self._values[offset] = value
        if offset == REGISTERS["CONTROL"].offset:
            self._run()

    def _run(self) -> None:
        of = {name: self._values.get(item.offset, 0) for name, item in REGISTERS.items()}
        assert not any(of[f"{memory.name}_BASE"] for memory in isa.LIMITED)
        self._device.set_limits({memory: of[f"{memory.name}_LIMIT"] for memory in isa.LIMITED})
        fault = self._device.run(of["INSN_ADDR"], of["INSN_COUNT"]).fault
        status = REGISTERS["STATUS"]
        bits = ["done", *(["fault"] if fault else [])]
        self._values[status.offset] = sum(1 << status.part(bit).offset for bit in bits)
        self.launches += 1


class ExportedNetwork:
    """The network in ``folder``, whose files begin with ``name``, in the memory of a functional
    model of ``config``."""

    def __init__(self, folder: Path, name: str, config: Config) -> None:
        sources = [folder / f"{name}.c", folder / "vta_runtime.c"]
        self._library, self._name = compile_c(sources, folder / f"{name}.so", "-O2"), name
        self.machine = ModelMachine(config, memory_bytes(folder / f"{name}.h"))
        self._port = port_to(self.machine, self.machine.memory, 0)
        self._call("init", None)

    def run(self, inputs: Sequence[Any], outputs: Sequence[TensorType]) -> list[Any]:
        """The results for ``inputs``, as arrays of the types ``outputs``."""
        given = [np.ascontiguousarray(item) for item in inputs]
        found = [np.zeros(item.shape or (), item.dtype) for item in outputs]
        self._call("run", *map(pointer, [*given, *found]))
        return found

    def reset(self) -> None:
        getattr(self._library, f"{self._name}_reset")(ctypes.byref(self._port))

    def _call(self, function: str, *arguments: Any) -> None:
        called = getattr(self._library, f"{self._name}_{function}")
        assert called(ctypes.byref(self._port), *arguments) == DONE


def exported(
    model: Path | bytes, config: str, folder: Path
) -> tuple[NetworkProgram, ExportedNetwork]:
    """``model``, compiled for ``config``, and its export, whose files are in a new folder in
    ``folder``."""
    folder = Path(mkdtemp(dir=folder))
    program = compile_network(model, config).program
    for file, data in export(program, "net").items():
        (folder / file).write_bytes(data)
    return program, ExportedNetwork(folder, "net", PRESETS[config])
