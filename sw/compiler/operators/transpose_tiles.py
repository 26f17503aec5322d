"""Transposes tiles by multiplying the identity matrix by them as weights."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import RoundingShift
from .dense import Dense, DenseKnobs


@dataclass(frozen=True)
class TransposeTiles:
    """Transposes ``count`` tiles of BLOCK_OUT × BLOCK_IN int8, where both are equal and BATCH
    is 1.
    """

    count: int

    def product(self, rows: int) -> Dense:
        """Row d of the identity selects scalar d of each row of a tile."""
        keep = RoundingShift(shift=0, low=-128, high=127)
        return Dense(rows, 1, self.count, keep, heads=self.count)

    def scheduled(self, env: Environment, knobs: DenseKnobs) -> Scheduled:
        schedule, (identity, tiles, *others) = self.product(env.BLOCK_IN).scheduled(env, knobs)
        return schedule, [tiles, identity, *others]

    def considered(self, config: Config) -> Choice[DenseKnobs]:
        return self.product(config.block_in).considered(config)


def transpose_tiles(
    workload: TransposeTiles,
    env: Environment,
    knobs: DenseKnobs | None = None,
    name: str = "transpose_tiles",
) -> Function:
    """Build a function of input (count, 1, BLOCK_OUT, BLOCK_IN) wgt_dtype, the identity (BLOCK_IN,
    1, 1, BLOCK_IN) inp_dtype, a bias of zeros (count, 1, BLOCK_OUT) acc_dtype, and output (count,
    BLOCK_IN, 1, 1, BLOCK_OUT) out_dtype. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
