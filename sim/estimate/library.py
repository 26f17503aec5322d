"""The estimate's engine, a cached C++ library: replays a stream on a machine and returns times."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.cache import hash_of, kept
from amaranth_vta.sim.machine.dram import MemoryTiming
from amaranth_vta.sim.toolchain import Command, compiler, run_tool, target_of

from .contract import MemoryContract
from .parameters import instruction_fields, parameters

_ENGINE = Path(__file__).with_name("engine")
# Without the host's vector extensions, which make this code some 5 % slower.
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden")
# Times of an instruction, in cycles from the launch; `NEVER` for events that did not happen.
# Between lacks_* and has_* it lacks a token of its previous or next neighbour.
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
_NO_RECORDS = np.empty(0, RECORD)
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


class Replay(NamedTuple):
    """Replay of a stream: ``cycles`` from the launch to the interrupt, or None if the stream would
    not complete. ``records`` is an array of `RECORD`, one per instruction, or empty if not
    requested.
    """

    cycles: int | None
    records: npt.NDArray[np.void]
    counted: bytes

    @property
    def counters(self) -> dict[str, int]:
        """The machine's counters by name, as in `hw.registers`."""
        return dict(zip(_COUNTED, np.frombuffer(self.counted, np.int64).tolist(), strict=True))


class Engine:
    """Replays streams for one machine and one memory; micro-ops stay loaded between runs.

    Raises `ToolchainError` where there is no C++ compiler.
    """

    def __init__(
        self, config: Config, dram: MemoryTiming, progress: Callable[[str], None] | None = None
    ) -> None:
        engine = _loaded(library(progress))
        self._replay, self._replay_all = engine.vta_estimate, engine.vta_estimate_all
        self._bound = engine.vta_bound
        opened = engine.vta_estimate_open(parameters(config, dram), instruction_fields(config))
        assert opened, "hw.timing has limits beyond the engine's PLACES"
        self.handle = ctypes.c_void_p(opened)
        weakref.finalize(self, engine.vta_estimate_close, self.handle)
        self._counted = (ctypes.c_int64 * len(_COUNTED))()
        # Cached, since querying an array's address takes as long as replaying ten instructions.
        self._memory: npt.NDArray[Any] | None = None  # of the latest run, and its address
        self._memory_address = 0

    def replay(
        self,
        memory: npt.NDArray[np.uint8],
        insn_addr: int,
        insn_count: int,
        with_records: bool = False,
    ) -> Replay:
        """Replays the ``insn_count`` instructions from byte ``insn_addr`` of ``memory``."""
        if insn_addr + insn_count * isa.INSTRUCTION_BYTES > memory.nbytes:
            return Replay(None, _NO_RECORDS, bytes(self._counted))
        self._use(memory)
        records, records_address = _NO_RECORDS, None
        if with_records:
            records = np.empty(insn_count, RECORD)
            records_address = records.ctypes.data
        cycles = self._replay(
            self.handle,
            self._memory_address,
            memory.nbytes,
            insn_addr,
            insn_count,
            records_address,
            self._counted,
        )
        return Replay(cycles if cycles >= 0 else None, records, bytes(self._counted))

    def replay_all(
        self, memory: npt.NDArray[np.uint8], runs: Sequence[tuple[int, int]]
    ) -> list[int | None]:
        """Cycles of several consecutive streams in ``memory``, as `replay` returns them; ``runs``
        has the first byte and the instruction count of each. Faster for short streams: a single
        library call, without counters.
        """
        self._use(memory)
        numbers = _runs(runs)
        self._replay_all(self.handle, self._memory_address, memory.nbytes, numbers, len(runs))
        return [cycles if cycles >= 0 else None for cycles in numbers[2::3]]

    def bound(
        self,
        memory: npt.NDArray[np.uint8],
        insn_addr: int,
        insn_count: int,
        contract: MemoryContract,
        retired: npt.NDArray[np.int64] | None = None,
    ) -> int | None:
        """Upper bound on the cycles of a stream with any memory that keeps ``contract``, or None if
        it would not complete. ``retired`` is filled with upper bounds on the cycles in which its
        instructions retire.
        """
        if insn_addr + insn_count * isa.INSTRUCTION_BYTES > memory.nbytes:
            return None
        self._use(memory)
        pauses = [*contract.pauses, (0, 1), (0, 1)][:2]  # of bandwidth and of refresh, or none
        promised = (ctypes.c_int64 * 9)(
            *(contract.latency, contract.response, contract.scale, contract.rate, contract.credit),
            *(number for pause in pauses for number in pause),
        )
        found = self._bound(
            self.handle,
            promised,
            self._memory_address,
            memory.nbytes,
            insn_addr,
            insn_count,
            None if retired is None else retired.ctypes.data,
        )
        return int(found) if found >= 0 else None

    def _use(self, memory: npt.NDArray[np.uint8]) -> None:
        if memory is not self._memory:
            self._memory, self._memory_address = memory, memory.ctypes.data


