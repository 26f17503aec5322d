"""STOREs to the inputs wait while LOADs write there, as on the RTL."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Finish, Forward, Instruction, Load, Memory, Store
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.programs.image import ProgramImage

PROGRAMS = 25
# Maximum relative errors of one program and of the total. On `ddr`, a word that is one cycle late
# may have to wait for a refresh, with or without forwarding.
TOLERANCE = {"ideal": (0.01, 0.001), "ddr": (0.15, 0.015)}
PADS = ("x_pad_0", "x_pad_1", "y_pad_0", "y_pad_1")


def random_transfers(config: Config, chance: random.Random) -> list[Instruction]:
    """LOADs and STOREs without tokens, so that load and store overlap completely. The final inputs
    are undefined.
    """
    program: list[Instruction] = []
    while len(program) < 25:
        kind = chance.choice((Load, Load, Load, Store, Forward, Forward, Forward))
        y_size, x_size = chance.randrange(6), chance.randrange(16)
        fields = {"y_size": y_size, "x_size": x_size, "x_stride": x_size + chance.choice((0, 0, 3))}
        if kind is Store:
            program.append(Store(dram_base=chance.randrange(8), **fields))
            continue
        if kind is Load and chance.random() < 0.2:
            program.append(Load(memory=Memory.WGT, y_size=1, x_size=x_size // 2))
            continue
        if chance.random() < 0.3:
            fields |= {name: chance.choice((0, 0, 1, 2, 5)) for name in PADS}
        height = y_size + fields.get("y_pad_0", 0) + fields.get("y_pad_1", 0)
        width = x_size + fields.get("x_pad_0", 0) + fields.get("x_pad_1", 0)
        if height * width <= config.inp.depth:
            base = chance.randrange(8)
            program.append(
                Forward(dram_base=base, **fields)
                if kind is Forward
                else Load(memory=Memory.INP, dram_base=base, **fields)
            )
    return [*program, Finish()]


def cycles(device: str, config: Config, dram: str, program: list[Instruction]) -> int:
    image = ProgramImage.assemble(config, np.zeros(16384, np.uint8), 12288, program)
    opened = open_device(device, config, image.dram.size, dram=dram)
    opened.write(0, image.dram)
    result = opened.run(image.insn_addr, image.insn_count)
    assert result.fault is None
    assert result.cycles is not None
    return result.cycles


@pytest.mark.parametrize("dram", ["ideal", "ddr"])
@pytest.mark.parametrize("name", ["tiny-extended", "pynq-extended"])
def test_random_loads_hold_stores_to_the_inputs_up(name: str, dram: str) -> None:
    config = PRESETS[name]
    of_one, of_all = TOLERANCE[dram]
    expected, estimated = [], []
    for seed in range(PROGRAMS):
        program = random_transfers(config, random.Random(seed))
        expected.append(cycles("rtl", config, dram, program))
        estimated.append(cycles("estimate", config, dram, program))
        assert estimated[-1] == pytest.approx(expected[-1], rel=of_one), seed
    assert sum(estimated) == pytest.approx(sum(expected), rel=of_all)


@pytest.mark.parametrize("name", ["tiny-extended", "pynq-extended"])
def test_a_load_without_padding_takes_cycles_from_a_store_to_the_inputs(name: str) -> None:
    config = PRESETS[name]
    load = Load(memory=Memory.INP, sram_base=64, x_size=60)
    store = Forward(x_size=60)
    for program in (
        [load, store, store],
        [store, load, store],
        [load, load, replace(store, x_size=1)],
    ):
        expected = cycles("rtl", config, "ideal", [*program, Finish()])
        assert cycles("estimate", config, "ideal", [*program, Finish()]) == expected
