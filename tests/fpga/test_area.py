"""Area estimates of machines, against recorded synthesis results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from amaranth_vta import cli
from amaranth_vta.fpga.area import (
    DEEPEST_IN_LOGIC,
    FAMILIES,
    FITTED,
    estimate_area,
    fitted_model,
)
from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.dma.bounds import MAX_DEPTH_IN_LOGIC
from amaranth_vta.hw.system.parameters import SystemConfig

SAMPLES = json.loads((Path(__file__).parents[2] / "bitstreams/area_samples.json").read_text())


@pytest.mark.parametrize("name", SAMPLES)
def test_multipliers_and_block_rams_are_exact(name: str) -> None:
    sample, family = SAMPLES[name], name.rpartition(", ")[2]
    area = estimate_area(Config.from_dict(sample["config"]), family)
    blocks = sample["brams"] / (1 if family == "xc7" else 2)  # of 36 and of 18 kbit
    assert (area.dsp, area.bram36) == (sample["dsps"], blocks)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("column", FITTED)
def test_the_error_that_is_said_is_that_of_the_samples(family: str, column: str) -> None:
    errors = [
        abs(
            getattr(estimate_area(Config.from_dict(sample["config"]), family), column)
            / sample[f"{column}s"]
            - 1
        )
        for name, sample in SAMPLES.items()
        if name.endswith(f", {family}")
    ]
    model = fitted_model()[family]
    assert len(errors) == model["samples"]
    assert sum(errors) / len(errors) == pytest.approx(model[column]["mean_error"], abs=2e-3)
    assert model[column]["mean_error"] <= 0.05


def test_what_is_made_of_logic_is_what_the_design_says() -> None:
    assert DEEPEST_IN_LOGIC == MAX_DEPTH_IN_LOGIC


def test_more_of_anything_takes_more() -> None:
    for family in FAMILIES:
        small, large = (estimate_area(PRESETS[n], family) for n in ("tiny", "pynq-extended"))
        assert all(getattr(small, key) < value for key, value in asdict(large).items())


def test_the_default_fits_the_chip_that_it_is_for() -> None:
    area = estimate_area(PRESETS["pynq-extended"], "xc7")
    assert CHIPS["xc7z020"].share(area) == pytest.approx(118.5 / 140)  # block RAMs
    assert CHIPS["xc7z010"].share(area) > 1


def test_the_command_prints_both_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["estimate-area", "tiny", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {
        family: asdict(estimate_area(PRESETS["tiny"], family)) for family in FAMILIES
    }
    assert "ecp5-85f" in said.err
    assert "mean error" in said.err
    assert "products in LUTs" not in said.err


def test_the_command_says_where_products_are_in_luts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["estimate-area", "tiny-extended"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "products in LUTs" in line]
    luts = CHIPS["ecp5-25f"].area_of(SystemConfig(PRESETS["tiny-extended"], 1)).lut
    assert lines == [
        f"ecp5-25f: 12 products in LUTs, since the chip has too few multipliers; "
        f"{luts:,} LUTs in all"
    ]
