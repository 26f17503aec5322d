"""The layers of ResNet-18: by the schedules that the compiler chooses, and by those by hand."""

from __future__ import annotations

import json

import pytest

from amaranth_vta.bench.resnet18 import Row, rows
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, Conv2dKnobs, conv2d
from amaranth_vta.sw.compiler.operators.parts.epilogue import PerChannelScale
from tests.support.golden import FOLDER

CONFIG = PRESETS["pynq-extended"]
CYCLES = json.loads((FOLDER / "cycles.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("row", rows(CONFIG), ids=lambda row: row.name)
def test_requantization_runs_beside_gemm_and_nothing_is_loaded_between(
    row: Row, by_hand: bool
) -> None:
    knobs = Conv2dKnobs(**row.knobs) if by_hand else None
    layer = Conv2d(**row.workload, requantize=PerChannelScale())
    lines = conv2d(layer, Environment(CONFIG), knobs).lowered.instructions().splitlines()
    compute = [line[17:] for line in lines if line[8:15] == "compute"]
    first = next(at for at, line in enumerate(compute) if not line.startswith("LOAD"))
    assert not [line for line in compute[first:] if line.startswith("LOAD")]
    assert [line for line in compute if "independent" in line]


def test_what_the_compiler_chooses_is_as_fast_as_what_was_found_by_hand() -> None:
    """As measured; tests/end_to_end/test_golden_cycles.py holds the machine to these numbers."""
    chosen, by_hand = (CYCLES[f"resnet18-layers, {kind}, ddr"] for kind in ("default", "by-hand"))
    assert chosen.keys() == by_hand.keys() == {row.name for row in rows(CONFIG)}
    assert not {name for name, cycles in chosen.items() if cycles > by_hand[name]}


def test_there_are_rows_for_machines_like_the_one_they_are_written_for() -> None:
    assert rows(PRESETS["tiny"]) == []
