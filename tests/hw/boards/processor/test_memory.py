"""The memory of a processor's firmware."""

from __future__ import annotations

from typing import Any

import pytest

from amaranth_vta.hw.boards.processor.memory import FirmwareMemory
from amaranth_vta.hw.boards.processor.parameters import SoftProcessor
from amaranth_vta.hw.boards.protocol import FIRMWARE_BASE
from amaranth_vta.sim.testbench.amaranth import simulate
from tests.support.word_access import access


def test_the_firmware_is_in_memory_after_power_up() -> None:
    dut = FirmwareMemory(SoftProcessor(64, bytes(range(1, 11))))

    async def test(ctx: Any) -> None:
        for at, word in enumerate((0x04030201, 0x08070605, 0x00000A09)):
            assert await access(ctx, dut.access, FIRMWARE_BASE + 4 * at) == (word, 0)

    simulate(dut, test)


def test_a_store_changes_the_selected_bytes() -> None:
    dut = FirmwareMemory(SoftProcessor(64))

    async def test(ctx: Any) -> None:
        await access(ctx, dut.access, 60, 0x11223344)
        await access(ctx, dut.access, 60, 0xAABBCCDD, strobe=0b0110)
        assert await access(ctx, dut.access, 60) == (0x11BBCC44, 0)
        await access(ctx, dut.access, 56, 0)
        assert await access(ctx, dut.access, 60) == (0x11BBCC44, 0)

    simulate(dut, test)


def test_a_size_that_is_no_power_of_two_or_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="48 bytes of firmware memory are not a power of two"):
        FirmwareMemory(SoftProcessor(48))
    with pytest.raises(ValueError, match="the firmware takes 65 bytes, and its memory has 64"):
        FirmwareMemory(SoftProcessor(64, bytes(65)))
