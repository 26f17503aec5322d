"""Stacks the rows of matrices into weight tiles, by multiplying them by the identity matrix.

LOADs and STOREs of single rows would take a burst each. GEMM permutes the rows between long bursts,
and LOAD, GEMM and STORE overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, contiguous_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.identity import identity_operand, multiplied
from .building_blocks.tile_schedule import tile_schedule


@dataclass(frozen=True)
class StackRows(Tiled):
    """Stacks BLOCK_OUT successive rows of ``groups`` matrices, each of ``rows`` by ``across``
    tiles, where BLOCK_IN and BLOCK_OUT are equal. If ``by_columns``, stacks of the same columns
    follow each other, otherwise stacks of the same rows. Zeros fill the last stack of each group.
    """

    groups: int
    rows: int
    across: int
    by_columns: bool

    def shape(self, block: int) -> tuple[int, int, int, int]:
        """The axes of the output outside of tiles, for stacks of ``block`` rows."""
        stacks = parts(self.rows, block)
        first, second = (self.across, stacks) if self.by_columns else (stacks, self.across)
        return self.groups, first, second, block

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return _scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        return contiguous_tiles(self.shape(config.block_out))


def stack_rows(
    workload: StackRows, env: Environment, knobs: OutputTile | None = None, name: str = "stack_rows"
) -> Function:
    """Build a function of input (groups, rows, across, BATCH, BLOCK_IN) inp_dtype, the identity
    (1, BLOCK_OUT, BLOCK_IN) wgt_dtype, and output (groups, stacks, across, BLOCK_OUT, BATCH,
    BLOCK_OUT) out_dtype, with across before stacks if ``by_columns``. The knobs tile the axes of
    the output. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def _scheduled(workload: StackRows, env: Environment, knobs: OutputTile) -> Scheduled:
    block, shape = env.BLOCK_OUT, workload.shape(env.BLOCK_OUT)
    matrices, tile = (workload.groups, workload.rows, workload.across), (env.BATCH, env.BLOCK_IN)
    whole = parts(workload.rows, block) * block
    x = te.placeholder((*matrices, *tile), "x", env.inp_dtype)
    identity, identity_buf = identity_operand(env)

    def padded(group: Expr, row: Expr, *rest: Expr) -> Expr:
        element = x(group, row, *rest)
        if workload.rows == whole:
            return element
        return te.if_then_else(te.all(row < workload.rows), element, 0)

    x_buf = te.compute((workload.groups, whole, workload.across, *tile), padded, "x_buf")

    def stacked(group: Expr, first: Expr, second: Expr, place: Expr, *within: Expr) -> Expr:
        column, stack = (first, second) if workload.by_columns else (second, first)
        return x_buf(group, stack * block + place, column, *within)

    whole_shape = (*shape, env.BATCH, env.BLOCK_OUT)
    turned = multiplied(whole_shape, stacked, identity_buf, "turned", env)
    y = te.compute(whole_shape, lambda *i: turned(*i).astype(env.out_dtype), "y")

    s = tile_schedule(y, knobs.extents, env)
    if knobs.in_turn:
        s[turned].double_buffer()
        s[x_buf].double_buffer()
    return s, [x, identity, y]
