"""Extents of transfers, against a walk over their elements."""

from __future__ import annotations

import random

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.device import end_in_dram


def test_a_transfer_ends_behind_the_last_element_that_it_accesses() -> None:
    chance = random.Random(1)
    for _ in range(200):
        load = isa.Load(
            memory=isa.Memory.INP,
            dram_base=chance.randrange(1000),
            y_size=chance.randint(1, 9),
            x_size=chance.randint(1, 9),
            x_stride=chance.choice((0, 1, 5, 200)),
            y_pad_0=chance.randrange(3),
            x_pad_1=chance.randrange(3),
        )
        rows = (load.dram_base + y * load.x_stride for y in range(load.y_size))
        elements = {row + x for row in rows for x in range(load.x_size)}
        assert end_in_dram(load) == max(elements) + 1
