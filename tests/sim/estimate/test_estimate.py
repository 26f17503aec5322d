"""The estimate equals the cycles of the RTL, as in tests/golden/cycles.json."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Finish, Forward, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.measurements.layers import measure_layers
from amaranth_vta.measurements.rates import KINDS, measure_rates
from amaranth_vta.measurements.rounds import measure_rounds
from amaranth_vta.sim.devices import DeviceError, RunOptions, open_device
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program
from amaranth_vta.sw.runtime.device import Fault, RunResult
from tests.support.corners import CORNERS

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "cycles.json").read_text("utf-8"))
# Maximum error relative to a layer's cycles.
TOLERANCE = 0.002


@pytest.mark.parametrize("dram", ["ideal", "ddr"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
def test_rates_are_those_of_the_rtl(config: str, kind: str, dram: str) -> None:
    measured = measure_rates(kind, PRESETS[config], RunOptions("estimate", dram))
    assert {item.name: item.cycles for item in measured} == GOLDEN[f"{kind}, {config}, {dram}"]


@pytest.mark.parametrize("config", ["pynq", "tiny-extended", "pynq-extended"])
def test_rounds_that_wait_are_those_of_the_rtl(config: str) -> None:
    measured = measure_rounds(PRESETS[config], RunOptions("estimate"))
    assert {item.name: item.cycles for item in measured} == GOLDEN[f"rounds, {config}"]


def test_layers_are_those_of_the_rtl() -> None:
    expected = GOLDEN["resnet18-layers, default, ddr"]
    for item in measure_layers(PRESETS["pynq-extended"], RunOptions("estimate", "ddr")):
        assert item.cycles == pytest.approx(expected[item.name], rel=TOLERANCE), item.name
        assert item.mismatches == 0


def run(program: list[Instruction], timing_only: bool = False) -> tuple[RunResult, np.ndarray]:
    config = PRESETS["tiny"]
    dram = np.arange(4096, dtype=np.uint8)
    image = ProgramImage.assemble(config, dram, 3072, program)
    device = open_device("estimate", config, image.dram.size, timing_only=timing_only)
    device.write(0, image.dram)
    return device.run(image.insn_addr, image.insn_count), device.read(0, 1024)


def moves() -> list[Instruction]:
    return [
        Load(memory=Memory.ACC, x_size=4, dram_base=8, push_next=1),
        Store(x_size=4, dram_base=0, pop_prev=1),
        Finish(),
    ]


def test_results_are_those_of_the_functional_model_unless_only_times_are_asked_for() -> None:
    with_results, stored = run(moves())
    only_times, untouched = run(moves(), timing_only=True)
    assert with_results.cycles == only_times.cycles
    assert with_results.counters["out_elements"] == 4
    assert stored[:16].tolist() == [128 + 4 * n for n in range(16)]
    assert untouched[:16].tolist() == list(range(16))


def test_stores_to_the_inputs_take_turns_with_others_as_on_the_rtl() -> None:
    config = PRESETS["tiny-extended"]
    padded = Forward(x_size=5, y_size=4, x_stride=7, x_pad_0=1, y_pad_1=2)
    program = [
        Load(memory=Memory.ACC, x_size=40, push_next=1),
        Store(x_size=9, y_size=3, x_stride=11, pop_prev=1),
        padded,
        Forward(x_size=3, sram_base=40),
        Forward(x_size=0),
        Store(x_size=2),
        Store(x_size=0),
        padded,
        Store(x_size=4, push_prev=1),
        Gemm(uop_end=0, pop_next=1),
        Finish(),
    ]
    for dram in ("ideal", "ddr"):
        found = []
        for name in ("rtl", "estimate"):
            image = ProgramImage.assemble(config, np.zeros(4096, np.uint8), 3072, program)
            device = open_device(name, config, image.dram.size, dram=dram)
            device.write(0, image.dram)
            result = device.run(image.insn_addr, image.insn_count)
            of_store = ("store_busy", "store_waits_for_memory", "store_instructions")
            counted = [result.counters[counter] for counter in of_store]
            found.append((result.cycles, *counted, result.counters["out_elements"]))
        assert found[0] == found[1], dram


@pytest.mark.parametrize(
    ("name", "of_one", "of_all"),
    [
        ("tiny", 0.03, 0.002),
        ("tiny-extended", 0.02, 0.002),
        ("bus256-one-lane", 0.02, 0.002),
        ("pynq-extended", 0.025, 0.002),
    ],
)
def test_random_programs_take_about_the_cycles_of_the_rtl(
    name: str, of_one: float, of_all: float
) -> None:
    config = (PRESETS | CORNERS)[name]
    totals = np.zeros(2, np.int64)
    for seed in range(30, 50):
        image = legal_program(config, seed)
        found = []
        for device_name in ("rtl", "estimate"):
            device = open_device(device_name, config, image.dram.size)
            device.write(0, image.dram)
            found.append(device.run(image.insn_addr, image.insn_count).cycles or 0)
        assert found[1] == pytest.approx(found[0], rel=of_one), seed
        totals += found
    assert totals[1] == pytest.approx(totals[0], rel=of_all)


def test_rows_shorter_than_a_word_take_a_cycle_per_word_where_they_are_widened() -> None:
    config = PRESETS["tiny"]
    program = [Load(memory=Memory.ACC_8BIT, y_size=128, x_size=1, x_stride=3), Finish()]
    cycles = []
    for name in ("rtl", "estimate"):
        image = ProgramImage.assemble(config, np.zeros(4096, np.uint8), 3072, program)
        device = open_device(name, config, image.dram.size)
        device.write(0, image.dram)
        cycles.append(device.run(image.insn_addr, image.insn_count).cycles)
    assert cycles[0] == cycles[1]


@pytest.mark.parametrize("timing_only", [False, True])
def test_a_stream_without_an_end_is_the_fault_that_the_model_finds(timing_only: bool) -> None:
    result, _ = run([Store(x_size=1, pop_prev=1), Finish()], timing_only)
    assert result.fault == Fault("store", 0, isa.Cause.DEADLOCK.name.lower())
    assert result.cycles is None


def test_a_token_from_a_neighbour_that_does_not_exist_never_comes() -> None:
    result, _ = run([Load(memory=Memory.INP, x_size=1, pop_prev=1), Finish()], timing_only=True)
    assert result.cycles is None
    assert result.fault is not None
    assert result.fault.module == "load"


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(DeviceError, match="supports only the memories ideal and ddr"):
        open_device("estimate", PRESETS["tiny"], 64, dram="random:1")
    with pytest.raises(DeviceError, match="no signals, hence no waves"):
        open_device("estimate", PRESETS["tiny"], 64, waves="x.vcd")
    with pytest.raises(DeviceError, match="only estimate and bound can omit results"):
        open_device("rtl", PRESETS["tiny"], 64, timing_only=True)
