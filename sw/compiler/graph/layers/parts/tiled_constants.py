"""The layouts in which layers read and write tensors, and constants packed in these layouts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.network.factors import as_terms, terms_between
from amaranth_vta.sw.runtime.network.tile_layout import Array, TileLayout, tiles
from amaranth_vta.sw.runtime.scalars import pack


def input_layout(config: Config) -> TileLayout:
    """The layout that GEMM reads."""
    return TileLayout.of(config.inp)


def output_layout(config: Config) -> TileLayout:
    """The layout that store writes, and that loads of sign-extended outputs read."""
    return TileLayout.of(config.out)


def pack_weights(weights: Array, config: Config) -> npt.NDArray[np.uint8]:
    """Bytes of weights (outputs, inputs, height, width) as (outputs/BLOCK_OUT, inputs/BLOCK_IN,
    height, width · terms, BLOCK_OUT, BLOCK_IN), with the terms of `terms_of`.
    """
    # Rows of a tile are outputs: weights are laid out as images are.
    return TileLayout.of(config.wgt).pack(as_terms(weights, terms_of(weights)))


def terms_of(weights: Array) -> int:
    """The number of int8 values that each of ``weights`` has to be the sum of."""
    return terms_between(int(weights.min()), int(weights.max()))


def pack_bias(values: Array, config: Config) -> npt.NDArray[np.uint8]:
    """The bytes of a bias (outputs,) as (outputs/BLOCK_OUT, BATCH, BLOCK_OUT) accumulators; of
    parameters (outputs, number of them) as (outputs/BLOCK_OUT, number, BATCH, BLOCK_OUT)."""
    channels = tiles(len(values), config.block_out) * config.block_out
    padded = np.zeros((channels, *values.shape[1:]), np.int64)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, 1, config.block_out, *values.shape[1:])
    rows = np.repeat(blocks, config.batch, axis=1)
    if values.ndim > 1:
        rows = np.moveaxis(rows, -1, 1)
    return pack(rows.astype(f"int{config.acc_width}"), f"int{config.acc_width}")
