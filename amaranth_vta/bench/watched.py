"""A device wrapper that counts the work of each program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.device import Device, Limits, RunResult
from amaranth_vta.sw.runtime.work import Work, work


class WatchedDevice:
    """Wraps ``device``; `work` is the work of the latest run."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.name = device.name
        self.config = device.config
        self.memory_bytes = device.memory_bytes
        self.work: Work = work(device.config, np.empty((0, 2), np.uint64))

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        return self._device.read(address, size)

    def write(self, address: int, data: npt.NDArray[Any] | bytes) -> None:
        self._device.write(address, data)

    def set_limits(self, limits: Limits) -> None:
        self._device.set_limits(limits)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        raw = self.read(insn_addr, insn_count * isa.INSTRUCTION_BYTES)
        self.work = work(self.config, raw.view("<u8").reshape(-1, 2))
        return self._device.run(insn_addr, insn_count, time_limit, watched)
