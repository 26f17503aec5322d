"""The predicted accesses of instructions cover the accesses that the functional model performs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sim.model.machine import ClearModel
from amaranth_vta.sim.model.observers.observer import Elements, Observer
from amaranth_vta.sim.programs.random_programs import legal_program
from amaranth_vta.sw.runtime.instruction_words import instruction_words
from amaranth_vta.sw.runtime.launches.accesses import Interval, MicroOps, StreamAccesses
from amaranth_vta.sw.runtime.memory import Motion, MovingWindow
from amaranth_vta.sw.runtime.program import Recorder

# For each module, the scratchpads that it reads and another module writes.
_SHARED_READS = {Module.COMPUTE: (Memory.INP, Memory.WGT), Module.STORE: (Memory.ACC,)}


class Seen(Observer):
    """Per instruction and memory, the range of elements read, and the range of elements written."""

    def __init__(self) -> None:
        self.reads: dict[tuple[int, str], Interval] = {}
        self.writes: dict[tuple[int, str], Interval] = {}

    def read(self, index: int, memory: str, elements: Elements) -> None:
        _widen(self.reads, index, memory, elements)

    def write(self, index: int, memory: str, elements: Elements) -> None:
        _widen(self.writes, index, memory, elements)


def _widen(
    seen: dict[tuple[int, str], Interval], index: int, memory: str, elements: Elements
) -> None:
    if elements.size:
        first, end = int(elements.min()), int(elements.max()) + 1
        before = seen.get((index, memory), (first, end))
        seen[index, memory] = min(first, before[0]), max(end, before[1])


def stream_accesses(
    config: Config, memory: npt.NDArray[np.uint8], bits: list[int]
) -> StreamAccesses:
    return StreamAccesses(MicroOps(config, memory), instruction_words(bits))


@pytest.mark.parametrize("name", ["tiny-extended", "batch2"])
def test_predicted_accesses_to_shared_memory_are_exact(name: str) -> None:
    """An interval that is too short would lose a token, one that is too long would add one."""
    config, kinds = PRESETS[name], Counter[str]()
    for seed in range(6):
        image = legal_program(config, seed)
        seen, memory = Seen(), image.dram.copy()
        model = ClearModel(config, memory, "program", [seen])
        assert model.run(image.insn_addr, image.insn_count, None).fault is None
        stream = image.instruction_bits()
        known = stream_accesses(config, image.dram, stream)
        for number, bits in enumerate(stream):
            accesses = known[number]
            instruction = isa.instruction_set(config).decode(bits)
            assert accesses.module is isa.module_of(instruction)
            assert of_scratchpads(accesses.read) == {
                place: seen.reads[number, place.name]
                for place in _SHARED_READS.get(accesses.module, ())
                if (number, place.name) in seen.reads
            }, (seed, number, instruction)
            assert of_scratchpads(accesses.written) == {
                place: seen.writes[number, place.name]
                for place in (Memory.INP, Memory.WGT, Memory.ACC)
                if (number, place.name) in seen.writes
            }, (seed, number, instruction)
            if not (isinstance(instruction, isa.Load) and instruction.memory == Memory.UOP):
                moved = seen.writes if accesses.module is Module.STORE else seen.reads
                assert accesses.dram == moved.get((number, "DRAM")), (seed, number, instruction)
            kinds[type(instruction).__name__] += bool(accesses.read or accesses.written)
    expected = {"Load", "Store", "Gemm", "Alu"}
    if config.depthwise:
        expected |= {"Depthwise", "Multiply", "Forward"}
    assert {kind for kind, count in kinds.items() if count > 5} == expected


def of_scratchpads(claims: dict[Memory, Interval]) -> dict[Memory, Interval]:
    return {memory: (first, end) for memory, (first, end) in claims.items() if first < end}


def test_micro_ops_are_those_that_were_loaded_last() -> None:
    """Also if micro-ops were reloaded between two instructions with the same indices."""
    config = PRESETS["tiny"]
    instructions = isa.instruction_set(config)
    uops = [instructions.encode_uop(isa.Uop(dst, 0, 0)) for dst in (3, 9)]
    program = [
        isa.Load(memory=Memory.UOP, x_size=1),
        isa.Gemm(uop_end=1),
        isa.Load(memory=Memory.UOP, dram_base=1, x_size=1),
        isa.Gemm(uop_end=1),
    ]
    memory = np.array(uops, np.uint32).view(np.uint8)
    known = stream_accesses(config, memory, [instructions.encode(item) for item in program])
    assert [known[number].written for number in (1, 3)] == [
        {Memory.ACC: (3, 4)},
        {Memory.ACC: (9, 10)},
    ]


def test_an_instruction_relative_to_a_window_may_access_the_whole_buffer() -> None:
    config = PRESETS["tiny"]
    buffers = Recorder(config)
    other, buffer = buffers.allocate(64, "other"), buffers.allocate(256, "buffer")
    window = MovingWindow(buffer.part(64, 128, "part"), 4, "window", Motion(1, 4, 0))
    store = isa.Store(y_size=1, x_size=1, dram_base=(buffer.address + 64) // 4)
    nothing = isa.Store(y_size=0, x_size=0)
    bits = [isa.instruction_set(config).encode(item) for item in (store, store, nothing)]
    known = StreamAccesses(
        MicroOps(config, np.zeros(64, np.uint8)),
        instruction_words(bits),
        [(0, buffer), (1, window), (2, window)],
    )
    begin = buffer.address
    assert begin > other.address
    assert [known[number].dram for number in range(3)] == [
        (begin + 64, begin + 68), (begin, begin + 256), None
    ]  # fmt: skip
