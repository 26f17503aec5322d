"""Instruction streams recorded in a file, with their cycle counts in RTL simulation.

Only the memory that a replay reads is stored: instructions and the micro-ops that they load. So the
file of a whole network is small, and does not change with the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config

_UNIT = 64  # granularity in bytes of the stored memory


@dataclass(frozen=True)
class RecordedRun:
    """``count`` instructions at byte ``address``, which took ``cycles`` in RTL simulation."""

    layer: str
    address: int
    count: int
    cycles: int


@dataclass(frozen=True)
class RecordedStreams:
    """Runs of one machine on one memory, with the DRAM timing named ``dram``."""

    config: Config
    dram: str
    memory: npt.NDArray[np.uint8]
    runs: tuple[RecordedRun, ...]


def save_streams(
    path: Path,
    config: Config,
    dram: str,
    memory: npt.NDArray[np.uint8],
    runs: Sequence[RecordedRun],
) -> None:
    """Write a file for `load_streams`."""
    used = np.zeros(memory.size // _UNIT, bool)
    for run in runs:
        _mark(used, run.address, run.count * isa.INSTRUCTION_BYTES)
        for base, size in _micro_ops(config, memory, run):
            _mark(used, base, size)
    places = np.flatnonzero(used)
    np.savez_compressed(
        path,
        config=np.array(config.to_json()),
        dram=np.array(dram),
        memory_bytes=np.array(memory.size),
        places=places,
        blocks=memory[: used.size * _UNIT].reshape(-1, _UNIT)[places],
        layers=np.array([run.layer for run in runs]),
        runs=np.array([(run.address, run.count, run.cycles) for run in runs]),
    )


def load_streams(path: Path) -> RecordedStreams:
    """Read a file of `save_streams`; bytes that were not stored are zero."""
    with np.load(path, allow_pickle=False) as file:
        memory = np.zeros(int(file["memory_bytes"]), np.uint8)
        memory[: memory.size // _UNIT * _UNIT].reshape(-1, _UNIT)[file["places"]] = file["blocks"]
        runs = zip(file["layers"].tolist(), file["runs"].tolist(), strict=True)
        return RecordedStreams(
            Config.from_json(str(file["config"])),
            str(file["dram"]),
            memory,
            tuple(RecordedRun(layer, *numbers) for layer, numbers in runs),
        )


def _mark(used: npt.NDArray[np.bool_], address: int, size: int) -> None:
    used[address // _UNIT : -(-(address + size) // _UNIT)] = True


def _micro_ops(
    config: Config, memory: npt.NDArray[np.uint8], run: RecordedRun
) -> list[tuple[int, int]]:
    """Memory ranges of the micro-ops of a run: (first byte, bytes) per LOAD."""
    instructions = isa.instruction_set(config)
    found = []
    for number in range(run.count):
        at = run.address + number * isa.INSTRUCTION_BYTES
        word = int.from_bytes(memory[at : at + isa.INSTRUCTION_BYTES].tobytes(), "little")
        instruction = instructions.decode(word)
        if isinstance(instruction, isa.Load) and instruction.memory == isa.Memory.UOP:
            rows = instruction.x_stride * max(instruction.y_size - 1, 0) + instruction.x_size
            found.append((4 * instruction.dram_base, 4 * rows))
    return found
