"""Concatenation along channels.

Sources whose channels fill their tiles are copied. Other channels change their position within
tiles, which GEMM does with weights of 0 and 1: channels of source s move by less than s tiles, so a
tile of results takes as many products as there are sources.

With one tile of images and sources that fill their tiles, the operator is not needed: memory can be
planned such that the sources are stored consecutively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .parts.identity import reads_what_it_stores
from .parts.tile_moves import Move, MoveKnobs, Moving, candidates

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Concatenate(Moving):
    """``channels`` of each source and ``pixels`` of all, in ``batch`` tiles of BATCH images. All
    sources have the same scale and zero point; others must be requantized before."""

    batch: int
    channels: tuple[int, ...]
    pixels: int

    def fills_tiles(self, config: Config) -> bool:
        """Whether all sources but the last fill their tiles, so that copies suffice."""
        return all(channels % config.block_out == 0 for channels in self.channels[:-1])

    def tiles(self, config: Config) -> list[int]:
        """Tiles of channels of each source."""
        return [parts(channels, config.block_out) for channels in self.channels]

    def move(self, env: Environment) -> Move:
        """The copies of sources that fill their tiles."""
        sources = _sources(self, env)
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

    def scheduled(self, env: Environment, knobs: MoveKnobs) -> Scheduled:
        if self.fills_tiles(env.config):
            return super().scheduled(env, knobs)
        return shifted(self, env, knobs)

    def considered(self, config: Config) -> Choice[MoveKnobs]:
        if self.fills_tiles(config):
            return super().considered(config)
        outputs, sources = parts(sum(self.channels), config.block_out), len(self.channels)

        def taken(extents: Sequence[int]) -> int:
            loaded = extents[0] * (outputs + sources - 1) * extents[1]
            fits = loaded <= config.inp.depth // 2 and outputs * sources <= config.wgt.depth
            return prod(extents) if fits and extents[2] == outputs else config.acc.depth + 1

        # With channels as the last axis, a part of the pixels can have all channels.
        choices = candidates((self.batch, self.pixels, outputs), taken, config)
        return Choice.by_formula(
            (cycles, replace(knobs, extents=(batch, channels, pixels)))
            for cycles, knobs in choices
            for batch, pixels, channels in [knobs.extents]
        )


def concatenate(
    workload: Concatenate,
    env: Environment,
    knobs: MoveKnobs | None = None,
    name: str = "concatenate",
) -> Function:
    """A function of the sources, `concatenation_weights` unless they fill their tiles, and output.

    All tensors are (batch, tiles of channels, pixels, BATCH, BLOCK_OUT) out_dtype. The knobs have
    the first three axes of the output, with all channels at a time where GEMM moves them. Knobs and
    errors are those of `tuned`. Raises `ValueError` for tiles that are not filled on a machine
    whose input tiles differ from its output tiles.
    """
    if not workload.fills_tiles(env.config) and not reads_what_it_stores(env):
        raise ValueError(
            f"{name}: channels move within tiles by GEMM, which takes tiles of {env.BLOCK_IN} "
            f"{env.inp_dtype}; these are of {env.BLOCK_OUT} {env.out_dtype}"
        )
    return tuned(workload, env, knobs, name)


def concatenation_weights(workload: Concatenate, config: Config) -> Array:
    """int8 (tiles of results, sources, BLOCK_OUT, BLOCK_IN) of 0 and 1: which channels tile t of
    the results takes of tiles t, t + 1, … of the sources, numbered through all sources."""
    block = config.block_out
    outputs, sources = parts(sum(workload.channels), block), len(workload.channels)
    weights = np.zeros((outputs, sources, block, block), np.int8)
    result = 0
    first_tile = 0
    for channels in workload.channels:
        for channel in range(channels):
            tile, row = divmod(result, block)
            weights[tile, first_tile + channel // block - tile, row, channel % block] = 1
            result += 1
        first_tile += parts(channels, block)
    return weights


def shifted(workload: Concatenate, env: Environment, knobs: MoveKnobs) -> Scheduled:
    """The schedule by GEMM, for sources that do not fill their tiles, and the function's
    arguments."""
    sources, acc = _sources(workload, env), env.acc_dtype
    tail, count = (env.BATCH, env.BLOCK_IN), len(sources)
    outputs, tiles = parts(sum(workload.channels), env.BLOCK_OUT), sum(workload.tiles(env.config))
    w = te.placeholder((outputs, count, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    joined = te.compute(
        (workload.batch, max(outputs + count - 1, tiles), workload.pixels, *tail),
        lambda n, c, *i: te.if_then_else(c < tiles, _joined(sources, n, c, i), 0),
        "joined",
    )
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    d, ki = te.reduce_axis((0, count), "d"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    placed = te.compute(
        (workload.batch, outputs, workload.pixels, env.BATCH, env.BLOCK_OUT),
        lambda n, o, p, b, k: te.sum(
            joined[n, o + d, p, b, ki].astype(acc) * w_buf[o, d, k, ki].astype(acc), axis=[d, ki]
        ),
        "placed",
    )
    y = te.compute(placed.shape, lambda *i: placed(*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    *axes, b, k = y.op.axis
    split = [s[y].split(axis, size) for axis, size in zip(axes, knobs.extents, strict=True)]
    (no, ni), (oo, oi), (po, pi) = split
    s[y].reorder(oo, no, po, ni, oi, pi, b, k)
    s[y].pragma(ni, env.dma_copy)
    n, o, p, b, k = placed.op.axis
    s[placed].reorder(d, n, o, p, b, k, ki)
    s[placed].tensorize(b, env.gemm)
    for tensor, scope, place in (
        (placed, env.acc_scope, po),
        (joined, env.inp_scope, po),
        (w_buf, env.wgt_scope, oo),
    ):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[y], place)
        if tensor is not placed:
            s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
        if knobs.in_turn and tensor is not w_buf:
            s[tensor].double_buffer()
    return s, [*sources, w, y]


def _sources(workload: Concatenate, env: Environment) -> list[Tensor]:
    return [
        te.placeholder(
            (workload.batch, tiles, workload.pixels, env.BATCH, env.BLOCK_OUT),
            f"x{number}",
            env.out_dtype,
        )
        for number, tiles in enumerate(workload.tiles(env.config))
    ]


def _joined(sources: Sequence[Tensor], n: Expr, tile: Expr, i: Sequence[Expr]) -> Expr:
    """The scalar at ``i`` in a ``tile`` of channels, numbered through all ``sources``."""
    first, *others = sources
    here = first(n, tile, *i)
    if not others:
        return here
    tiles = first.shape[1]
    return te.if_then_else(tile < tiles, here, _joined(others, n, tile - tiles, i))
