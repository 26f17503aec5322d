"""Area estimates of several machines and their arbiter, against recorded synthesis results."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta import cli
from amaranth_vta.fpga.area import FAMILIES, FITTED, estimate_area
from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.system_area import arbiter_area, fitted_arbiter, system_area
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig

SAMPLES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "bitstreams/arbiter_samples.json").read_text()
)
TINY = PRESETS["tiny"]


def system_of(sample: dict[str, Any]) -> SystemConfig:
    config = replace(TINY, log_bus_width=sample["log_bus_width"])
    return SystemConfig(config, sample["machines"], sample["bus_bits"])


def test_block_rams_of_the_arbiter_are_exact() -> None:
    for sample in SAMPLES:
        area = arbiter_area(system_of(sample), sample["family"])
        assert (area.bram36, area.dsp) == (sample["bram36"], sample["dsp"]), sample


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("column", FITTED)
def test_the_error_that_is_said_is_that_of_the_samples(family: str, column: str) -> None:
    own = [sample for sample in SAMPLES if sample["family"] == family]
    errors = [
        abs(getattr(arbiter_area(system_of(sample), family), column) / sample[column] - 1)
        for sample in own
    ]
    model = fitted_arbiter()[family]
    assert len(own) == model["samples"]
    assert sum(errors) / len(errors) == pytest.approx(model[column]["mean_error"], abs=2e-3)
    assert model[column]["mean_error"] <= 0.05


def test_a_system_takes_the_machines_and_an_arbiter() -> None:
    one, two = (system_area(SystemConfig(TINY, count), "xc7") for count in (1, 2))
    assert one == estimate_area(TINY, "xc7")
    shared = asdict(arbiter_area(SystemConfig(TINY, 2), "xc7"))
    assert asdict(two) == {name: 2 * count + shared[name] for name, count in asdict(one).items()}


def test_machines_divide_the_multipliers_of_a_chip() -> None:
    """Each of two machines builds its products from LUTs that exceed half of the multipliers."""
    config, chip = PRESETS["ecp5-25f"], CHIPS["ecp5-25f"]
    assert chip.area_of(SystemConfig(config, 1)).dsp <= chip.dsp
    two = chip.area_of(SystemConfig(config, 2))
    assert two.dsp == 2 * estimate_area(config, "ecp5", chip.dsp // 2).dsp
    assert two.lut > 2 * chip.area_of(SystemConfig(config, 1)).lut


def test_the_command_estimates_systems(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["estimate-area", "tiny", "--machines", "4", "--memory-bus", "128", "--json", "-"]
    assert cli.invoke(arguments) == 0
    said = capsys.readouterr()
    system = SystemConfig(TINY, 4, 128)
    assert json.loads(said.out) == {
        family: asdict(system_area(system, family)) for family in FAMILIES
    }
    assert "mean error on arbiters left out of the fit" in said.err
    assert cli.invoke(["estimate-area", "tiny", "--memory-bus", "128"]) == 2
