"""Permutes the axes outside of tiles, by copying."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.tile_movement import Move, Moving


@dataclass(frozen=True)
class Permute(Moving):
    """Permutes an input of ``shape``: axis d of the output is axis ``order[d]`` of the input. The
    axes within a tile stay last, and scalars keep their position within tiles.

    Where BATCH is 1 and BLOCK_IN = r · BLOCK_OUT, shape (channels / r, r, pixels) with order 0, 2,
    1 turns tiles of BLOCK_OUT into tiles of BLOCK_IN.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]

    def move(self, env: Environment) -> Move:
        tile = (env.BATCH, env.BLOCK_OUT)
        x = te.placeholder((*self.shape, *tile), "x", env.out_dtype)

        def element(*i: Expr) -> Expr:
            places = dict(zip(self.order, i[:-2], strict=True))
            return x(*(places[axis] for axis in range(len(places))), *i[-2:])

        shape = (*(self.shape[axis] for axis in self.order), *tile)
        x_buf = te.compute(shape, lambda *i: element(*i).astype(env.acc_dtype), "x_buf")
        y = te.compute(shape, lambda *i: x_buf(*i).astype(env.out_dtype), "y")
        return Move([x], [x_buf], y)


def permute(
    workload: Permute, env: Environment, knobs: OutputTile | None = None, name: str = "permute"
) -> Function:
    """Build a function of input (*shape, BATCH, BLOCK_OUT) and output, with permuted axes, both
    out_dtype. The knobs tile the axes of the output. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
