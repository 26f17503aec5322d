"""The memory layouts that layers read and write, and constants packed in these layouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory
from amaranth_vta.sw.runtime.network.factors import as_terms, terms_between
from amaranth_vta.sw.runtime.network.tile_layout import Array, TileLayout, tiles
from amaranth_vta.sw.runtime.scalars import pack


def input_layout(config: Config) -> TileLayout:
    """The layout that GEMM reads."""
    return TileLayout.of(config.inp)


def output_layout(config: Config) -> TileLayout:
    """The layout that STORE writes and that loads of sign-extended outputs read."""
    return TileLayout.of(config.out)


def pack_weights(weights: Array, config: Config, as_int4: bool = False) -> npt.NDArray[np.uint8]:
    """Pack weights (outputs, inputs, height, width) to bytes as (outputs/BLOCK_OUT,
    inputs/BLOCK_IN, height, width · terms, BLOCK_OUT, BLOCK_IN), two per byte with ``as_int4``;
    `terms_of` returns the number of terms."""
    # Rows of a tile are output channels: weights have the layout of images.
    layout = TileLayout.of(weight_memory(as_int4, config))
    return layout.pack(as_terms(weights, terms_of(weights)))


def terms_of(weights: Array) -> int:
    """Number of int8 terms that are needed to add up to each of the ``weights``."""
    return terms_between(int(weights.min()), int(weights.max()))


def pack_bias(values: Array, config: Config) -> npt.NDArray[np.uint8]:
    """Pack a bias (outputs,) to bytes as (outputs/BLOCK_OUT, BATCH, BLOCK_OUT) accumulators, or
    parameters (outputs, count) as (outputs/BLOCK_OUT, count, BATCH, BLOCK_OUT)."""
    channels = tiles(len(values), config.block_out) * config.block_out
    padded = np.zeros((channels, *values.shape[1:]), np.int64)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, 1, config.block_out, *values.shape[1:])
    rows = np.repeat(blocks, config.batch, axis=1)
    if values.ndim > 1:
        rows = np.moveaxis(rows, -1, 1)
    return pack(rows.astype(f"int{config.acc_width}"), f"int{config.acc_width}")
