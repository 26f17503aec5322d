"""The compiled functional model."""

from __future__ import annotations

import ctypes
import logging
import time
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sim.model.machine import Outcome
from amaranth_vta.sim.model.scratchpad import initial_bytes
from amaranth_vta.sw.runtime.device import Fault, Limits, limit_of

from .build import Progress, native_library
from .definitions import COUNTED, Parameters, Report, parameters_of

# Python can handle interrupts between two calls of the library.
_SECONDS_PER_CALL = 0.2


class Vectors(IntEnum):
    """Vector extensions for which the library has code, numbered as in library.cpp; the fastest
    last.
    """

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2


class NativeModel:
    """Runs programs in C++, in program order, with the same memory contents and reports as
    `machine.ClearModel`.

    ``memory`` is a 1-D uint8 array, shared with the host, that begins at address ``origin``.
    ``vectors`` defaults to the fastest that the processor has. Raises `ToolchainError` if the
    library cannot be built.
    """

    def __init__(
        self,
        config: Config,
        memory: npt.NDArray[np.uint8],
        vectors: Vectors | None = None,
        origin: int = 0,
    ) -> None:
        self._model: int | None = None
        library = library_or_reason()
        if isinstance(library, str):
            raise ToolchainError(library)
        if vectors is None:
            vectors = available_vectors()[-1]
        self.config = config
        self._library = library
        self._memory = memory  # keeps it alive: the library has its address
        self._origin = origin
        parameters = parameters_of(config)
        self._model = library.vta_open(
            ctypes.byref(parameters), vectors, memory.ctypes.data, memory.size, origin
        )
        for scratchpad, contents in initial_bytes(config).items():
            library.vta_fill(self._model, isa.Memory[scratchpad.upper()], contents.ctypes.data)

    def set_limits(self, limits: Limits) -> None:
        """As `Device.set_limits`."""
        values = (ctypes.c_uint64 * (max(isa.Memory) + 1))()
        for memory in isa.Memory:
            values[memory] = limit_of(limits, memory)
        self._library.vta_limit(self._model, values)

    def run(self, insn_addr: int, insn_count: int, time_limit: float | None) -> Outcome:
        """Run ``insn_count`` instructions from byte ``insn_addr``; the limit is in seconds."""
        deadline = None if time_limit is None else time.monotonic() + time_limit
        # Clamped: all addresses beyond the memory are equivalent, and so are all lengths beyond it.
        most = self._memory.size // isa.INSTRUCTION_BYTES + 1
        end = self._origin + self._memory.size
        address = min(insn_addr, end + insn_addr % isa.INSTRUCTION_BYTES)
        report = Report()
        self._library.vta_begin(self._model, address, min(insn_count, most + 1))
        while True:
            left = _SECONDS_PER_CALL if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self._library.vta_time_out(self._model, ctypes.byref(report))
                break
            seconds = min(left, _SECONDS_PER_CALL)
            if self._library.vta_advance(self._model, seconds, ctypes.byref(report)):
                break
        return _outcome(report)

    @property
    def accumulators(self) -> npt.NDArray[np.int32]:
        """A copy of the accumulator scratchpad, (depth, BATCH, BLOCK_OUT)."""
        first = self._library.vta_accumulators(self._model)
        acc = self.config.acc
        flat = np.ctypeslib.as_array(first, (acc.depth * acc.rows * acc.columns,))
        return flat.reshape(acc.depth, acc.rows, acc.columns).copy()

    def __del__(self) -> None:
        if self._model is not None:
            self._library.vta_close(self._model)
            self._model = None


def available_vectors() -> list[Vectors]:
    """`Vectors` that the processor supports; raises `ToolchainError` without the library."""
    library = library_or_reason()
    if isinstance(library, str):
        raise ToolchainError(library)
    return [vectors for vectors in Vectors if library.vta_is_available(vectors)]


def library_or_reason(progress: Progress | None = None) -> ctypes.CDLL | str:
    """The library, built if needed, or the reason why there is none, which is logged once."""
    if not _loaded:
        try:
            _loaded.append(_load(str(native_library(progress))))
        except (ToolchainError, OSError) as error:
            _loaded.append(str(error))
            logging.getLogger(__name__).warning(
                "the functional model runs on NumPy, which is much slower: %s", error
            )
    return _loaded[0]


# The result of `library_or_reason`, once it was called.
_loaded: list[ctypes.CDLL | str] = []


def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    report = ctypes.POINTER(Report)
    for name, result, arguments in (
        ("is_available", ctypes.c_uint32, [u32]),
        ("open", pointer, [ctypes.POINTER(Parameters), u32, pointer, u64, u64]),
        ("close", None, [pointer]),
        ("fill", None, [pointer, u32, pointer]),
        ("limit", None, [pointer, ctypes.POINTER(ctypes.c_uint64)]),
        ("begin", None, [pointer, u64, u64]),
        ("advance", u32, [pointer, ctypes.c_double, report]),
        ("time_out", None, [pointer, report]),
        ("accumulators", ctypes.POINTER(ctypes.c_int32), [pointer]),
    ):
        function = getattr(library, f"vta_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _outcome(report: Report) -> Outcome:
    fault = None
    if report.cause:
        fault = Fault(
            isa.Module(report.module).name.lower(),
            report.instruction,
            isa.Cause(report.cause).name.lower(),
        )
    return Outcome(
        fault,
        dict(zip(map(isa.queue_name, isa.TOKEN_QUEUES), report.tokens, strict=True)),
        dict(zip(COUNTED, report.counters, strict=True)),
    )
