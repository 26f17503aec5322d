"""Concatenation along channels of sources that fill their tiles, by copying tiles.

Sources with partial tiles would shift channels within tiles: `select_channels` does this.

With one tile of images the operator is not needed: memory can be planned such that the sources are
stored consecutively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.tiles import parts
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.tile_movement import Move, Moving, channel_sources

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Concatenate(Moving):
    """Concatenation of sources with these ``channels`` each; all have ``pixels`` pixels and
    ``batch`` tiles of BATCH images. All sources must have the same scale and zero point.
    """

    batch: int
    channels: tuple[int, ...]
    pixels: int

    def fills_tiles(self, config: Config) -> bool:
        """Whether all sources but the last fill their tiles, so that copies suffice."""
        return all(channels % config.block_out == 0 for channels in self.channels[:-1])

    def tiles(self, config: Config) -> list[int]:
        """Channel tiles of each source."""
        return [parts(channels, config.block_out) for channels in self.channels]

    def move(self, env: Environment) -> Move:
        sources = channel_sources(self.batch, self.channels, self.pixels, env)
        buffers = [
            te.compute(x.shape, lambda *i, x=x: x(*i).astype(env.acc_dtype), f"{x.name}_buf")
            for x in sources
        ]
        y = te.compute(
            (self.batch, sum(self.tiles(env.config)), self.pixels, env.BATCH, env.BLOCK_OUT),
            lambda n, c, *i: _joined(buffers, n, c, i).astype(env.out_dtype),
            "y",
        )
        return Move(sources, buffers, y)


def concatenate(
    workload: Concatenate,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "concatenate",
) -> Function:
    """Build a function of the sources and output.

    All tensors are (batch, channel tiles, pixels, BATCH, BLOCK_OUT) out_dtype. The knobs tile the
    first three axes of the output. Default knobs and exceptions: see `tuned`. Raises `ValueError`
    for sources that do not fill their tiles.
    """
    if not workload.fills_tiles(env.config):
        raise ValueError(
            f"{name}: sources of {workload.channels} channels do not fill tiles of {env.BLOCK_OUT}"
        )
    return tuned(workload, env, knobs, name)


def _joined(sources: Sequence[Tensor], n: Expr, tile: Expr, i: Sequence[Expr]) -> Expr:
    """The scalar at ``i`` in channel ``tile``, counted across all ``sources``."""
    first, *others = sources
    here = first(n, tile, *i)
    if not others:
        return here
    tiles = first.shape[1]
    return te.if_then_else(tile < tiles, here, _joined(others, n, tile - tiles, i))
