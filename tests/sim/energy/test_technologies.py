from __future__ import annotations

import pytest

from amaranth_vta.sim.energy.technologies import TECHNOLOGIES, Energy, Technology, summed

_ALL = pytest.mark.parametrize("technology", TECHNOLOGIES.values(), ids=TECHNOLOGIES)


@_ALL
def test_interpolation_meets_the_published_points(technology: Technology) -> None:
    assert technology.addition(8) == technology.add[0]
    assert technology.addition(32) == pytest.approx(technology.add[1])
    assert technology.multiplication(8, 8) == technology.multiply[0]
    assert technology.multiplication(32, 32) == pytest.approx(technology.multiply[1])
    for size, access in technology.sram:
        assert technology.sram_byte(size).typical == pytest.approx(access / 8)
    assert technology.dram_byte.typical * 8 == pytest.approx(technology.dram.typical)


@_ALL
def test_energies_grow_with_width_and_size(technology: Technology) -> None:
    widths = [4, 8, 12, 16, 20, 32, 48]
    sizes = [64 << step for step in range(16)]
    for energies in (
        [technology.addition(width) for width in widths],
        [technology.multiplication(width, width) for width in widths],
        [technology.sram_byte(size).typical for size in sizes],
    ):
        assert energies == sorted(energies)
        assert energies[0] > 0


@_ALL
def test_bands_contain_typical_energies(technology: Technology) -> None:
    for energy in (technology.dram, technology.dram_byte, technology.sram_byte(5000)):
        assert 0 < energy.low <= energy.typical <= energy.high


def test_published_srams_of_45_nm_follow_the_square_root_of_their_size() -> None:
    (small, first), *others = TECHNOLOGIES["45nm"].sram
    for size, access in others:
        assert access == pytest.approx(first * (size / small) ** 0.5, rel=0.15)


def test_energies_add_and_scale_with_their_bands() -> None:
    assert summed([Energy(1, 2, 3), Energy(10, 20, 30)]) == Energy(11, 22, 33)
    assert Energy(1, 2, 3) * 2 == Energy(2, 4, 6)
    assert summed([]) == Energy(0, 0, 0)
