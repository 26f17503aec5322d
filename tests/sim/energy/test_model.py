"""Energies add up, grow with the machine, and match a product computed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, PYNQ, Config
from amaranth_vta.sim.energy.energies import summed
from amaranth_vta.sim.energy.model import PARTS, energy_by_part
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES
from amaranth_vta.sw.runtime.events import Events, alu_event

_45NM = TECHNOLOGIES["45nm"]
_EVENTS = (
    *("multiply", "depthwise", "reset", "accumulate", "alu_source", "store"),
    *(alu_event(op) for op in isa.AluOp),
    *(f"load_{name}" for name in ("uop", "inp", "wgt", "acc")),
    *("bytes_read", "bytes_written"),
)


def typical(config: Config, counts: Events, technology: str = "45nm") -> float:
    return summed(energy_by_part(config, TECHNOLOGIES[technology], counts).values()).typical


def test_the_energy_of_a_product_is_that_of_its_operations_and_accesses() -> None:
    found = energy_by_part(PYNQ, _45NM, Counter(multiply=1))
    # 16 x 16 products of 8 by 8 bits; adders of 8 + 8 + 4 / 2 = 18 bits.
    assert found["multipliers"].typical == pytest.approx(256 * 0.2)
    assert found["adders"].typical == pytest.approx(256 * (0.03 + 0.07 * 10 / 24))
    # 16 bytes of 32 KiB, 256 bytes of 256 KiB, at 20 and about 56.6 pJ for 8 bytes.
    assert found["INP"].typical == pytest.approx(16 * 20 / 8)
    assert found["WGT"].typical == pytest.approx(256 * 20 / 8 * 8**0.5, rel=0.1)
    # The accumulators are only written.
    accumulator = found["ACC"].typical
    assert accumulator == pytest.approx(64 * 20 / 8 * 4**0.5, rel=0.1)
    added = energy_by_part(PYNQ, _45NM, Counter(multiply=1, accumulate=1))
    assert added["ACC"].typical == pytest.approx(2 * accumulator)
    assert found["DRAM"].typical == found["ALU"].typical == 0


def test_dram_costs_as_published() -> None:
    for event in ("bytes_read", "bytes_written"):
        energy = energy_by_part(PYNQ, _45NM, Counter({event: 64}))["DRAM"]
        assert (energy.low, energy.high) == (8 * 1300, 8 * 2600)


@pytest.mark.parametrize("technology", TECHNOLOGIES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_event_costs_energy_in_every_machine(preset: str, technology: str) -> None:
    for event in _EVENTS:
        found = energy_by_part(PRESETS[preset], TECHNOLOGIES[technology], Counter({event: 1}))
        assert tuple(found) == PARTS
        total = summed(found.values())
        assert 0 < total.low <= total.typical <= total.high, event


def test_activations_cost_energy_where_that_of_bytes_excludes_them() -> None:
    counts = Counter(pages_least=10, pages_most=30)
    for name, technology in TECHNOLOGIES.items():
        found = energy_by_part(PYNQ, technology, counts)
        one, dram = technology.activation, found["DRAM"]
        expected = (10 * one.low, 10 * one.typical, 30 * one.high)
        assert (dram.low, dram.typical, dram.high) == pytest.approx(expected)
        assert summed(found.values()) == dram
        assert (dram.low > 0) == (name in ("xc7", "ecp5"))


def test_energies_are_additive() -> None:
    one, other = Counter(multiply=3, alu_add=5, bytes_read=70), Counter(depthwise=2, bytes_read=9)
    apart = typical(PYNQ, one) + typical(PYNQ, other)
    assert typical(PYNQ, one + other) == pytest.approx(apart)


def test_larger_tiles_and_scratchpads_cost_more_per_micro_op() -> None:
    work = Counter(multiply=1, accumulate=1)
    assert typical(replace(PYNQ, log_block_in=5, log_wgt_buff_size=19), work) > typical(PYNQ, work)
    assert typical(replace(PYNQ, log_wgt_buff_size=17), work) < typical(PYNQ, work)


@pytest.mark.parametrize("event", _EVENTS)
def test_newer_technology_takes_less_energy(event: str) -> None:
    new, middle, old = (
        typical(PYNQ, Counter({event: 1}), name) for name in ("7nm", "28nm", "45nm")
    )
    if event.startswith("bytes"):
        assert new < middle == old  # 28 nm has the DRAM of 45 nm.
    else:
        assert new < middle < old


@pytest.mark.parametrize(("fpga", "silicon"), [("xc7", "28nm"), ("ecp5", "45nm")])
@pytest.mark.parametrize("event", _EVENTS)
def test_fpgas_take_more_energy_than_silicon_of_their_node(
    event: str, fpga: str, silicon: str
) -> None:
    high, low = (
        energy_by_part(PYNQ, TECHNOLOGIES[name], Counter({event: 1})) for name in (fpga, silicon)
    )
    for part in PARTS:
        assert high[part].typical > low[part].typical or not low[part].typical, part
