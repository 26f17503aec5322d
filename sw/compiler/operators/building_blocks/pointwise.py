"""Pointwise operators: each result vector depends only on operand vectors at the same index."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .identity import identity_operand, multiplied
from .steps import shared_constants
from .tile_schedule import tile_schedule


class Pointwise(Tiled):
    """An operator on ``vectors`` tiles of BATCH rows and BLOCK_OUT channels.

    Its function takes the operands, `identity_weights` if GEMM loads them, parameters if there are
    any, and the output. Operands and output are (vectors, BATCH, BLOCK_OUT), the output out_dtype;
    parameters are (parameter_count, BATCH, BLOCK_OUT) acc_dtype.
    """

    vectors: int

    @property
    def parameter_count(self) -> int:
        """Number of parameter tiles, acc_dtype, shared by all vectors."""
        return 0

    @abstractmethod
    def operand_dtypes(self, env: Environment) -> Sequence[str]:
        """The dtype of each operand: out_dtype or acc_dtype."""

    def by_gemm(self, env: Environment) -> bool:
        """Whether GEMM moves the operands, all out_dtype, to the accumulators."""
        return False

    @abstractmethod
    def stages(
        self, operands: Sequence[Tensor], parameters: Tensor, env: Environment
    ) -> list[Tensor]:
        """The ALU stages from operands in accumulators to results; the last one holds the results.

        ``parameters`` must not be read if there are none.
        """

    @property
    def extents(self) -> Mapping[int, int]:
        return {-3: self.vectors}

    def part(self, axis: int, extent: int) -> Self:
        workload: Any = self
        return replace(workload, vectors=extent)

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        return all_tiles(self.vectors)


@dataclass(frozen=True)
class _Expression:
    """``args`` are the arguments before the output ``y``, ``loaded`` the input buffers of operands
    if GEMM moves them, and ``buffers`` their accumulators.
    """

    args: list[Tensor]
    loaded: list[Tensor]
    buffers: list[Tensor]
    stages: list[Tensor]
    y: Tensor


def _expression(workload: Pointwise, env: Environment) -> _Expression:
    tile = (env.BATCH, env.BLOCK_OUT)
    args = [
        te.placeholder((workload.vectors, *tile), f"x{number}", dtype)
        for number, dtype in enumerate(workload.operand_dtypes(env))
    ]
    loaded: list[Tensor] = []
    if workload.by_gemm(env):
        identity, identity_buf = identity_operand(env)
        loaded = [te.compute(x.shape, lambda *i, x=x: x(*i), f"{x.name}_inp") for x in args]
        buffers = [multiplied(x.shape, x, identity_buf, f"{x.name}_buf", env) for x in loaded]
        args = [*args, identity]
    else:
        buffers = [
            te.compute(x.shape, lambda *i, x=x: x(*i).astype(env.acc_dtype), f"{x.name}_buf")
            for x in args
        ]
    count = workload.parameter_count
    constants, constants_buf = shared_constants(count or 1, "parameters", env)
    stages = workload.stages(buffers, constants_buf, env)
    result = stages[-1] if stages else buffers[0]
    y = te.compute(result.shape, lambda *i: result(*i).astype(env.out_dtype), "y")
    return _Expression([*args, *([constants] if count else [])], loaded, buffers, stages, y)


def scheduled(workload: Pointwise, env: Environment, knobs: OutputTile) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    e = _expression(workload, env)
    s = tile_schedule(e.y, knobs.extents, env)
    for tensor in e.loaded:
        s[tensor].double_buffer()
    if knobs.in_turn:
        s[e.stages[-1] if e.stages else e.buffers[0]].double_buffer()
    return s, [*e.args, e.y]
