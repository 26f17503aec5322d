"""Default schedules fit every machine that any schedule fits, and are correct."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import BuildError, Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    Requantization,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d, conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense, dense
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import NoScheduleFits
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
CONFIGS = ["tiny", "tiny-extended", "batch2", "int4", "block32", "pynq", "pynq-extended"]


class Run(Protocol):
    def __call__(self, function: Function, inputs: Sequence[Array], *, order: str) -> Array: ...


def with_depths(config: Config, depths: dict[str, int]) -> Config:
    """``config`` with buffers of ``depths`` elements, rounded to powers of two; without LOOKUP if
    they are too small for a table.
    """
    sizes = {
        f"log_{name}_buff_size": depth + getattr(config, name).element_bytes.bit_length() - 1
        for name, depth in depths.items()
    }
    if 1 << depths.get("acc", config.acc.index_width) < config.table_elements:
        sizes["lookup"] = 0
    return replace(config, **sizes)


def random_machine(pick: random.Random) -> Config:
    """A preset, or a preset with smaller buffers, down to a few elements."""
    config = PRESETS[pick.choice(CONFIGS)]
    depths = {}
    for name, least in (("inp", 2), ("wgt", 2), ("acc", 2), ("uop", 3)):
        whole = getattr(config, name).index_width
        if pick.random() < 0.5:
            depths[name] = pick.randint(min(least, whole), whole)
    return with_depths(config, depths)


def random_workload(pick: random.Random, config: Config) -> Conv2d | Dense:
    requantize: Requantization = RoundingShift(pick.choice([0, 3, 6]), -8, 7)
    if config.requantize and pick.random() < 0.6:
        requantize = PerChannelScale()
    if pick.random() < 0.3:
        return Dense(pick.randint(1, 6), pick.randint(1, 20), pick.randint(1, 12), requantize)
    kernel = (pick.randint(1, 5), pick.randint(1, 5))
    if pick.random() < 0.2:
        kernel = (1, pick.randint(6, 30))
    return Conv2d(
        batch=pick.randint(1, 2),
        inputs=pick.randint(1, 5),
        outputs=pick.randint(1, 5),
        height=pick.randint(kernel[0], kernel[0] + 9),
        width=pick.randint(kernel[1], kernel[1] + 9),
        kernel=kernel,
        requantize=requantize,
        strides=(pick.randint(1, 2), pick.randint(1, 2)),
        pads=(pick.randint(0, 2), pick.randint(0, 2), pick.randint(0, 2), pick.randint(0, 2)),
    )


def built(workload: Conv2d | Dense, env: Environment, knobs: Any = None) -> Function:
    if isinstance(workload, Conv2d):
        return conv2d(workload, env, knobs)
    return dense(workload, env, knobs)


def some(workload: Conv2d | Dense, function: Function, rng: np.random.Generator) -> list[Array]:
    x, w = (rng.integers(-8, 8, arg.shape).astype(np.int8) for arg in function.args[:2])
    bias = function.args[2]
    if isinstance(workload.requantize, RoundingShift):
        return [x, w, rng.integers(-500, 500, bias.shape).astype(bias.dtype)]
    channels = workload.outputs * bias.shape[-1]
    scale = rng.uniform(0.001, 0.2, channels).astype(np.float32)
    flat = te.requantization_parameters(rng.integers(-500, 500, channels), scale, 3, -128, 120)
    tiles = flat.reshape(workload.outputs, 1, bias.shape[-1], -1).transpose(0, 3, 1, 2)
    return [x, w, np.broadcast_to(tiles, bias.shape).copy()]


def every_tiling(c: Conv2d, config: Config) -> Iterator[Tiling]:
    """All sizes of tiles, with and without a remainder."""
    extents = (c.outputs, c.output_height, c.output_width, c.inputs, c.kernel[0])
    turns = (False, True) if config.overlap else (False,)
    for o, h, w, i, k in product(*(range(1, extent + 1) for extent in extents)):
        for weights_outside, in_turn in product((True, False), turns):
            yield Tiling(o, h, w, i, k, weights_outside, False, in_turn)


@each_seed(range(60), daily=25)
def test_any_operator_that_fits_is_scheduled_and_exact(seed: int, run: Run) -> None:
    pick = random.Random(seed)
    config = random_machine(pick)
    workload = random_workload(pick, config)
    env = Environment(config)
    try:
        function = built(workload, env)
    except NoScheduleFits:
        with pytest.raises(BuildError):
            built(workload, env, Tiling(1, 1, 1, 1, 1))
        return
    inputs = some(workload, function, np.random.default_rng(seed))
    want = te.evaluate(function.args[-1], dict(zip(function.args[:-1], inputs, strict=True)))
    got = run(function, inputs, order=pick.choice(["reverse", f"random:{seed}", "last:compute"]))
    np.testing.assert_array_equal(got, want)


def fits(workload: Conv2d, env: Environment, knobs: Tiling | None) -> bool:
    try:
        conv2d(workload, env, knobs)
    except (BuildError, NoScheduleFits):
        return False
    return True


def test_where_no_schedule_fits_none_does() -> None:
    """On machines of a few elements, all tilings are tried."""
    refused = 0
    for seed in range(40):
        pick = random.Random(seed)
        preset = PRESETS[pick.choice(["tiny", "tiny-extended", "batch2"])]
        least = {"inp": 2, "wgt": 2, "acc": 2, "uop": 3}
        config = with_depths(preset, {name: pick.randint(low, 5) for name, low in least.items()})
        kernel = (pick.randint(1, 2), pick.choice([1, 2, 3, 9, 17]))
        workload = Conv2d(
            1,
            pick.randint(1, 2),
            pick.randint(1, 2),
            pick.randint(kernel[0], kernel[0] + 1),
            pick.randint(kernel[1], kernel[1] + 1),
            kernel,
            PerChannelScale() if config.requantize else RoundingShift(pick.choice([0, 3]), -8, 7),
        )
        env = Environment(config)
        if not fits(workload, env, None):
            refused += 1
            found = [
                knobs for knobs in every_tiling(workload, config) if fits(workload, env, knobs)
            ]
            assert not found, f"seed {seed}"
    assert 8 < refused < 32
