"""Compiles a schedule to a callable function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.sw.runtime.device import Device, RunResult
from amaranth_vta.sw.runtime.runtime import Runtime
from amaranth_vta.sw.runtime.scalars import pack, unpack

from .emit.host_code import HostCode, KernelLoader, argument_bytes, issue_to_runtime
from .emit.uop_kernel import RuntimeCalls
from .environment import Environment
from .lower import Lowered, lower
from .passes.allocate_scratchpads import elements_used
from .passes.pipeline import PlacedPass
from .te.dtypes import dtype_interval
from .te.evaluation import numpy_dtype
from .te.schedule import Schedule
from .te.tensor import Tensor

# Opens a device, given the configuration and the bytes of memory that it needs.
OpenDevice = Callable[[Config, int], Device]
# Memory for the instructions and micro-ops of a call, besides its arguments.
_SPARE_BYTES = 1 << 24


class BuildError(ValueError):
    """The machine cannot run a schedule; the message says why."""


class Function:
    """A built function of ``args``, compiled from ``schedule``; ``source`` is its host code."""

    def __init__(
        self,
        schedule: Schedule,
        lowered: Lowered,
        args: Sequence[Tensor],
        name: str,
        open_device: OpenDevice | None,
    ) -> None:
        self.name = name
        self.schedule = schedule
        self.args = list(args)
        self.config = lowered.config
        self.lowered = lowered
        self._open_device = open_device
        self._runtime: Runtime | None = None
        self._lock = Lock()  # held during a call
        code = HostCode(lowered.nest)
        self.source = code.source
        self._host = code.compile(issue_to_runtime)
        self._load_kernels = KernelLoader(code)
        self.outputs = [index for index, arg in enumerate(args) if arg.op.body is not None]

    def named(self, name: str) -> Function:
        """The same function under another name."""
        other = copy(self)
        other.name = name
        other.lowered = self.lowered.named(name)
        return other

    def nbytes(self, index: int) -> int:
        """Bytes of the buffer of argument ``index``."""
        return argument_bytes(self.args[index].shape, self.args[index].dtype)

    @cached_property
    def elements(self) -> dict[Memory, int]:
        """Number of leading elements of INP and WGT that the function uses."""
        return {
            memory: elements_used(self.lowered.nest, memory.name.lower(), self.config)
            for memory in (Memory.INP, Memory.WGT)
        }

    def run_on(self, runtime: RuntimeCalls, *buffers: Any) -> None:
        """Queue the instructions of the function on ``runtime`` without waiting for them.

        ``buffers`` are device buffers, one per argument; none may overlap an output. Functions that
        share data must be separated by a runtime ``barrier``.
        """
        self._load_kernels(runtime)
        self._host(runtime, *buffers)

    def __call__(self, *arrays: npt.NDArray[Any]) -> RunResult:
        """Run on the device that the function was built with, and write outputs into their arrays.

        Returns the result of the run, with cycles if the device has a clock. Calls from several
        threads are serialized. Raises `ValueError` if an array does not have the shape or dtype of
        its argument.
        """
        if len(arrays) != len(self.args):
            raise ValueError(f"{self.name} takes {len(self.args)} arrays, not {len(arrays)}")
        for index, array in enumerate(arrays):
            self._check_array(index, array)
        with self._lock:
            return self._call(self._device_runtime(), arrays)

    def _call(self, runtime: Runtime, arrays: Sequence[npt.NDArray[Any]]) -> RunResult:
        buffers = [runtime.allocate(self.nbytes(i), arg.name) for i, arg in enumerate(self.args)]
        try:
            for index, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
                if index not in self.outputs:
                    buffer.write(pack(array, self.args[index].dtype))
            self.run_on(runtime, *buffers)
            result = runtime.synchronize()
            for index in self.outputs:
                arg = self.args[index]
                data = buffers[index].read(np.uint8, (self.nbytes(index),))
                arrays[index][...] = unpack(data, arg.dtype).reshape(arg.shape)
            return result
        finally:
            for buffer in buffers:
                buffer.free()

    def _check_array(self, index: int, array: npt.NDArray[Any]) -> None:
        arg = self.args[index]
        place = f"{self.name}: {arg.name} is {arg.dtype}{list(arg.shape)}"
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{place}, not a {type(array).__name__}")
        if array.shape != arg.shape or array.dtype != numpy_dtype(arg.dtype):
            raise ValueError(f"{place}, not {array.dtype}{list(array.shape)}")
        low, high = dtype_interval(arg.dtype)
        if index not in self.outputs and (array.min() < low or array.max() > high):
            raise ValueError(f"{place}; the array holds {array.min()} to {array.max()}")

    def _device_runtime(self) -> Runtime:
        if self._runtime is None:
            if self._open_device is None:
                raise RuntimeError(f"{self.name} was built without a device; use run_on")
            size = _SPARE_BYTES + sum(self.nbytes(i) + 64 for i in range(len(self.args)))
            self._runtime = Runtime(self._open_device(self.config, size))
        return self._runtime


def build(
    schedule: Schedule,
    args: Sequence[Tensor],
    name: str = "function",
    env: Environment | None = None,
    open_device: OpenDevice | None = None,
    passes: Sequence[PlacedPass] = (),
) -> Function:
    """Build a function of ``args``, placeholders and outputs, for the machine of ``env``.

    ``passes`` are additional passes, each with its place: ``("after fold_loops", function)``.
    Raises `BuildError` with the reason if the machine cannot run the schedule, and `LoweringError`
    as `lower` does.
    """
    lowered = lower(schedule, args, name=name, env=env, passes=passes)
    if lowered.problem is not None:
        raise BuildError(f"{name}: {lowered.problem}") from lowered.problem
    return Function(schedule, lowered, args, name, open_device)
