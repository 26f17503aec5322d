"""Walks that skip repeated tiles arrive at the estimates of walks over all tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from random import Random

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate, Repetitions
from amaranth_vta.sw.compiler.tuner.product_candidates import candidates
from amaranth_vta.sw.compiler.tuner.product_walk import estimated
from amaranth_vta.sw.compiler.tuner.repeated_steps import RepeatedSteps
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, Tiling

CONFIG = PRESETS["pynq-extended"]


def random_product(random: Random) -> TiledProduct:
    how = PerChannelScale()
    if random.random() < 0.3:
        return Dense(random.randint(8, 200), random.randint(1, 24), random.randint(1, 40), how)
    kernel = random.choice((1, 3))
    return Conv2d(
        batch=random.choice((1, 2)),
        inputs=random.randint(1, 16),
        outputs=random.randint(1, 16),
        height=random.randint(7, 60),
        width=random.randint(7, 60),
        kernel=(kernel, kernel),
        requantize=how,
        pads=(kernel // 2,) * 4,
    )


def random_tilings(seed: int) -> Iterator[tuple[TiledProduct, Tiling]]:
    random = Random(seed)
    for _ in range(12):
        product = random_product(random)
        found = candidates(product, CONFIG)
        for _ in range(3):
            yield product, found[min(int(random.expovariate(0.1)), len(found) - 1)][1]


def numbers(estimate: Estimate) -> tuple[float, ...]:
    return tuple(map(float, vars(estimate).values()))


@pytest.mark.parametrize("seed", range(4))
def test_skipping_repeated_tiles_changes_no_estimate(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = [0]
    advance = RepeatedSteps.__iter__

    def counted(self: RepeatedSteps[object]) -> Iterator[object]:
        for step in advance(self):
            walked[0] += 1
            yield step

    monkeypatch.setattr(RepeatedSteps, "__iter__", counted)
    tilings = list(random_tilings(seed))

    def estimates(limits: Sequence[float]) -> tuple[list[Estimate], int]:
        walked[0] = 0
        found = [
            estimated(product, CONFIG, tiling, limit)
            for (product, tiling), limit in zip(tilings, limits, strict=True)
        ]
        return found, walked[0]

    whole = [inf] * len(tilings)
    cycles = [estimate.cycles for estimate in estimates(whole)[0]]
    for limits in whole, [0.9 * limit for limit in cycles]:
        found, some = estimates(limits)
        with monkeypatch.context() as patch:
            patch.setattr(Repetitions, "skip", lambda self: None)
            expected, every = estimates(limits)
        assert some < 0.6 * every
        for estimate, full in zip(found, expected, strict=True):
            assert numbers(estimate) == pytest.approx(numbers(full), abs=0.01)
