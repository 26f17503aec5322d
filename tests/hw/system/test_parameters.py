"""Limits of `SystemConfig`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amaranth_vta.hw.config import PRESETS, ConfigError
from amaranth_vta.hw.system.parameters import SystemConfig

TINY = PRESETS["tiny"]


@pytest.mark.parametrize(
    ("machines", "bits"), [(1, 64), (2, 128), (3, 256), (4, 256), (5, 512), (8, 512)]
)
def test_the_bus_is_as_wide_as_the_buses_of_all_machines(machines: int, bits: int) -> None:
    assert SystemConfig(TINY, machines).bus_bits == bits


def test_the_bus_is_at_most_512_bits() -> None:
    assert SystemConfig(replace(TINY, log_bus_width=8), 4).bus_bits == 512


@pytest.mark.parametrize("machines", [0, 9])
def test_other_numbers_of_machines_are_refused(machines: int) -> None:
    with pytest.raises(ConfigError, match=f"MACHINES = {machines} is not a whole number from 1"):
        SystemConfig(TINY, machines)


@pytest.mark.parametrize("bits", [32, 96, 1024])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=f"a memory bus of {bits} bits does not fit machines"):
        SystemConfig(TINY, 2, bits)


def test_a_bus_narrower_than_that_of_a_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="buses of 256 bits; the widths are 256, 512"):
        SystemConfig(replace(TINY, log_bus_width=8), 2, 128)


def test_a_single_machine_keeps_its_own_bus() -> None:
    with pytest.raises(ConfigError, match="a single machine has a memory bus of 64 bits, not 128"):
        SystemConfig(TINY, 1, 128)
