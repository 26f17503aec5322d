"""Rows are rotated by factors of their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.rotation import (
    GREATEST,
    Rotation,
    parameters,
    rotation,
    rotation_matrices,
)
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import choose


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (Rotation(1, 1, 6, 3), None),
        (Rotation(3, 4, 2, 1), OutputTile((2, 2, 2))),
        (Rotation(2, 3, 5, 2), OutputTile((1, 2, 3))),
    ],
)
def test_rows_are_rotated_and_rounded_half_up(
    run: Any, workload: Rotation, knobs: OutputTile | None
) -> None:
    config = PRESETS["tiny-extended"]
    lanes, w = config.block_out, workload
    rng, elements = np.random.default_rng(w.heads), w.vectors * lanes
    x = rng.integers(-128, 128, (w.groups, w.positions, w.heads, elements))
    x[0, 0, 0] = -128
    places, signs = rng.permutation(elements), rng.choice([-1, 1], elements)
    factors = rng.integers(-GREATEST, GREATEST + 1, (2, w.positions, elements))
    factors[:, 0] = -GREATEST
    factor, shift = 3 * 2**20 + 1, 38
    c, s = factors[:, None, :, None]
    total = (x * c + x[..., places] * signs * s) * factor
    wanted = np.clip((total + (1 << shift - 1) >> shift) + 3, -128, 127)
    given = [x.astype(np.int8), *factors.astype(np.int32)]
    given += [rotation_matrices(places, signs, config), parameters(factor, shift, 3, config)]
    function = rotation(w, Environment(config), knobs)
    assert 0.2 < (abs(wanted) < 127).mean() < 1
    np.testing.assert_array_equal(run(function, given).reshape(x.shape), wanted)


def test_tiles_of_many_positions_fit() -> None:
    groups, positions, _ = choose(Rotation(6, 64, 1, 3), PRESETS["pynq-extended"]).best.extents
    assert groups * positions > 64
