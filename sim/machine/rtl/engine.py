"""The machine compiled by Verilator or CXXRTL: one library with clock, memory and host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.dram import MemoryTiming, ProtocolError, memory_timing
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import MOMENT
from amaranth_vta.sim.trace.wave_file import wave_format

from .build import Progress, machine_library
from .cxxrtl import cxxrtl_library


class RtlDevice(SimulatedDevice):
    """A cycle-accurate `Device`. ``dram`` names a memory model of `sim.machine.dram`.

    ``waves`` is a file with all signals of all runs, in its `wave_format`; ``timeline`` records
    each run. ``grouped``
    as in `machine_library`. Raises `ToolchainError` if the simulator cannot be built.
    """

    name = "rtl"

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        dram: str = "ideal",
        waves: str | Path | None = None,
        timeline: Timeline | None = None,
        progress: Progress | None = None,
        grouped: bool = True,
        origin: int = 0,
    ) -> None:
        timing = memory_timing(dram)
        library = machine_library(
            config,
            traced=None if waves is None else wave_format(waves),
            watched=timeline is not None,
            grouped=grouped,
            progress=progress,
        )
        super().__init__(config, memory_bytes, timeline, origin)
        self.attach(CompiledMachine(library, self.memory, timing, waves, origin))


class CxxrtlDevice(SimulatedDevice):
    """The same machine, cycles and memory in CXXRTL, the simulator of Yosys.

    No waves. Registers and memories are undefined before reset, with values as in
    `cxxrtl_library`. Raises `ToolchainError` if the simulator cannot be built.
    """

    name = "cxxrtl"

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        dram: str = "ideal",
        timeline: Timeline | None = None,
        progress: Progress | None = None,
        origin: int = 0,
    ) -> None:
        timing = memory_timing(dram)
        library = cxxrtl_library(config, watched=timeline is not None, progress=progress)
        super().__init__(config, memory_bytes, timeline, origin)
        self.attach(CompiledMachine(library, self.memory, timing, origin=origin))


class CompiledMachine:
    """Interface to harness.cpp. ``memory`` is shared with the machine, not copied, and begins at
    address ``origin``.

    Every method raises `ProtocolError` once the machine has violated a bus protocol.
    """

    cycles_per_poll = 100_000

    def __init__(
        self,
        library: Path,
        memory: np.ndarray,
        timing: MemoryTiming,
        waves: str | Path | None = None,
        origin: int = 0,
    ) -> None:
        self._machine: int | None = None
        self._library = _load(library)
        self._memory = memory  # keeps it alive: the machine has its address
        parameters = _Timing(
            timing.latency,
            timing.shared,
            timing.reads_outstanding,
            timing.writes_outstanding,
            timing.refresh_period,
            timing.refresh_stall,
            timing.seed is not None,
            timing.seed or 0,
        )
        if waves is not None:
            Path(waves).open("wb").close()  # the library would not report an error
        path = str(waves).encode() if waves is not None else None
        self._machine = self._library.vta_open(
            ctypes.byref(parameters), memory.ctypes.data, memory.nbytes, origin, path
        )

    def write_register(self, address: int, value: int) -> None:
        self._library.vta_write_register(self._machine, address, value)
        self._check()

    def read_register(self, address: int) -> int:
        value = ctypes.c_uint32()
        self._library.vta_read_register(self._machine, address, ctypes.byref(value))
        self._check()
        return value.value

    def advance(self, most: int) -> bool:
        """Run the clock until the interrupt line is high; returns False after ``most`` cycles."""
        interrupted: bool = self._library.vta_advance(self._machine, most)
        self._check()
        return interrupted

    def reset(self) -> None:
        """Assert reset for a few cycles and drop the accesses in flight."""
        self._library.vta_reset(self._machine)

    @property
    def cycle(self) -> int:
        return int(self._library.vta_cycle(self._machine))

    @property
    def run_cycles(self) -> int:
        """Cycles from the last register write to the rise of the interrupt line."""
        rose: int = self._library.vta_rose(self._machine)
        return rose - self.run_start

    @property
    def run_start(self) -> int:
        """Cycle in which the last register write was accepted."""
        return int(self._library.vta_start(self._machine))

    @property
    def silent_cycles(self) -> int:
        """Cycles since the last transfer on the memory bus or the last register write."""
        moved: int = self._library.vta_last_moved(self._machine)
        return self.cycle - max(moved, int(self._library.vta_start(self._machine)))

    @property
    def quiet(self) -> bool:
        """Whether no memory access is in flight."""
        return bool(self._library.vta_quiet(self._machine))

    def take_moments(self) -> np.ndarray:
        """Events since the last call, as `MOMENT`; only if watched."""
        first = ctypes.c_void_p()
        count = self._library.vta_moments(self._machine, ctypes.byref(first))
        size = count * MOMENT.itemsize
        moments = np.frombuffer(ctypes.string_at(first, size) if size else b"", MOMENT)
        self._library.vta_forget_moments(self._machine)
        return moments

    def await_writes(self, addresses: Sequence[int]) -> None:
        """Record from now on when the bytes at ``addresses`` are written, in this order."""
        array = (ctypes.c_uint64 * len(addresses))(*addresses)
        self._library.vta_await_writes(self._machine, array, len(addresses))

    def writes_reached(self) -> list[int]:
        """Cycles in which memory answered the awaited writes so far."""
        first = ctypes.POINTER(ctypes.c_uint64)()
        count = self._library.vta_writes_reached(self._machine, ctypes.byref(first))
        return first[:count] if count else []

    def leave_out(self, addresses: range) -> None:
        """Make memory answer accesses to the bus words at ``addresses`` with errors; an empty range
        restores all.
        """
        self._library.vta_leave_out(self._machine, addresses.start, addresses.stop)

    @property
    def errors(self) -> int:
        """Number of read words, and of writes, that memory has answered with an error."""
        return int(self._library.vta_errors(self._machine))

    def close(self) -> None:
        """End the simulation and complete its wave file."""
        if self._machine is not None:
            self._library.vta_close(self._machine)
            self._machine = None

    def __del__(self) -> None:
        self.close()

    def _check(self) -> None:
        problem: bytes = self._library.vta_problem(self._machine)
        if problem:
            raise ProtocolError(problem.decode())


class _Timing(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "latency",
            "shared",
            "reads_outstanding",
            "writes_outstanding",
            "refresh_period",
            "refresh_stall",
            "random",
            "seed",
        )
    ]


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    machine, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
        ("open", machine, [ctypes.POINTER(_Timing), machine, u64, u64, ctypes.c_char_p]),
        ("close", None, [machine]),
        ("reset", None, [machine]),
        ("write_register", ctypes.c_bool, [machine, u32, u32]),
        ("read_register", ctypes.c_bool, [machine, u32, ctypes.POINTER(u32)]),
        ("advance", ctypes.c_bool, [machine, u64]),
        ("cycle", u64, [machine]),
        ("start", u64, [machine]),
        ("rose", u64, [machine]),
        ("last_moved", u64, [machine]),
        ("quiet", ctypes.c_bool, [machine]),
        ("await_writes", None, [machine, ctypes.POINTER(u64), u64]),
        ("writes_reached", u64, [machine, ctypes.POINTER(ctypes.POINTER(u64))]),
        ("moments", u64, [machine, ctypes.POINTER(machine)]),
        ("forget_moments", None, [machine]),
        ("leave_out", None, [machine, u64, u64]),
        ("errors", u64, [machine]),
        ("problem", ctypes.c_char_p, [machine]),
    ):
        function = getattr(library, f"vta_{name}")
        function.restype, function.argtypes = result, arguments
    return library
