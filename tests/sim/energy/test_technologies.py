from __future__ import annotations

from math import log

import pytest

from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.sim.energy.energies import Energy, summed
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES, Technology

_ALL = pytest.mark.parametrize("technology", TECHNOLOGIES.values(), ids=TECHNOLOGIES)


@_ALL
def test_interpolation_meets_the_published_points(technology: Technology) -> None:
    assert technology.addition(8).typical == pytest.approx(technology.add[0])
    assert technology.addition(32).typical == pytest.approx(technology.add[1])
    assert technology.multiplication(8, 8).typical == pytest.approx(technology.multiply[0])
    assert technology.multiplication(32, 32).typical == pytest.approx(technology.multiply[1])
    for size, access in technology.sram:
        assert technology.sram_byte(size).typical == pytest.approx(access / 8)
    assert technology.dram_byte.typical * 8 == pytest.approx(technology.dram.typical)


@_ALL
def test_energies_grow_with_width_and_size(technology: Technology) -> None:
    widths = [4, 8, 12, 16, 20, 32, 48]
    sizes = [64 << step for step in range(16)]
    for energies in (
        [technology.addition(width).typical for width in widths],
        [technology.multiplication(width, width).typical for width in widths],
        [technology.sram_byte(size).typical for size in sizes],
    ):
        assert energies == sorted(energies)
        assert energies[0] > 0


@_ALL
def test_bands_contain_typical_energies(technology: Technology) -> None:
    for energy in (
        *(technology.dram, technology.dram_byte, technology.sram_byte(5000)),
        *(technology.addition(18), technology.multiplication(8, 16)),
    ):
        assert 0 < energy.low <= energy.typical <= energy.high


def test_published_srams_of_45_nm_follow_the_square_root_of_their_size() -> None:
    (small, first), *others = TECHNOLOGIES["45nm"].sram
    for size, access in others:
        assert access == pytest.approx(first * (size / small) ** 0.5, rel=0.15)


def test_arithmetic_in_28_nm_is_that_of_45_nm_by_the_published_equations() -> None:
    # Factors at 0.9 V: 0.6989 in 45 nm, 0.4571 in 32 nm, 0.2008 in 20 nm.
    to_32, to_20 = 0.4571 / 0.6989, 0.2008 / 0.6989
    typical = to_32 * (to_20 / to_32) ** (log(32 / 28) / log(32 / 20))
    found = TECHNOLOGIES["28nm"].multiplication(8, 8)
    assert found.typical == pytest.approx(0.2 * typical, rel=1e-3)
    assert found.high == pytest.approx(0.2 * to_32, rel=1e-3)
    # Low-power transistors: 0.8443 in 45 nm, 0.1556 in 20 nm.
    assert found.low == pytest.approx(0.2 * 0.1556 / 0.8443, rel=1e-3)


def test_an_sram_published_for_28_nm_is_within_the_band() -> None:
    # 256 bits of 8 KiB take 50 pJ on GPUs: table 7 of DNA sequences alignment in multi-GPUs, BMC
    # Bioinformatics 19 (2018).
    found = TECHNOLOGIES["28nm"].sram_byte(8 << 10)
    assert found.low < 50 / 32 < found.high


def test_arithmetic_of_an_fpga_is_that_of_silicon_times_the_published_ratio() -> None:
    # At equal voltage the ratio is 7.1; 7-series run at 1.0 V, at which 28 nm takes 1.26 times the
    # energy at 0.9 V.
    silicon, fpga = (TECHNOLOGIES[name].multiplication(8, 8) for name in ("28nm", "xc7"))
    assert fpga.typical == pytest.approx(silicon.typical * 7.1 * 1.26, rel=0.01)
    assert fpga.high / fpga.typical > 14 / 7.1
    assert fpga.low / fpga.typical < 4.6 / 7.1


def test_block_ram_is_that_of_the_data_sheet_by_the_published_equations() -> None:
    # 39 mW at 300 MHz through two ports of 36 bits: 1.806 pJ per bit in 65 nm at 1.0 V.
    for name, factor in (("xc7", 0.342), ("ecp5", 0.684)):
        for size in (4 << 10, 256 << 10, 1 << 20):
            found = TECHNOLOGIES[name].sram_byte(size)
            assert found.typical == pytest.approx(8 * 1.806 * factor, rel=1e-3)
            assert found.low < 8 * 0.88 * factor
            assert found.high > 8 * 3.42 * factor


def test_dram_is_that_of_data_sheets() -> None:
    ddr3, sdram = (TECHNOLOGIES[name].dram_byte * (1 / 8) for name in ("xc7", "ecp5"))
    # Picojoules per bit: 157 mA at 1.5 V and 12.8 Gbit/s; 130 mA at 3.3 V and 2.128 Gbit/s.
    assert (ddr3.low, ddr3.typical) == pytest.approx((18.4, 54), rel=1e-3)
    assert ddr3.high == pytest.approx(2.3 * 54)
    assert (sdram.low, sdram.typical, sdram.high) == pytest.approx((170.6, 201.6, 356.7), rel=1e-3)


def test_activations_of_dram_are_those_of_data_sheets() -> None:
    ddr3, sdram = (TECHNOLOGIES[name].activation for name in ("xc7", "ecp5"))
    # Two chips of 8 bits: 55 mA for 48.75 ns at 1.5 V, less 38 mA for 35 ns and 32 mA for 13.75 ns.
    assert ddr3.low == ddr3.typical == pytest.approx(2 * 911.25 * 1.5)
    # Micron's calculator says 76.2 mW for the older chip, which cycles its rows in 47.5 ns.
    assert ddr3.high == pytest.approx(2 * 76.2 * 47.5, rel=1e-3)
    # One or two chips of 16 bits: 90 mA for 65 ns at 3.3 V, less 25 mA for 45 ns and 20 mA for 20.
    assert sdram.high == pytest.approx(2 * 4325 * 3.3)
    assert 2 * sdram.low == sdram.typical < sdram.high
    # To read a whole page takes many times the energy to open it.
    for name in ("xc7", "ecp5"):
        technology = TECHNOLOGIES[name]
        assert technology.activation.high < technology.dram_byte.low * DRAM_PAGE_BYTES / 10


def test_energies_add_and_scale_with_their_bands() -> None:
    assert summed([Energy(1, 2, 3), Energy(10, 20, 30)]) == Energy(11, 22, 33)
    assert Energy(1, 2, 3) * 2 == Energy(2, 4, 6)
    assert Energy(1, 2, 3) * Energy(2, 3, 4) == Energy(2, 6, 12)
    assert Energy(1, 2, 3).band == Energy(0.5, 1, 1.5)
    assert summed([]) == Energy(0, 0, 0)
