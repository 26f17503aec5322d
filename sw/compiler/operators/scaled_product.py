"""Element-wise product of two int8 tensors, scaled, rounded and clipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.fixed_point import FixedPoint
from .building_blocks.identity import reads_what_it_stores
from .building_blocks.pointwise import Pointwise


@dataclass(frozen=True)
class ScaledProduct(Pointwise):
    """The product of two operands, each less its zero point, scaled by ``constants`` (see
    `exact_constants.product_constants`). Each operand has ``vectors`` tiles of BATCH rows and
    BLOCK_OUT channels, out_dtype.
    """

    vectors: int
    zero_points: tuple[int, int]
    constants: FixedPoint

    def without_parameters(self) -> ScaledProduct:
        return replace(self, constants=self.constants.without_parameters())

    @property
    def parameter_count(self) -> int:
        return self.constants.parameter_count

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        return [env.out_dtype] * 2

    def by_gemm(self, env: Environment) -> bool:
        return reads_what_it_stores(env)

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        stages: list[Tensor] = []
        centred = []
        for operand, zero in zip(operands, self.zero_points, strict=True):
            centred.append(operand)
            if zero:
                centred[-1] = te.compute(
                    operand.shape,
                    lambda *i, x=operand, z=zero: x(*i) + -z,
                    f"{operand.name}_centred",
                )
                stages.append(centred[-1])
        first, second = centred
        product = te.compute(first.shape, lambda *i: first(*i) * second(*i), "product")
        scaled = self.constants.stages([product], lambda n, v, b, k: parameters(n, b, k), env)
        return [*stages, product, *scaled]


def scaled_product(
    workload: ScaledProduct,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "scaled_product",
) -> Function:
    """Build a function of both operands, `identity_weights` where GEMM loads them, parameters
    (`FixedPoint.parameters`) if the constants have any, and output; for layouts see `Pointwise`.
    Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
