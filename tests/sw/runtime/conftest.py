from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.runtime.device import Fault, Limits, RunResult


class FakeDevice:
    """A memory that records the requested runs instead of a machine that executes them."""

    name = "fake"

    def __init__(self, config: Config, memory_bytes: int) -> None:
        self.config = config
        self.memory_bytes = memory_bytes
        self.memory = np.full(memory_bytes, 0xA5, np.uint8)
        self.runs: list[list[isa.Instruction]] = []
        self.time_limits: list[float | None] = []
        self.fault: Fault | None = None
        self.limits: Limits = {}

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        assert address >= 0
        assert address + size <= self.memory_bytes
        return self.memory[address : address + size].copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        raw = data if isinstance(data, bytes) else data.tobytes()
        assert address >= 0
        assert address + len(raw) <= self.memory_bytes
        self.memory[address : address + len(raw)] = np.frombuffer(raw, np.uint8)

    def set_limits(self, limits: Limits) -> None:
        self.limits = limits

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        raw = self.read(insn_addr, 16 * insn_count).tobytes()
        decode = isa.instruction_set(self.config).decode
        self.runs.append(
            [decode(int.from_bytes(raw[at : at + 16], "little")) for at in range(0, len(raw), 16)]
        )
        self.time_limits.append(time_limit)
        return RunResult(
            cycles=100, fault=self.fault, counters={"instructions": insn_count}, seconds=0.5
        )


@pytest.fixture
def fake_device() -> Callable[..., FakeDevice]:
    def make(config: Config = PRESETS["tiny"], memory_bytes: int = 1 << 20) -> FakeDevice:
        return FakeDevice(config, memory_bytes)

    return make