class SystemEngine:
    """Replays streams on several machines that share a memory; micro-ops stay loaded between runs.

    Raises `ToolchainError` where there is no C++ compiler.
    """

    # Cycles between the launches of two machines: register writes by a host.
    LAUNCH_CYCLES = 6

    def __init__(
        self,
        system: SystemConfig,
        dram: MemoryTiming,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        # Buffers of the arbiter hide turns of reads and writes, and refreshes delay whole bursts.
        own = MemoryTiming(latency=dram.latency)
        self._machines = [Engine(system.config, own, progress) for _ in range(system.machines)]
        self._timing = parameters(system.config, dram)
        self._ratio = system.bus_bytes // system.config.bus_bytes
        self._run = _loaded(library()).vta_estimate_together

    def cycles(self, replays: Sequence[Replay]) -> int:
        """Cycles from the first launch to the end of the last machine, of streams that complete."""
        ends = (replay.cycles for replay in replays)
        return max(self.LAUNCH_CYCLES * number + (end or 0) for number, end in enumerate(ends))

    def replay(
        self, memory: npt.NDArray[np.uint8], runs: Sequence[tuple[int, int]]
    ) -> list[Replay]:
        """Replays a stream on each machine, all at once; ``runs`` has the first byte in ``memory``
        and the instruction count of each.
        """
        numbers = _runs(runs)
        engines = (ctypes.c_void_p * len(runs))(
            *(machine.handle for machine in self._machines[: len(runs)])
        )
        counted = np.zeros((len(runs), len(_COUNTED)), np.int64)
        self._run(
            engines,
            self._timing,
            self._ratio,
            self.LAUNCH_CYCLES,
            memory.ctypes.data,
            memory.nbytes,
            numbers,
            len(runs),
            counted.ctypes.data,
            len(_COUNTED),
        )
        return [
            Replay(cycles if cycles >= 0 else None, _NO_RECORDS, row.tobytes())
            for cycles, row in zip(numbers[2::3], counted, strict=True)
        ]


def _runs(runs: Sequence[tuple[int, int]]) -> Any:
    """The engine's ``Run`` structures: of each stream the first byte, the instruction count, and
    room for its cycles.
    """
    numbers = (ctypes.c_int64 * (3 * len(runs)))()
    numbers[0::3] = [address for address, _ in runs]
    numbers[1::3] = [count for _, count in runs]
    return numbers


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
    engine = ctypes.CDLL(str(path))
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    engine.vta_estimate_open.restype = pointer
    engine.vta_estimate_open.argtypes = [pointer, pointer]
    engine.vta_estimate_close.restype = None
    engine.vta_estimate_close.argtypes = [pointer]
    engine.vta_estimate.restype = ctypes.c_int64
    engine.vta_estimate.argtypes = [pointer, pointer, u64, u64, u64, pointer, pointer]
    engine.vta_bound.restype = ctypes.c_int64
    engine.vta_bound.argtypes = [pointer, pointer, pointer, u64, u64, u64, pointer]
    engine.vta_estimate_together.restype = None
    engine.vta_estimate_together.argtypes = [
        *(pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer, u64, pointer, u64),
        *(pointer, u64),
    ]
    engine.vta_estimate_all.restype = None
    engine.vta_estimate_all.argtypes = [pointer, pointer, u64, pointer, u64]
    return engine
