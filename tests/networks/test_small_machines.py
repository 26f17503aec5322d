"""The presets of FPGA boards run quantized networks with ordinary scales: nearly all MACs are on
the machine, and results equal the reference's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.measurements.networks import measure_model
from amaranth_vta.networks import MLPERF_TINY, generate, generate_tiny
from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.devices import RunOptions

PRESETS_OF_CHIPS = ("ecp5-25f", "ecp5-85f")
# Networks of `vta bench`: input size and width factor, the network's own if there are none.
SMALL: dict[str, tuple[Any, ...]] = {
    "digits": (),
    "mlp": (),
    "keywords": (),
    "mobilenetv2": (32, 0.25),
    "bert-tiny": (16, 0.25),
}
# Both presets run these networks in every test run.
FIRST = ("mlperf-streaming", "keywords")
LEAST_SHARE = 0.99


def source(name: str) -> Any:
    return generate_tiny(name) if name in MLPERF_TINY else generate(name, *SMALL[name]).model


ON_SMALLEST = [(name, "ecp5-25f") for name in (*MLPERF_TINY, *SMALL)]
ON_LARGER = [
    pytest.param(name, "ecp5-85f", marks=() if name in FIRST else pytest.mark.nightly)
    for name in (*MLPERF_TINY, *SMALL)
]


@pytest.mark.parametrize(("name", "config"), [*ON_SMALLEST, *ON_LARGER])
def test_nearly_all_macs_of_a_network_are_on_the_machine(name: str, config: str) -> None:
    with Session(source(name), config, "functional") as session:
        found = summary(session.layers)
    assert found["macs_on_machine"] > 0
    assert found["share_on_machine"] >= LEAST_SHARE


@pytest.mark.parametrize("config", PRESETS_OF_CHIPS)
@pytest.mark.parametrize("name", FIRST)
def test_results_equal_the_references(name: str, config: str) -> None:
    with Session(source(name), config, "functional") as session:
        report = session.check(random_inputs(session))
    assert report.elements > 0
    assert report.mismatches == 0


def test_schedules_for_a_slow_memory_load_fewer_bytes() -> None:
    loaded = {}
    for log_word_cycles in (0, 2):
        config = replace(PRESETS["ecp5-85f"], log_word_cycles=log_word_cycles)
        options = RunOptions("estimate", "ddr", timing_only=True)
        measured = measure_model(source("mlperf-resnet"), None, config, options)
        loaded[log_word_cycles] = measured.whole.bytes_loaded
    assert loaded[2] < 0.7 * loaded[0]


def test_without_requantization_the_convolutions_of_a_network_run_on_the_host() -> None:
    with Session(source("keywords"), "tiny", "functional") as session:
        assert summary(session.layers)["share_on_machine"] < LEAST_SHARE


@pytest.mark.parametrize("name", [name for name, board in BOARDS.items() if board.sdram])
def test_the_preset_of_a_board_with_memory_runs_networks(name: str) -> None:
    board = BOARDS[name]
    assert board.config in PRESETS_OF_CHIPS
    assert PRESETS[board.config].dram_bytes == board.memory_bytes
