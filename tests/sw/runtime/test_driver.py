"""Values of registers, as the words that are written."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.registers import REGISTERS
from amaranth_vta.sw.runtime.driver import RegisterDriver

INP = REGISTERS["INP_BASE"]


class Recording(RegisterDriver):
    config = PRESETS["tiny"]

    def __init__(self) -> None:
        self.written: dict[int, list[int]] = {}

    def write_words(self, address: int, words: Sequence[int]) -> None:
        self.written[address] = list(words)


def test_a_register_takes_every_number_of_its_width() -> None:
    driver = Recording()
    driver.set_bases({isa.Memory.INP: (1 << INP.width) - 1})
    assert driver.written[INP.offset] == [0xFFFF_FFFF] * (INP.width // 32)


@pytest.mark.parametrize("value", [-1, 1 << INP.width])
def test_a_number_beyond_the_width_of_a_register_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"INP_BASE = {value} is not a number"):
        Recording().set_bases({isa.Memory.INP: value})
