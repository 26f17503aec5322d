"""Transposes tiles by multiplying the identity matrix by them as weights."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.tile_schedule import tile_schedule


@dataclass(frozen=True)
class TransposeTiles(Tiled):
    """Transposes ``count`` tiles of BLOCK_OUT × BLOCK_IN int8, where both are equal and BATCH
    is 1.
    """

    count: int

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return _scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        return all_tiles(self.count)


def transpose_tiles(
    workload: TransposeTiles,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "transpose_tiles",
) -> Function:
    """Build a function of input (count, BLOCK_OUT, BLOCK_IN) wgt_dtype, the identity (BLOCK_IN, 1,
    BLOCK_IN) inp_dtype, and output (count, BLOCK_IN, 1, BLOCK_OUT) out_dtype. The knobs tile the
    first axis of the output. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def _scheduled(workload: TransposeTiles, env: Environment, knobs: OutputTile) -> Scheduled:
    x = te.placeholder((workload.count, env.BLOCK_OUT, env.BLOCK_IN), "x", env.wgt_dtype)
    identity = te.placeholder((env.BLOCK_IN, env.BATCH, env.BLOCK_IN), "identity", env.inp_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    identity_buf = te.compute(identity.shape, lambda *i: identity(*i), "identity_buf")
    ki = te.reduce_axis((0, env.BLOCK_IN), "ki")
    # Row d of the identity selects scalar d of each row of a tile.
    turned = te.compute(
        (workload.count, env.BLOCK_IN, env.BATCH, env.BLOCK_OUT),
        lambda n, d, b, k: te.sum(
            identity_buf[d, b, ki].astype(env.acc_dtype) * x_buf[n, k, ki].astype(env.acc_dtype),
            axis=[ki],
        ),
        "turned",
    )
    y = te.compute(turned.shape, lambda *i: turned(*i).astype(env.out_dtype), "y")

    s = tile_schedule(y, knobs.extents, env)
    if knobs.in_turn:
        s[turned].double_buffer()
        s[x_buf].double_buffer()
    return s, [x, identity, y]
