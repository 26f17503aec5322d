"""Padding of images."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .parts.tile_moves import Move, MoveKnobs, Moving
from .parts.window import padded


@dataclass(frozen=True)
class Pad2d(Moving):
    """Sizes of a padding. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` are those of the input, in pixels; ``pads`` are rows and
    columns of ``value`` added at the top, left, bottom and right."""

    batch: int
    channels: int
    height: int
    width: int
    pads: tuple[int, int, int, int]
    value: int = 0

    def move(self, env: Environment) -> Move:
        shape = (self.batch, self.channels, self.height, self.width, env.BATCH, env.BLOCK_OUT)
        x = te.placeholder(shape, "x", env.out_dtype)
        image = padded(x, self.pads, self.value, "padded")
        x_buf = te.compute(image.shape, lambda *i: image(*i).astype(env.acc_dtype), "x_buf")
        y = te.compute(image.shape, lambda *i: x_buf(*i).astype(env.out_dtype), "y")
        return Move([x], [x_buf], y, inlined=[image])


def pad2d(
    workload: Pad2d, env: Environment, knobs: MoveKnobs | None = None, name: str = "pad2d"
) -> Function:
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT) and output (batch,
    channels, height + pads, width + pads, BATCH, BLOCK_OUT), both out_dtype.

    The axes of the knobs are batch, channels, height and width. Knobs and errors are those of
    `tuned`; no schedule fits a value that the machine cannot pad with.
    """
    return tuned(workload, env, knobs, name)
