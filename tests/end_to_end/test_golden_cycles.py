"""The machine takes no more cycles than it did: tests/golden/cycles.json.

``REWRITE_GOLDEN=1 pytest tests/end_to_end/test_golden_cycles.py`` writes the file anew, when the
machine has become faster, or when it is right that it has become slower.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from amaranth_vta.bench import layers
from amaranth_vta.bench.measurement import Measurement
from amaranth_vta.bench.rates import KINDS, measure_rates
from amaranth_vta.hw.config import PRESETS

GOLDEN = Path(__file__).parent.parent / "golden" / "cycles.json"
EXTENDED = PRESETS["pynq-extended"]


def check(group: str, measured: list[Measurement]) -> None:
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    cycles = {item.name: item.cycles for item in measured}
    if os.environ.get("REWRITE_GOLDEN"):
        known[group] = cycles
        text = json.dumps(dict(sorted(known.items())), indent=2)
        GOLDEN.write_text(text + "\n", encoding="utf-8")
    assert all(item.mismatches == 0 for item in measured)
    assert cycles.keys() == known[group].keys()
    slower = {
        name: (known[group][name], count)
        for name, count in cycles.items()
        if count is None or count > known[group][name]
    }
    assert not slower


@pytest.mark.parametrize("dram", ["ideal", "ddr"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", ["tiny-extended", "pynq-extended"])
def test_rates_are_as_good_as_they_were(config: str, kind: str, dram: str) -> None:
    measured = list(measure_rates(kind, PRESETS[config], "rtl", dram))
    check(f"{kind}, {config}, {dram}", measured)
    if config == "pynq-extended":
        assert [item.name for item in measured if not item.is_reached] == []


@pytest.mark.parametrize("schedules", ["default", "by-hand"])
def test_layers_are_as_fast_as_they_were(schedules: str) -> None:
    by_hand = schedules == "by-hand"
    measured = list(layers.measure_layers(EXTENDED, "rtl", "ddr", by_hand=by_hand))
    check(f"resnet18-layers, {schedules}, ddr", measured)
    assert [item.name for item in measured if not item.is_reached] == []
