"""A part of images: some of their channels, rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .parts.tile_moves import Move, MoveKnobs, Moving


@dataclass(frozen=True)
class Crop2d(Moving):
    """Sizes of a crop. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` are those of the input, in pixels; ``first`` and ``size`` are
    the first tile of channels, row and column of the output, and how many it has of each."""

    batch: int
    channels: int
    height: int
    width: int
    first: tuple[int, int, int]
    size: tuple[int, int, int]

    def move(self, env: Environment) -> Move:
        tail = (env.BATCH, env.BLOCK_OUT)
        shape = (self.batch, self.channels, self.height, self.width, *tail)
        x = te.placeholder(shape, "x", env.out_dtype)
        tile, row, column = self.first
        x_buf = te.compute(
            (self.batch, *self.size, *tail),
            lambda n, c, h, w, b, k: x(n, c + tile, h + row, w + column, b, k).astype(
                env.acc_dtype
            ),
            "x_buf",
        )
        y = te.compute(x_buf.shape, lambda *i: x_buf(*i).astype(env.out_dtype), "y")
        return Move([x], [x_buf], y)


def crop2d(
    workload: Crop2d, env: Environment, knobs: MoveKnobs | None = None, name: str = "crop2d"
) -> Function:
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT) and output (batch,
    *size, BATCH, BLOCK_OUT), both out_dtype.

    The axes of the knobs are batch, channels, height and width. Knobs and errors are those of
    `tuned`.
    """
    return tuned(workload, env, knobs, name)
