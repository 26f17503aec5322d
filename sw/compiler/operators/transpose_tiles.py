"""Transposes tiles by multiplying the identity matrix by them as weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.tile_movement import MoveKnobs, candidates


@dataclass(frozen=True)
class TransposeTiles:
    """Transposes ``count`` tiles of BLOCK_OUT × BLOCK_IN int8, where both are equal and BATCH
    is 1.
    """

    count: int

    def scheduled(self, env: Environment, knobs: MoveKnobs) -> Scheduled:
        return _scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[MoveKnobs]:
        def taken(extents: Sequence[int]) -> int:
            fits = 2 * extents[0] <= config.wgt.depth and extents[1] == config.block_in
            return extents[0] * extents[1] if fits else config.acc.depth + 1

        shape = (self.count, config.block_in)
        return Choice.by_formula(candidates(shape, taken, config))


def transpose_tiles(
    workload: TransposeTiles,
    env: Environment,
    knobs: MoveKnobs | None = None,
    name: str = "transpose_tiles",
) -> Function:
    """Build a function of input (count, BLOCK_OUT, BLOCK_IN) wgt_dtype, the identity (BLOCK_IN, 1,
    BLOCK_IN) inp_dtype, and output (count, BLOCK_IN, 1, BLOCK_OUT) out_dtype. The knobs tile the
    first axis of the output. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def _scheduled(workload: TransposeTiles, env: Environment, knobs: MoveKnobs) -> Scheduled:
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

    s = te.create_schedule(y.op)
    outer, inner = s[y].split(y.op.axis[0], knobs.extents[0])
    s[y].pragma(inner, env.dma_copy)
    s[turned].set_scope(env.acc_scope)
    s[turned].compute_at(s[y], outer)
    s[turned].tensorize(turned.op.axis[2], env.gemm)
    s[x_buf].set_scope(env.wgt_scope)
    s[x_buf].compute_at(s[y], outer)
    s[x_buf].pragma(x_buf.op.axis[0], env.dma_copy)
    s[identity_buf].set_scope(env.inp_scope)
    s[identity_buf].pragma(identity_buf.op.axis[0], env.dma_copy)
    if knobs.in_turn:
        s[turned].double_buffer()
        s[x_buf].double_buffer()
    return s, [x, identity, y]
