"""The layers of ResNet-18, with the schedules that the compiler chooses and with manual
schedules."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.measurements.layers import layer_bound
from amaranth_vta.measurements.resnet18 import LayerRow, has_knobs, rows
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.conv2d import conv2d
from tests.support.golden import FOLDER

CONFIG = PRESETS["pynq-extended"]
CYCLES = json.loads((FOLDER / "cycles.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("row", rows(CONFIG), ids=lambda row: row.name)
def test_requantization_overlaps_with_gemm_and_nothing_is_loaded_between(
    row: LayerRow, by_hand: bool
) -> None:
    knobs = row.knobs if by_hand else None
    lines = conv2d(row.workload, Environment(CONFIG), knobs).lowered.instructions().splitlines()
    compute = [line[17:] for line in lines if line[8:15] == "compute"]
    first = next(at for at, line in enumerate(compute) if not line.startswith("LOAD"))
    assert not [line for line in compute[first:] if line.startswith("LOAD")]
    assert [line for line in compute if "independent" in line]


def test_what_the_compiler_chooses_is_as_fast_as_what_was_found_by_hand() -> None:
    """But for 0.1 %, which it may take longer to save transfers. Compares recorded cycles, which
    tests/end_to_end/test_golden_cycles.py enforces.
    """
    chosen, by_hand = (CYCLES[f"resnet18-layers, {kind}, ddr"] for kind in ("default", "by-hand"))
    assert chosen.keys() == by_hand.keys() == {row.name for row in rows(CONFIG)}
    assert not {name for name, cycles in chosen.items() if cycles > 1.001 * by_hand[name]}


def test_no_layer_is_faster_than_its_bound() -> None:
    for kind in ("default", "by-hand"):
        cycles = CYCLES[f"resnet18-layers, {kind}, ddr"]
        for row in rows(CONFIG):
            assert layer_bound(row.workload, CONFIG, "ddr") <= cycles[row.name], row.name


def test_a_strided_layer_need_not_load_the_pixels_that_its_kernel_skips() -> None:
    workload = {row.name: row.workload for row in rows(CONFIG)}["1x1 s2 64-128"]
    narrow = replace(workload, outputs=1)
    # 28 x 28 pixels of 64 channels, 64 x 16 weights, 16 of bias and scale; 8 bytes per word.
    assert layer_bound(narrow, CONFIG, "ideal") == (28 * 28 * 64 + 64 * 16 + 16 * 8) / 8
    padded = replace(narrow, kernel=(3, 3), strides=(4, 4), pads=(1, 1, 1, 1))
    # Every fourth pixel in either direction is skipped, and padding is not loaded.
    rows_met = len({o * 4 - 1 + k for o in range(14) for k in range(3)} - {-1})
    assert layer_bound(padded, CONFIG, "ideal") == (rows_met**2 * 64 + 9 * 64 * 16 + 16 * 8) / 8


@pytest.mark.parametrize("config", sorted(PRESETS))
def test_layers_are_those_of_the_network_on_every_machine(config: str) -> None:
    row = rows(PRESETS[config])[4]
    assert row.macs == 6_422_528 * PRESETS[config].batch
    assert has_knobs(PRESETS[config]) == (config == "pynq-extended")
