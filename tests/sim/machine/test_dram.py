from __future__ import annotations

import pytest

from amaranth_vta.sim.machine.dram import Dice, DramError, memory_timing


def test_the_models_have_the_figures_of_the_targets() -> None:
    ideal, ddr = memory_timing("ideal"), memory_timing("ddr")
    assert (ideal.latency, ideal.shared, ideal.refresh_period) == (4, False, 0)
    assert (ddr.latency, ddr.shared) == (48, True)
    assert (ddr.reads_outstanding, ddr.writes_outstanding) == (8, 8)
    assert (ddr.refresh_stall, ddr.refresh_period) == (30, 780)


def test_a_seed_gives_the_same_random_memory_again() -> None:
    assert memory_timing("random:7") == memory_timing("random:7")
    assert len({memory_timing(f"random:{seed}") for seed in range(20)}) == 20


@pytest.mark.parametrize("name", ["", "fast", "random", "random:", "random:x", "ideal:1"])
def test_an_unknown_memory_model_is_refused(name: str) -> None:
    with pytest.raises(DramError, match=f"'{name}' is not a memory model: there are ideal, ddr"):
        memory_timing(name)


def test_dice_are_even() -> None:
    dice = Dice(3)
    draws = [dice.draw(6) for _ in range(6000)]
    assert all(850 < draws.count(side) < 1150 for side in range(6))


@pytest.mark.parametrize("words", [1, 749, 750, 751, 1500, 1501, 10_000])
def test_a_memory_with_refresh_moves_no_word_in_a_stall(words: int) -> None:
    """Compared with counting cycle by cycle."""
    timing = memory_timing("ddr")
    moved = cycle = 0
    while moved < words:
        moved += cycle % timing.refresh_period < timing.refresh_period - timing.refresh_stall
        cycle += 1
    assert timing.least_cycles(words, 0) == timing.least_cycles(0, words) == cycle
    assert timing.least_cycles(words - 1, 1) == cycle  # reads and writes share it
    assert timing.least_cycles(words, 0, runs=words) == words


def test_an_ideal_memory_reads_and_writes_at_once() -> None:
    assert memory_timing("ideal").least_cycles(5, 7) == 7
