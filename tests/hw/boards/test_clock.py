from __future__ import annotations

import pytest

from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.boards.clock import ClockError, ecp5_dividers
from amaranth_vta.hw.boards.zynq import ZYNQ_BOARDS
from amaranth_vta.hw.config import Config


@pytest.mark.parametrize(("source", "target"), [(25, 50), (25, 62.5), (100, 40), (48, 60)])
def test_dividers_make_the_frequency_within_the_limits_of_the_pll(
    source: float, target: float
) -> None:
    chosen = ecp5_dividers(round(source * 1e6), round(target * 1e6))
    assert source / chosen.reference * chosen.feedback == target
    assert 400 <= target * chosen.output <= 800
    assert source / chosen.reference >= 10


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (40, "40 MHz cannot be made from the board's 25 MHz; nearest: 37.5 and 50 MHz"),
        (1, "1 MHz cannot be made from the board's 25 MHz; nearest: 12.5 MHz"),
    ],
)
def test_a_frequency_that_cannot_be_made_is_refused(target: int, message: str) -> None:
    with pytest.raises(ClockError, match=message):
        ecp5_dividers(25_000_000, target * 1_000_000)


def test_each_board_has_a_preset_that_exists() -> None:
    for boards in (BOARDS, ZYNQ_BOARDS):
        for board in boards.values():
            Config.load(board.config)
