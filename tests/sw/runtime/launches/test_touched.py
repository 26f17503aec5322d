"""What instructions are said to touch covers what the functional model sees them touch."""

from __future__ import annotations

from collections import Counter

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sim.model.machine import ClearModel
from amaranth_vta.sim.model.observers.observer import Elements, Observer
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program
from amaranth_vta.sw.runtime.instruction_words import instruction_words
from amaranth_vta.sw.runtime.launches.touched import Followed, Interval, MicroOps

# For each module, what it reads of scratchpads that another module writes, and the reverse.
_SHARED_READS = {Module.COMPUTE: ("INP", "WGT"), Module.STORE: ("ACC",)}


class Seen(Observer):
    """Per instruction and memory, the first element that it read, and wrote, and the last."""

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


def followed(image: ProgramImage) -> Followed:
    return Followed(MicroOps(image.config, image.dram), instruction_words(image.instruction_bits()))


@pytest.mark.parametrize("name", ["tiny-extended", "batch2"])
def test_all_that_is_touched_of_what_modules_share_is_known(name: str) -> None:
    """And no more than that: a claim too wide costs tokens."""
    config, tight = PRESETS[name], Counter[str]()
    for seed in range(6):
        image = legal_program(config, seed)
        seen, memory = Seen(), image.dram.copy()
        model = ClearModel(config, memory, "program", [seen])
        assert model.run(image.insn_addr, image.insn_count, None).fault is None
        known = followed(image)
        for number, bits in enumerate(image.instruction_bits()):
            touched = known[number]
            instruction = isa.instruction_set(config).decode(bits)
            assert touched.module is isa.module_of(instruction)
            shared = _SHARED_READS.get(touched.module, ())
            for names, claims, found in (
                (shared, touched.read, seen.reads),
                (("INP", "WGT", "ACC"), touched.written, seen.writes),
            ):
                for memory_name in names:
                    place = Memory[memory_name]
                    if (number, memory_name) not in found:
                        continue
                    first, end = found[number, memory_name]
                    claim = claims.get(place)
                    assert claim is not None, (seed, number, instruction)
                    assert claim[0] <= first, (seed, number, instruction)
                    assert end <= claim[1], (seed, number, instruction)
                    tight[type(instruction).__name__] += claim == (first, end)
            moved = seen.writes if touched.module is Module.STORE else seen.reads
            if (number, "DRAM") in moved and touched.dram is not None:
                assert touched.dram == moved[number, "DRAM"], (seed, number, instruction)
            else:
                uops = isinstance(instruction, isa.Load) and instruction.memory == Memory.UOP
                assert uops or (number, "DRAM") not in moved, (seed, number, instruction)
    kinds = {"Load", "Store", "Gemm", "Alu"}
    if config.depthwise:
        kinds |= {"Depthwise", "Multiply", "Forward"}
    assert {kind for kind, count in tight.items() if count > 5} >= kinds
