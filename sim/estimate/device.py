"""The device `estimate`: results of the functional model, and estimated cycles without RTL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.registers import COUNTERS
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span
from amaranth_vta.sw.runtime.counters import completed
from amaranth_vta.sw.runtime.device import Limits, RunResult

from .contract import MemoryContract
from .library import NEVER, Engine, Replay

# A stream has the same bursts with each memory.
_OF_TIME = {item.name for item in COUNTERS if item.time and not item.name.endswith("_bursts")}


class EstimateDevice:
    """A `Device` with estimated cycles: replays each stream with the dependences and latencies of
    its instructions, at the level of bursts and whole instructions.

    Memory contents and faults are those of the functional model, which also runs the stream; a run
    with a fault has no cycles. With ``timing_only`` the model runs only streams that do not
    complete, to find the fault; for all others, memory is unchanged and faults go unnoticed.

    ``dram`` is ``ideal`` or ``ddr``. ``timeline`` records each run. Raises `ToolchainError` without
    a C++ compiler.
    """

    name = "estimate"
    _is_estimate = True

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        dram: str = "ideal",
        timing_only: bool = False,
        timeline: Timeline | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self._engine = Engine(config, memory_timing(dram), progress)
        # With ``timing_only`` the model runs almost nothing, so it need not be compiled.
        self._model = FunctionalDevice(config, memory_bytes, clear=timing_only, progress=progress)
        self.memory_bytes = self._model.memory_bytes
        self._timing_only = timing_only
        self._timeline = timeline

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes; raises `ValueError` beyond the memory."""
        return self._model.read(address, size)

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Stores the bytes of ``data``; raises `ValueError` beyond the memory."""
        self._model.write(address, data)

    def set_limits(self, limits: Limits) -> None:
        """As `Device.set_limits`."""
        self._model.set_limits(limits)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run ``insn_count`` instructions from byte ``insn_addr``; ``reached`` of the result has
        the cycles in which the instructions with indices ``watched`` were done.

        Raises `ValueError` if one of the two is negative. ``time_limit`` is in seconds, of the
        functional model.
        """
        started = time.perf_counter()
        replay = None
        if insn_addr >= 0 and insn_count >= 0:
            with_records = bool(watched) or self._timeline is not None
            replay = self._evaluate(insn_addr, insn_count, with_records)
        if replay is not None and replay.cycles is not None and self._timing_only:
            seconds = time.perf_counter() - started
            result = RunResult(cycles=None, seconds=seconds)
        else:
            # Also reports why a stream does not complete.
            result = self._model.run(insn_addr, insn_count, time_limit)
            result.seconds = time.perf_counter() - started
        if result.fault is None and replay is not None and replay.cycles is not None:
            counted = completed(self.config, replay.counters)
            result.cycles, result.estimated = replay.cycles, self._is_estimate
            result.counters = {"cycles": replay.cycles, **self._known(counted)}
            if watched:
                result.reached = tuple(replay.records["done"][list(watched)].tolist())
            self._show(replay, insn_addr, insn_count)
        return result

    def _evaluate(self, insn_addr: int, insn_count: int, with_records: bool) -> Replay:
        return self._engine.replay(self._model.memory, insn_addr, insn_count, with_records)

    def _known(self, counted: dict[str, int]) -> dict[str, int]:
        """The counters of a replay that a run has too."""
        return counted

    def _show(self, replay: Replay, insn_addr: int, insn_count: int) -> None:
        if self._timeline is None:
            return
        assert replay.cycles is not None
        words = self._model.instruction_words(insn_addr, insn_count)
        shown = _spans(self.config, words, replay)
        self._timeline.add(self.config, words, shown, replay.cycles, estimated=True)


class BoundDevice(EstimateDevice):
    """A `Device` whose cycles are an upper bound for every memory that keeps ``contract``:
    docs/bounds.md has the argument. It counts work, but no other cycles.

    In all else as `EstimateDevice`.
    """

    name = "bound"
    _is_estimate = False

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        contract: MemoryContract,
        timing_only: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config, memory_bytes, timing_only=timing_only, progress=progress)
        self.contract = contract

    def _evaluate(self, insn_addr: int, insn_count: int, with_records: bool) -> Replay:
        replay = super()._evaluate(insn_addr, insn_count, with_records)
        if replay.cycles is None:
            return replay
        retired = np.empty(insn_count, np.int64)
        cycles = self._engine.bound(
            self._model.memory, insn_addr, insn_count, self.contract, retired
        )
        if with_records:
            replay.records["done"] = retired
        return replay._replace(cycles=cycles)

    def _known(self, counted: dict[str, int]) -> dict[str, int]:
        return {name: count for name, count in counted.items() if name not in _OF_TIME}


def _spans(config: Config, words: Sequence[int], replay: Replay) -> Iterator[Span]:
    """Spans of a stream of 128-bit ``words`` that completed, as `sim.trace.timeline.spans` returns
    them for simulated machines.
    """
    decode = isa.instruction_set(config).decode
    free: dict[str, int] = {}
    for index, (word, record) in enumerate(zip(words, replay.records, strict=True)):
        handed, issued, begun, done = (
            int(record[name]) for name in ("handed", "issued", "begun", "done")
        )
        yield Span("fetch", index, free.get("fetch", 0), handed + 1, free.get("fetch", 0))
        free["fetch"] = handed + 1
        instruction = decode(word)
        module = isa.module_of(instruction)
        lane = _lane(module, instruction)
        for side, neighbour in isa.neighbours(module).items():
            since, until = int(record[f"lacks_{side}"]), int(record[f"has_{side}"])
            if since != NEVER:
                yield Span(lane, index, since, until, since, neighbour.name.lower())
        yield Span(lane, index, max(begun, free.get(lane, 0)), done, issued)
        free[lane] = done


def _lane(module: isa.Module, instruction: isa.Instruction) -> str:
    """Lane of an instruction, one of `sim.trace.timeline.LANES`."""
    if module is not isa.Module.COMPUTE:
        return module.name.lower()
    match instruction:
        case isa.Gemm():
            return "gemm"
        case isa.Alu():
            return "alu"
        case isa.Finish():
            return "compute"
    return "compute loads"
