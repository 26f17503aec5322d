"""A skipped module only passes its tokens on; the other modules work as before."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.devices import PARTS, open_device
from amaranth_vta.sim.machine.skipping import without_part
from amaranth_vta.sim.programs.random_programs import random_program

UNITS = {"gemm": isa.Gemm, "alu": isa.Alu}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["tiny-extended", "batch2"])
def test_only_instructions_of_the_part_are_changed_and_they_keep_their_tokens(
    name: str, part: str
) -> None:
    config = PRESETS[name]
    image = random_program(config, 3, length=60)
    instructions = isa.instruction_set(config)
    before = image.instruction_bits()
    words = np.array([[bits & (1 << 64) - 1, bits >> 64] for bits in before], np.uint64)
    after = [int(low) | int(high) << 64 for low, high in without_part(config, words, part)]
    changed = 0
    for old_bits, new_bits in zip(before, after, strict=True):
        old, new = instructions.decode(old_bits), instructions.decode(new_bits)
        assert instructions.problem(new_bits) is None
        for flag in ("pop_prev", "pop_next", "push_prev", "push_next"):
            assert getattr(old, flag) == getattr(new, flag)
        if isinstance(new, isa.Alu | isa.Gemm) and isinstance(new, UNITS.get(part, ())):
            assert new.uops == 0
        elif isinstance(new, isa.Store | isa.Forward) and part == "store":
            assert new.elements == 0
        elif isa.module_of(old) is isa.Module.LOAD and part == "load":
            # An instruction that sets a padding value stays, since it moves nothing.
            assert isinstance(new, isa.Load | isa.SetPadding)
            assert new.elements == 0
        else:
            assert old_bits == new_bits
            continue
        changed += old_bits != new_bits
    assert changed


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("device", ["functional", "rtl"])
def test_a_skipped_part_does_no_work_and_the_program_stays_in_memory(
    device: str, part: str
) -> None:
    config = PRESETS["tiny"]
    image = random_program(config, 3, length=60)
    counters = []
    for skip in (None, part):
        machine = open_device(device, config, image.dram.size, skip=skip)
        machine.write(0, image.dram)
        result = machine.run(image.insn_addr, image.insn_count)
        assert result.fault is None
        program = slice(image.insn_addr, image.insn_addr + 16 * image.insn_count)
        assert np.array_equal(machine.read(0, image.dram.size)[program], image.dram[program])
        counters.append(result.counters)
    whole, rest = counters
    done = {
        "load": ("inp_elements", "wgt_elements"),
        "gemm": ("gemm_uops",),
        "alu": ("alu_uops",),
        "store": ("out_elements",),
    }
    for name, count in rest.items():
        if name.endswith(("_instructions", "_uops", "_elements")):
            assert count == (0 if name in done[part] else whole[name]), name
    assert any(whole[name] for name in done[part])


def test_a_program_beyond_the_memory_is_still_a_fault() -> None:
    machine = open_device("functional", PRESETS["tiny"], 64, skip="load")
    result = machine.run(48, 9)
    assert result.fault is not None
    assert result.fault.cause in ("bus_error", "bad_stream")
