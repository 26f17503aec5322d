"""Products to be built from LUTs, as Yosys finds them in the design."""

from __future__ import annotations

import re

import pytest
from amaranth.back.verilog import YosysError

from amaranth_vta.fpga.area import LUTS_OF_PRODUCT, estimate_area, products_in_luts
from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.synthesis import in_luts
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.dot_products import SingleDotProducts
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.elaborate import AS_IT_IS, component_verilog

TINY = PRESETS["tiny-extended"]
PRODUCT = re.compile(r"product_b0_o([0-3])_i([0-3])")


def lacking(count: int) -> list[str]:
    """The commands for a chip that lacks ``count`` multipliers."""
    return in_luts(TINY, "ecp5", estimate_area(TINY, "ecp5").dsp - count)


def test_they_are_as_many_as_a_chip_lacks() -> None:
    needed = estimate_area(TINY, "ecp5").dsp
    assert [products_in_luts(TINY, "ecp5", needed - less) for less in (-1, 0, 5)] == [0, 0, 5]
    # The ALU's products stay in multipliers.
    assert products_in_luts(TINY, "ecp5", 0) == TINY.macs_per_cycle
    assert products_in_luts(TINY, "xc7", 0) == 0
    # Two products share a multiplication.
    assert products_in_luts(PRESETS["pynq-extended"], "ecp5", 0) == 0


def test_an_estimate_for_a_chip_has_no_more_multipliers_than_the_chip() -> None:
    chip, config = CHIPS["ecp5-25f"], TINY
    here, elsewhere = chip.area_of(SystemConfig(config, 1)), estimate_area(config, "ecp5")
    products = elsewhere.dsp - chip.dsp
    assert products > 0
    assert here.dsp == chip.dsp
    assert here.lut == elsewhere.lut + products * LUTS_OF_PRODUCT
    assert (here.ff, here.bram36) == (elsewhere.ff, elsewhere.bram36)


def test_they_are_spread_over_the_array() -> None:
    (_, command, *_) = lacking(4)
    assert len(set(PRODUCT.findall(command))) == 4
    assert {j for j, _ in PRODUCT.findall(command)} == set("0123")
    assert lacking(0) == []


def run(commands: list[str]) -> None:
    """Run the commands in the Yosys of the tests, which does not have Booth's algorithm."""
    component_verilog(SingleDotProducts(TINY), "vta", (*commands, *AS_IT_IS))


@pytest.mark.parametrize("count", [1, 5, 16])
def test_yosys_finds_the_multiplications_of_the_design(count: int) -> None:
    """Runs all commands except the last, ``booth``, which the Yosys of the tests lacks."""
    *find, last = lacking(count)
    assert last == "booth @products"
    run([*find, "delete @products", f"select -assert-count {16 - count} */t:$mul"])


def test_yosys_fails_where_products_have_other_names() -> None:
    with pytest.raises(YosysError, match="contains 0 elements instead of the asserted 16"):
        run([command.replace("product_", "result_") for command in lacking(16)[:-1]])
