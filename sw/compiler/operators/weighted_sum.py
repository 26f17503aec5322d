"""Weighted sum of int8 tensors, rounded and clipped: residual addition, or a change of scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.fixed_point import FixedPoint
from .building_blocks.identity import reads_what_it_stores
from .building_blocks.pointwise import Pointwise


@dataclass(frozen=True)
class WeightedSum(Pointwise):
    """A sum with one factor of ``constants`` per operand: two factors add tensors of different
    scales, a single one changes the scale of a tensor. Each operand has ``vectors`` tiles of BATCH
    rows and BLOCK_OUT channels, acc_dtype if ``wide``, else out_dtype. `exact_constants` finds
    constants.
    """

    vectors: int
    constants: FixedPoint
    wide: bool = False

    def without_parameters(self) -> WeightedSum:
        return replace(self, constants=self.constants.without_parameters())

    @property
    def parameter_count(self) -> int:
        return self.constants.parameter_count

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        dtype = env.acc_dtype if self.wide else env.out_dtype
        return [dtype] * len(self.constants.factors)

    def by_gemm(self, env: Environment) -> bool:
        return len(self.constants.factors) > 1 and not self.wide and reads_what_it_stores(env)

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        return self.constants.stages(operands, lambda n, v, b, k: parameters(n, b, k), env)


def weighted_sum(
    workload: WeightedSum,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "weighted_sum",
) -> Function:
    """Build a function of the operands, `identity_weights` where GEMM loads them, parameters
    (`FixedPoint.parameters`) if the constants have any, and output; for layouts see `Pointwise`.
    Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
