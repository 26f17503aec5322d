"""Padding of images."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment

from .parts.moves import Move, MoveKnobs, moved


@dataclass(frozen=True)
class Pad2d:
    """Sizes of a padding. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` are those of the input, in pixels; ``pads`` are rows and
    columns of ``value`` that are put at the top, left, bottom and right."""

    batch: int
    channels: int
    height: int
    width: int
    pads: tuple[int, int, int, int]
    value: int = 0


def pad2d(
    workload: Pad2d, env: Environment, knobs: MoveKnobs | None = None, name: str = "pad2d"
) -> Function:
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT) and output, with the
    pads, both out_dtype. The axes of the knobs are batch, channels, height and width.

    Raises `NoScheduleFits`, which says so if the machine can only pad with zeros.
    """
    return moved(lambda: move(workload, env), prod, env, knobs, name)


def move(workload: Pad2d, env: Environment) -> Move:
    p = workload
    top, left, bottom, right = p.pads
    shape = (p.batch, p.channels, p.height, p.width, env.BATCH, env.BLOCK_OUT)
    x = te.placeholder(shape, "x", env.out_dtype)
    padded = te.pad(x, (0, 0, top, left, 0, 0), (0, 0, bottom, right, 0, 0), p.value, name="padded")
    x_buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.acc_dtype), "x_buf")
    y = te.compute(padded.shape, lambda *i: x_buf(*i).astype(env.out_dtype), "y")
    return Move([x], [x_buf], y, inlined=[padded])
