"""Products whose first tile of output channels is larger, and loads the image for the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.transposed_conv2d import TransposedConv2d
from amaranth_vta.sw.compiler.tuner.product_walk import estimated
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned
from tests.support.runtimes import estimated_cycles

TINY, WIDE = (Environment(PRESETS[name]) for name in ("tiny-extended", "pynq-extended"))
SHIFT = RoundingShift(4, -128, 127)
# The last layer of ResNet-18 that halves the image, alone.
STRIDED = Conv2d(1, 16, 32, 14, 14, (1, 1), PerChannelScale(), (2, 2), is_first=True)
TILES = Tiling(2, 2, 3, 1, 3, weights_outside=False, ahead=True, in_turn=True)
WORKLOADS: list[Any] = [
    Conv2d(2, 3, 7, 4, 5, (1, 1), SHIFT),
    Conv2d(1, 4, 6, 5, 6, (3, 3), SHIFT, pads=(1, 1, 1, 1)),
    Conv2d(1, 2, 9, 4, 6, (3, 2), SHIFT, (2, 1), terms=2),
    TransposedConv2d(1, 3, 7, 3, 4, (3, 3), SHIFT, (2, 1), pads=(1, 1, 0, 0)),
]


def results(
    workload: Any,
    env: Environment,
    tiles: Tiling,
    run: Any,
    some: Callable[..., Any],
    device: str = "functional",
) -> tuple[Any, int]:
    """The results for some operands, and the number of input vectors that are loaded."""
    function, rng = tuned(workload, env, tiles, "product"), np.random.default_rng(1)
    inputs = [np.clip(some(rng, arg), -9, 9) for arg in function.args[:-1]]
    return run(function, inputs, device=device), run.counters["inp_elements"]


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("first", [2, 3, 5])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda item: type(item).__name__)
def test_results_are_those_of_equal_tiles(
    workload: Any, first: int, copies: int, run: Any, some: Callable[..., Any]
) -> None:
    larger = replace(TILES, first=first, weight_copies=copies)
    equal = replace(TILES, inputs=workload.inputs)
    got, want = (results(workload, WIDE, tiles, run, some) for tiles in (larger, equal))
    np.testing.assert_array_equal(got[0], want[0])
    assert len(np.unique(want[0])) > 3
    # Both load an image tile once for all tiles of output channels.
    assert got[1] == want[1]


@pytest.mark.parametrize("first", [2, 5])
def test_the_design_computes_them_too(first: int, run: Any, some: Callable[..., Any]) -> None:
    tiles = replace(TILES, first=first)
    want, _ = results(WORKLOADS[0], TINY, tiles, run, some)
    got, _ = results(WORKLOADS[0], TINY, tiles, run, some, "rtl")
    np.testing.assert_array_equal(got, want)


def test_the_tuner_finds_a_larger_first_tile() -> None:
    """With equal tiles, the layer takes 30,308 cycles."""
    best = choose(STRIDED, WIDE.config).best
    assert best.first > best.outputs
    assert estimated_cycles(tuned(STRIDED, WIDE, best, "larger")) < 27_875


@pytest.mark.parametrize(("first", "outputs"), [(8, 2), (11, 4), (13, 8), (15, 5)])
def test_the_cost_model_knows_when_operands_arrive(first: int, outputs: int) -> None:
    tiles = Tiling(outputs, 7, 7, 1, 1, False, True, True, weight_copies=8, first=first)
    found = estimated_cycles(tuned(STRIDED, WIDE, tiles, "larger"))
    assert estimated(STRIDED, WIDE.config, tiles).cycles == pytest.approx(found, rel=0.03)
