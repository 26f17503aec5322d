"""Pointwise operators: each result vector depends only on operand vectors at the same index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import ROW_CYCLES, TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .identity import identity_operand, multiplied


@dataclass(frozen=True)
class PointwiseKnobs:
    """``vectors`` are computed at a time; with ``in_turn`` the next ones are computed while these
    are stored.
    """

    vectors: int
    in_turn: bool = False


class Pointwise(ABC):
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
    def operations(self, config: Config) -> int:
        """ALU micro-ops per vector."""

    @abstractmethod
    def buffers(self, config: Config) -> int:
        """Accumulators per vector, including operands."""

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

    def scheduled(self, env: Environment, knobs: PointwiseKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[PointwiseKnobs]:
        return Choice.by_formula(candidates(self, config))


@dataclass(frozen=True)
class _Expression:
    """``given`` are the operands as arguments, ``loaded`` their input buffers if GEMM moves them,
    and ``buffers`` their accumulators; ``identity`` and ``parameters`` are arguments with their
    buffers, whether or not the operator needs them.
    """

    given: list[Tensor]
    loaded: list[Tensor]
    buffers: list[Tensor]
    identity: tuple[Tensor, Tensor]
    parameters: tuple[Tensor, Tensor]
    stages: list[Tensor]
    y: Tensor


def _expression(workload: Pointwise, env: Environment) -> _Expression:
    tile = (env.BATCH, env.BLOCK_OUT)
    operands = [
        te.placeholder((workload.vectors, *tile), f"x{number}", dtype)
        for number, dtype in enumerate(workload.operand_dtypes(env))
    ]
    identity = identity_operand(env)
    loaded: list[Tensor] = []
    if workload.by_gemm(env):
        loaded = [te.compute(x.shape, lambda *i, x=x: x(*i), f"{x.name}_inp") for x in operands]
        buffers = [multiplied(x.shape, x, identity[1], f"{x.name}_buf", env) for x in loaded]
    else:
        buffers = [
            te.compute(x.shape, lambda *i, x=x: x(*i).astype(env.acc_dtype), f"{x.name}_buf")
            for x in operands
        ]
    constants = te.placeholder((workload.parameter_count or 1, *tile), "parameters", env.acc_dtype)
    constants_buf = te.compute(constants.shape, lambda *i: constants(*i), "parameters_buf")
    stages = workload.stages(buffers, constants_buf, env)
    result = stages[-1] if stages else buffers[0]
    y = te.compute(result.shape, lambda *i: result(*i).astype(env.out_dtype), "y")
    return _Expression(operands, loaded, buffers, identity, (constants, constants_buf), stages, y)


def scheduled(workload: Pointwise, env: Environment, knobs: PointwiseKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    e = _expression(workload, env)
    y, by_gemm, parameters = e.y, bool(e.loaded), workload.parameter_count > 0
    s = te.create_schedule(y.op)
    outer, inner = s[y].split(y.op.axis[0], knobs.vectors)
    s[y].pragma(inner, env.dma_copy)
    for tensor in (*e.buffers, *e.stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], outer)
        axis, row, _ = tensor.op.axis
        if tensor in e.buffers and by_gemm:
            s[tensor].tensorize(row, env.gemm)
        else:
            s[tensor].pragma(axis, env.alu if tensor in e.stages else env.dma_copy)
    for tensor in e.loaded:
        s[tensor].set_scope(env.inp_scope)
        s[tensor].compute_at(s[y], outer)
        s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
        s[tensor].double_buffer()
    kept = ((e.identity, env.wgt_scope, by_gemm), (e.parameters, env.acc_scope, parameters))
    args = e.given
    for (argument, buffer), scope, needed in kept:
        if needed:
            args = [*args, argument]
            s[buffer].set_scope(scope)
            s[buffer].pragma(s[buffer].op.axis[0], env.dma_copy)
    if knobs.in_turn:
        s[e.stages[-1] if e.stages else e.buffers[0]].double_buffer()
    return s, [*args, y]


def candidates(workload: Pointwise, config: Config) -> Iterator[tuple[float, PointwiseKnobs]]:
    """Knobs whose tiles fit the accumulators, with estimated cycles."""
    env = Environment(config)
    wide = sum(dtype != env.out_dtype for dtype in workload.operand_dtypes(env))
    narrow = len(workload.operand_dtypes(env)) - wide
    loaded = wide * config.acc.element_bytes + narrow * config.out.element_bytes
    by_gemm = workload.by_gemm(env)
    for vectors in even_tiles(workload.vectors):
        load = vectors * loaded / config.bus_bytes + (wide + narrow) * ROW_CYCLES
        work = vectors * workload.operations(config) * config.lane_columns
        store = vectors * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        if by_gemm and 2 * narrow * vectors > config.inp.depth:
            continue
        # Moved by GEMM, operands are prefetched while results are stored, unless stores wait.
        for in_turn in (True,) if by_gemm else (True, False):
            taken = workload.buffers(config) + in_turn
            if taken * vectors + workload.parameter_count <= config.acc.depth:
                if by_gemm:
                    copied = narrow * vectors * (1 if config.overwrite else 2)
                    tile = max(load + store, work + copied) if in_turn else store + work + copied
                else:
                    tile = load + max(work, store) if in_turn else load + work + store
                cycles = parts(workload.vectors, vectors) * (tile + TILE_CYCLES) + load + store
                yield cycles, PointwiseKnobs(vectors, in_turn)
