"""Weights and bias lie in tiles as the machine reads them."""

from __future__ import annotations

import numpy as np

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.graph.layers.support.tiled_constants import (
    input_layout,
    output_layout,
    pack_bias,
    pack_weights,
)


def test_weights_have_outputs_for_rows() -> None:
    config = PRESETS["batch2"]
    weights = np.random.default_rng(1).integers(-128, 128, (6, 9, 2, 3)).astype(np.int8)
    data = pack_weights(weights, config).view(np.int8).reshape(2, 2, 2, 3, 4, 8)
    for o, c, y, x in np.ndindex(*weights.shape):
        assert data[o // 4, c // 8, y, x, o % 4, c % 8] == weights[o, c, y, x]


def test_a_bias_is_the_same_in_all_rows_of_a_tile() -> None:
    config = PRESETS["batch2"]
    data = pack_bias(np.arange(6), config).view(np.int32).reshape(2, 2, 4)
    assert data.tolist() == [[[0, 1, 2, 3]] * 2, [[4, 5, 0, 0]] * 2]


def test_results_are_read_as_they_are_stored_where_tiles_are_square() -> None:
    assert input_layout(PRESETS["pynq"]) == output_layout(PRESETS["pynq"])
    assert input_layout(PRESETS["batch2"]) != output_layout(PRESETS["batch2"])
