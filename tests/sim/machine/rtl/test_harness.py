"""The harness of RTL simulation, around a device that can be made to misbehave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.sim.machine.dram import MemoryTiming, ProtocolError, memory_timing
from amaranth_vta.sim.machine.rtl.build import library
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine
from amaranth_vta.sim.trace.wave_file import WAVE_FORMATS, signals_of, wave_format

CONTROL, STATUS, SOURCE, DESTINATION, BURSTS = 0, 4, 8, 12, 16
BURST_BYTES = 64
MEMORY_BYTES = 1 << 16
WORDS_A_BURST = 8


class Copier:
    """copier.v on a memory of random bytes."""

    def __init__(self, timing: MemoryTiming, waves: Path | None = None) -> None:
        verilog = Path(__file__).with_name("copier.v").read_text()
        self.memory = np.random.default_rng(1).integers(0, 256, MEMORY_BYTES, np.uint8)
        self.before = self.memory.copy()
        # Other tests build simulators without optimization.
        built = library(
            verilog,
            traced=None if waves is None else wave_format(waves),
            optimized=waves is None,
        )
        self.machine = CompiledMachine(built, self.memory, timing, waves)

    def copy(self, bursts: int, destination: int = MEMORY_BYTES // 2, fault: int = 0) -> int:
        """Copies ``bursts``; returns the status of the device."""
        for register, value in (
            (SOURCE, 0),
            (DESTINATION, destination),
            (BURSTS, bursts),
            (CONTROL, 1 | fault << 8),
        ):
            self.machine.write_register(register, value)
        assert self.machine.advance(100_000)
        return self.machine.read_register(STATUS)


@pytest.mark.parametrize("dram", ["ideal", "ddr", "random:1", "random:2", "random:3"])
def test_a_copy_arrives_on_every_memory(dram: str) -> None:
    copier = Copier(memory_timing(dram))
    assert copier.copy(100) == 1
    assert copier.machine.quiet
    half = MEMORY_BYTES // 2
    expected = copier.before
    expected[half : half + 100 * BURST_BYTES] = expected[: 100 * BURST_BYTES]
    np.testing.assert_array_equal(copier.memory, expected)


def test_an_ideal_memory_gives_one_word_per_cycle_after_its_latency() -> None:
    copier = Copier(MemoryTiming(latency=4))
    copier.copy(1)
    alone = copier.machine.run_cycles
    copier.copy(101)
    assert copier.machine.run_cycles - alone == 100 * WORDS_A_BURST
    slow = Copier(MemoryTiming(latency=24))
    slow.copy(1)
    assert slow.machine.run_cycles - alone == 2 * 20  # of the read and of the write's response


def test_a_shared_memory_moves_one_word_per_cycle() -> None:
    copier = Copier(MemoryTiming(latency=4, shared=True))
    copier.copy(100)
    cycles = copier.machine.run_cycles
    assert 0 <= cycles - 2 * 100 * WORDS_A_BURST < 40


def test_no_word_moves_while_the_memory_refreshes() -> None:
    plain, refreshed = (
        Copier(MemoryTiming(shared=True, refresh_period=period, refresh_stall=stall))
        for period, stall in ((0, 0), (100, 30))
    )
    plain.copy(200)
    refreshed.copy(200)
    ratio = refreshed.machine.run_cycles / plain.machine.run_cycles
    assert ratio == pytest.approx(100 / 70, rel=0.02)


def test_reads_outstanding_are_limited() -> None:
    copier = Copier(MemoryTiming(latency=50, reads_outstanding=1))
    copier.copy(50)
    assert copier.machine.run_cycles >= 50 * 50
    free = Copier(MemoryTiming(latency=50))
    free.copy(50)
    assert free.machine.run_cycles < 20 * 50


def test_writes_outstanding_are_limited() -> None:
    copier = Copier(MemoryTiming(latency=50, writes_outstanding=1))
    copier.copy(50)
    assert copier.machine.run_cycles >= 50 * 50


def test_a_run_takes_the_same_cycles_again() -> None:
    copier = Copier(memory_timing("ddr"))
    copier.copy(100)
    first = copier.machine.run_cycles
    copier.copy(37)
    copier.copy(100)
    assert copier.machine.run_cycles == first


def test_an_access_past_the_memory_is_an_error_and_changes_nothing() -> None:
    copier = Copier(memory_timing("ideal"))
    assert copier.copy(4, destination=MEMORY_BYTES - BURST_BYTES) == 3
    expected = copier.before
    expected[-BURST_BYTES:] = expected[:BURST_BYTES]
    np.testing.assert_array_equal(copier.memory, expected)
    assert copier.copy(1, destination=0) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (1, r"AR in cycle \d+: valid fell before ready"),
        (2, r"AR in cycle \d+: the payload changed before ready"),
        (3, r"AR in cycle \d+: the burst of 8 beats at 0xfc8 crosses 4 KiB"),
        (4, r"W in cycle \d+: last is 1 with 4 beats to come"),
        (5, r"W in cycle \d+: last is 0 with 0 beats to come"),
        (9, r"W in cycle \d+: the payload changed before ready"),
        (10, r"W in cycle \d+: the word at 0x\w+ is written after an error"),
    ],
)
def test_a_broken_rule_of_the_bus_is_an_error(fault: int, message: str) -> None:
    copier = Copier(memory_timing("random:1"))
    with pytest.raises(ProtocolError, match=message):
        copier.copy(100, fault=fault)
    with pytest.raises(ProtocolError, match=message):
        copier.machine.read_register(STATUS)
    copier.machine.reset()
    assert copier.copy(1) == 1


def test_done_with_writes_in_flight_is_an_error() -> None:
    copier = Copier(memory_timing("ddr"))
    copier.copy(10, fault=6)
    assert not copier.machine.quiet


def test_a_register_that_does_not_answer_is_an_error() -> None:
    copier = Copier(memory_timing("ideal"))
    with pytest.raises(ProtocolError, match=r"register 0x4 does not answer a read in 1000 cycles"):
        copier.copy(1, fault=8)


def test_silence_is_counted_from_the_last_transfer() -> None:
    copier = Copier(memory_timing("ideal"))
    copier.copy(1)
    assert not copier.machine.advance(0)
    copier.machine.write_register(CONTROL, 0)
    assert not copier.machine.advance(1000)
    assert 1000 <= copier.machine.silent_cycles < 1010


def test_waves_are_written(tmp_path: Path) -> None:
    waves = tmp_path / "copy.vcd"
    copier = Copier(memory_timing("ideal"), waves)
    copier.copy(1)
    copier.machine.close()
    text = waves.read_text()
    assert "m_axi_araddr" in text
    assert text.rstrip().splitlines()[-1][0] in "01b#"


def test_waves_as_fst_have_the_values_of_the_vcd(tmp_path: Path) -> None:
    pywellen = pytest.importorskip("pywellen")  # the reader of Surfer
    values = []
    for suffix in WAVE_FORMATS:
        waves = tmp_path / f"copy.{suffix}"
        copier = Copier(memory_timing("ideal"), waves)
        copier.copy(100)
        cycles = copier.machine.cycle
        copier.machine.close()
        read = pywellen.Waveform(str(waves))
        values.append(
            {
                signal.full_name: [signal.signal.value_at(10 * cycle) for cycle in range(cycles)]
                for signal in read.all_vars()
            }
        )
        assert {signal.path for signal in signals_of(waves)} == set(values[-1])
    assert values[0] == values[1]
    addresses = {BURST_BYTES * burst for burst in range(100)}
    assert set(values[1]["TOP.m_axi_araddr"]) >= addresses
    sizes = [(tmp_path / f"copy.{suffix}").stat().st_size for suffix in ("fst", "vcd")]
    assert 4 * sizes[0] < sizes[1]
