"""Tiles are transposed by a product with the identity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.transpose_tiles import TransposeTiles, transpose_tiles


@pytest.mark.parametrize("config", ["tiny", "pynq", "pynq-extended", "block32"])
@pytest.mark.parametrize("count", [1, 7])
def test_each_tile_is_transposed(run: Any, config: str, count: int) -> None:
    env = Environment(PRESETS[config])
    tile = env.BLOCK_OUT
    tiles = np.random.default_rng(count).integers(-128, 128, (count, tile, tile), np.int8)
    identity = np.eye(tile, dtype=np.int8).reshape(tile, 1, tile)
    function = transpose_tiles(TransposeTiles(count), env)
    found = run(function, [tiles, identity]).reshape(count, tile, tile)
    np.testing.assert_array_equal(found, tiles.transpose(0, 2, 1))
