"""Arbitrary element-wise functions of int8 tensors, by table lookup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile
from amaranth_vta.sw.compiler.tuner.workload import tuned

from .building_blocks.epilogue import Step
from .building_blocks.identity import reads_what_it_stores
from .building_blocks.pointwise import Pointwise
from .building_blocks.steps import LookupTable, looked_up


@dataclass(frozen=True)
class PointwiseLookup(Pointwise):
    """Replaces each scalar of ``vectors`` tiles by its table entry. The table takes
    ``table_elements`` tiles, which must equal `Config.table_elements`.
    """

    vectors: int
    table_elements: int

    def followed_by(self, step: Step) -> PointwiseLookup | None:
        """This operator if the ``step`` is a `LookupTable`, composed with its own; else None."""
        return self if isinstance(step, LookupTable) else None

    @property
    def parameter_count(self) -> int:
        return self.table_elements

    def by_gemm(self, env: Environment) -> bool:
        return reads_what_it_stores(env)

    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        return [env.out_dtype]

    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        (x,) = operands
        return [looked_up(x, parameters)]


def lookup(
    workload: PointwiseLookup,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "lookup",
) -> Function:
    """Build a function of the operand, `identity_weights` where GEMM loads it, the table
    (`te.table_tiles`), and output; for layouts see `Pointwise`. Default knobs and exceptions: see
    `tuned`.
    """
    return tuned(workload, env, knobs, name)
