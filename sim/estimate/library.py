"""The engine, compiled once and kept in the cache: a stream and its machine in, times out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import hash_of, kept
from amaranth_vta.sim.machine.dram import MemoryTiming
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of

from .parameters import instruction_fields, parameters

_ENGINE = Path(__file__).with_name("engine")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-fvisibility=hidden")
# Times of an instruction, in cycles from the launch; `NEVER` for what did not happen. From lacks_*
# to has_* it lacks a token of its previous or next neighbour.
RECORD = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("handed", "issued", "begun", "done", "retired"),
            *("lacks_prev", "has_prev", "lacks_next", "has_next"),
        )
    ]
)
NEVER = 1 << 60
# Counters of hw.registers, in the order of engine/counters.hpp.
_COUNTED = (
    *(f"{unit}_busy" for unit in ("load", "compute_load", "gemm", "alu", "store")),
    "load_and_gemm_busy",
    *("load_waits_for_compute", "compute_waits_for_load"),
    *("compute_waits_for_store", "store_waits_for_compute"),
    *("fetch_waits_for_memory", "fetch_waits_for_modules"),
    *(f"{module}_waits_for_memory" for module in ("load", "compute", "store")),
    *(f"{unit}_instructions" for unit in ("load", "compute_load", "gemm", "alu", "store")),
    *("gemm_uops", "alu_uops"),
    *(f"{memory}_elements" for memory in ("uop", "wgt", "inp", "acc", "out", "acc_8bit")),
    *("read_bursts", "read_latency", "write_bursts", "write_latency"),
)


@dataclass(frozen=True)
class Replay:
    """What a stream takes: ``cycles`` from the launch to the interrupt, or None if the machine
    would not come to the end of it. ``records`` is an array of `RECORD`, one per instruction."""

    cycles: int | None
    records: npt.NDArray[np.void]
    counters: dict[str, int]


class Engine:
    """Replays streams for one machine and one memory; micro-ops stay loaded between runs.

    Raises `ToolchainError` where there is no C++ compiler.
    """

    def __init__(
        self, config: Config, dram: MemoryTiming, progress: Callable[[str], None] | None = None
    ) -> None:
        self._replay = _function(progress)
        self._parameters = parameters(config, dram)
        self._fields = instruction_fields(config)
        self._uops = np.zeros(config.uop.depth, np.uint32)
        self._counted = np.zeros(len(_COUNTED), np.int64)
        # Asking an array for its address takes as long as replaying ten instructions.
        self._addresses = self._uops.ctypes.data, self._counted.ctypes.data
        self._memory: npt.NDArray[Any] | None = None  # of the latest run, and its address
        self._memory_address = 0

    def replay(self, memory: npt.NDArray[np.uint8], insn_addr: int, insn_count: int) -> Replay:
        """Replays the ``insn_count`` instructions from byte ``insn_addr`` of ``memory``."""
        if insn_addr + insn_count * isa.INSTRUCTION_BYTES > memory.nbytes:
            return Replay(None, np.empty(0, RECORD), {})
        if memory is not self._memory:
            self._memory, self._memory_address = memory, memory.ctypes.data
        records = (ctypes.c_char * (insn_count * RECORD.itemsize))()
        uops, counted = self._addresses
        cycles = self._replay(
            self._parameters,
            self._fields,
            self._memory_address,
            memory.nbytes,
            insn_addr,
            insn_count,
            uops,
            records,
            counted,
        )
        return Replay(
            cycles if cycles >= 0 else None,
            np.frombuffer(memoryview(records), RECORD),
            dict(zip(_COUNTED, self._counted.tolist(), strict=True)),
        )


def library(progress: Callable[[str], None] | None = None) -> Path:
    """The shared library of the engine."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(_ENGINE.iterdir())]
    key = hash_of(*sources, *_FLAGS, *compiler(), target_of(compiler()))

    def build(target: Path) -> None:
        if progress is not None:
            progress("compiling the estimate")
        command: Command = (*compiler(), *_FLAGS, "-o", target, _ENGINE / "estimate.cpp")
        run_tool(command, "the estimate cannot be compiled")

    return kept("estimate", f"{key}.so", build)


@cache
def _loaded(path: Path) -> Any:
    function = ctypes.CDLL(str(path)).vta_estimate
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    function.restype = ctypes.c_int64
    function.argtypes = [pointer, pointer, pointer, u64, u64, u64, pointer, pointer, pointer]
    return function


def _function(progress: Callable[[str], None] | None) -> Any:
    return _loaded(library(progress))
