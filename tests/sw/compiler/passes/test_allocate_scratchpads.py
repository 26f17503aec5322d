"""Places of buffers in the two banks of the accumulators."""

from __future__ import annotations

from itertools import combinations

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.timing import copied_sources
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.ir import Allocate, NestBuffer, walk
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.fixed_point import FixedPoint
from amaranth_vta.sw.compiler.operators.building_blocks.residual import Addition
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.passes.allocate_scratchpads import allocate_scratchpads
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling

CONFIG = PRESETS["pynq-extended"]
HALF = CONFIG.acc.depth // 2
SUM = FixedPoint((1 << 20, 1 << 21), 1, 0, 0, -128, 127, scale=2.0**-20, joined=True)


def accumulators(columns: int) -> dict[str, NestBuffer]:
    """The accumulator buffers, by name, of a convolution of 4 output tiles with an addition."""
    layer = Conv2d(1, 2, 4, 8, 64, (1, 1), PerChannelScale(then=(Addition(SUM),)))
    knobs = Tiling(4, 1, columns, 2, 1, ahead=True, in_turn=True, added_copies=2)
    s, args = layer.scheduled(Environment(CONFIG), knobs)
    nest = lower(s, args, env=Environment(CONFIG)).nest
    buffers = [part.buffer for part in walk(nest.body) if isinstance(part, Allocate)]
    return {buffer.name: buffer for buffer in buffers if buffer.scope == "acc"}


def test_sources_of_the_alu_are_below_the_constants_at_the_end_of_their_bank() -> None:
    size = 4 * 32
    buffers = accumulators(32)
    constants = min(buffers[name].base or 0 for name in ("addition_buf", "parameters_buf"))
    source, results = buffers["residual_buf"], buffers["conv"]
    assert (source.base, source.pitch) == (constants - size - HALF, HALF)
    assert results.base == 0
    # The copy in the upper bank is among the copied accumulators.
    assert (source.base or 0) + HALF >= CONFIG.acc.depth - copied_sources(CONFIG)


def test_sources_and_results_together_may_fill_a_bank() -> None:
    constants = 4 * 4 + 6
    assert 2 * 4 * 64 + constants <= HALF
    assert accumulators(64)["conv"].base == 0


def test_small_sources_stay_beside_the_results() -> None:
    assert accumulators(2)["residual_buf"].base == 0
    assert accumulators(4)["residual_buf"].base != 0


@pytest.mark.parametrize("copies", [2, 4, 6])
def test_copies_alternate_between_the_banks_and_do_not_overlap(copies: int) -> None:
    text = f"""\
def function(y: int32[4, 16]):
    a = allocate(acc, int32, [4, 16], copies={copies})
    uop_push(dst=a, reset=1)
"""
    body = allocate_scratchpads(parse(text), CONFIG).body
    assert isinstance(body, Allocate)
    begins = [body.buffer.copy_begins(copy) for copy in range(copies)]
    assert [begin // HALF for begin in begins] == [copy % 2 for copy in range(copies)]
    assert [(begin + 3) // HALF for begin in begins] == [copy % 2 for copy in range(copies)]
    assert min(abs(a - b) for a, b in combinations(begins, 2)) >= 4
