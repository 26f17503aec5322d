"""Nearest-neighbour upsampling of images by integer factors.

A result row is computed once, by copies within the accumulators, and stored once per repetition.
Loading every pixel repeatedly, with stride 0, would take an instruction and a memory request per
pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.tile_movement import Move, Moving


@dataclass(frozen=True)
class Upsample2d(Moving):
    """Sizes of an upsampling. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` of the input are in pixels; each pixel becomes ``factors``
    (rows, columns) pixels.
    """

    batch: int
    channels: int
    height: int
    width: int
    factors: tuple[int, int]

    def move(self, env: Environment) -> Move:
        down, across = self.factors
        tile = (env.BATCH, env.BLOCK_OUT)
        x = te.placeholder(
            (self.batch, self.channels, self.height, self.width, *tile), "x", env.out_dtype
        )
        x_buf = te.compute(x.shape, lambda *i: x(*i).astype(env.acc_dtype), "x_buf")
        wide = te.compute(
            (*x.shape[:4], across, *tile),
            lambda n, c, h, w, _, b, k: x_buf(n, c, h, w, b, k),
            "wide",
        )
        y = te.compute(
            (self.batch, self.channels, self.height * down, self.width * across, *tile),
            lambda n, c, h, w, b, k: (
                wide(n, c, h // down, w // across, w % across, b, k)
                if across > 1
                else x_buf(n, c, h // down, w, b, k)
            ).astype(env.out_dtype),
            "y",
        )
        return Move(
            [x], [x_buf], y, copied=[wide] if across > 1 else [], steps=(1, 1, down, across)
        )


def upsample2d(
    workload: Upsample2d,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "upsample2d",
) -> Function:
    """Build a function of input (batch, channels, height, width, BATCH, BLOCK_OUT) and output
    (batch, channels, height · factor, width · factor, BATCH, BLOCK_OUT), both out_dtype. The knobs
    tile batch, channels, height and width of the input. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
