"""The scrubbing program leaves zeros in all scratchpads."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Memory
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.programs.builder import probe
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sw.runtime.device import Device
from amaranth_vta.sw.runtime.scrub import scrub_stream

MEMORY_BYTES = 1 << 20


def shown(device: Device, config: Config) -> bytes:
    """The bytes that a program stores to expose all inputs, weights and accumulators that random
    programs use.
    """
    everywhere = {
        memory: np.ones(config.memory(memory).depth, bool)
        for memory in (Memory.INP, Memory.WGT, Memory.ACC)
    }
    image = probe(config, everywhere, seed=1)
    device.write(0, image.dram)
    assert device.run(image.insn_addr, image.insn_count).fault is None
    return device.read(0, image.dram.size).tobytes()


def scrub(device: Device) -> None:
    stream = scrub_stream(device.config)
    device.write(0, stream)
    result = device.run(0, len(stream))
    assert result.fault is None
    assert not any(result.tokens_left.values())


@pytest.mark.parametrize(
    ("preset", "name"),
    [*((preset, "functional") for preset in PRESETS), ("tiny", "rtl"), ("tiny-extended", "rtl")],
)
def test_a_program_leaves_nothing_to_the_next(preset: str, name: str) -> None:
    config = PRESETS[preset]
    found = []
    for seed in (1, 2):
        device = open_device(name, config, MEMORY_BYTES)
        image = random_program(config, seed=seed, length=60)
        device.write(0, image.dram)
        device.run(image.insn_addr, image.insn_count)
        before = shown(device, config)
        scrub(device)
        found.append((before, shown(device, config)))
    (one, scrubbed), (other, scrubbed_too) = found
    assert one != other
    assert scrubbed == scrubbed_too


@pytest.mark.parametrize("preset", PRESETS)
def test_every_element_of_every_scratchpad_is_written(preset: str) -> None:
    config = PRESETS[preset]
    instructions, written = isa.instruction_set(config), dict.fromkeys(Memory, 0)
    for low, high in scrub_stream(config).tolist():
        instruction = instructions.decode(high << isa.WORD_WIDTH | low)
        if isinstance(instruction, isa.Load) and instruction.elements:
            memory = Memory(instruction.memory)
            assert (instruction.sram_base, instruction.y_size) == (written[memory], 0)
            written[memory] += instruction.elements
    assert {memory: count for memory, count in written.items() if count} == {
        memory: config.memory(memory).depth
        for memory in (Memory.UOP, Memory.INP, Memory.WGT, Memory.ACC)
    }
