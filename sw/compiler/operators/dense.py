"""Fully connected layer, a matrix product, with bias and requantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.cost_model import (
    ROUND_TRIP_CYCLES,
    Estimate,
    Pipeline,
    TakingTurns,
    Task,
    bus_cycles,
)
from amaranth_vta.sw.compiler.tuner.search import (
    Choice,
    best_of,
    build_best,
    cut,
    divisors,
    even_tiles,
    parts,
)

from .parts.epilogue import Requantization, epilogue


@dataclass(frozen=True)
class Dense:
    """Sizes of a matrix product, in tiles of BATCH rows, BLOCK_IN inputs and BLOCK_OUT outputs."""

    rows: int
    inputs: int
    outputs: int
    requantize: Requantization


@dataclass(frozen=True)
class DenseKnobs:
    """The tiles that accumulate at a time, and the inputs that are loaded at a time. With
    ``ahead`` the next ones are loaded while the machine computes."""

    rows: int
    outputs: int
    inputs: int
    ahead: bool = False


def dense(
    workload: Dense, env: Environment, knobs: DenseKnobs | None = None, name: str = "dense"
) -> Function:
    """A function of input, weights, bias and output.

    Input is (rows, inputs, BATCH, BLOCK_IN) inp_dtype, weights are (outputs, inputs, BLOCK_OUT,
    BLOCK_IN) wgt_dtype, bias is (outputs, BATCH, BLOCK_OUT) acc_dtype and has `RoundingShift.half`
    added, output is (rows, outputs, BATCH, BLOCK_OUT) out_dtype. For `PerChannelScale` there are
    parameters instead of bias, (outputs, number of them, BATCH, BLOCK_OUT) acc_dtype. Without
    knobs the cheapest ones are taken. Raises `NoScheduleFits`, or `BuildError` if ``knobs`` do
    not fit.
    """

    def built(chosen: DenseKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, choose(workload, env.config).ranked, built)


def scheduled(
    workload: Dense, env: Environment, knobs: DenseKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    d, acc = workload, env.acc_dtype
    x = te.placeholder((d.rows, d.inputs, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((d.outputs, d.inputs, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    x_buf, w_buf = (
        te.compute(tensor.shape, lambda *i, t=tensor: t(*i), f"{tensor.name}_buf")
        for tensor in (x, w)
    )
    ko, ki = te.reduce_axis((0, d.inputs), "ko"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    matmul = te.compute(
        (d.rows, d.outputs, env.BATCH, env.BLOCK_OUT),
        lambda n, o, b, k: te.sum(
            x_buf[n, ko, b, ki].astype(acc) * w_buf[o, ko, k, ki].astype(acc), axis=[ko, ki]
        ),
        "matmul",
    )
    end = epilogue(matmul, (d.outputs,), lambda n, o: (o,), d.requantize, env)
    y = end.y

    s = te.create_schedule(y.op)
    n, o, b, k = s[y].op.axis
    no, ni = s[y].split(n, knobs.rows)
    oo, oi = s[y].split(o, knobs.outputs)
    s[y].reorder(oo, no, ni, oi, b, k)
    s[y].pragma(ni, env.dma_copy)
    for tensor in (matmul, *end.stages, end.buffer):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], no)
    for tensor in end.stages:
        # The rows of a tile of outputs one after the other: they have parameters in common.
        n, o, b, k = s[tensor].op.axis
        s[tensor].reorder(o, n, b, k)
        s[tensor].pragma(o, env.alu)
    s[end.buffer].pragma(s[end.buffer].op.axis[0], env.dma_copy)

    n, o, b, k = s[matmul].op.axis
    k_out, k_in = s[matmul].split(ko, knobs.inputs)
    s[matmul].reorder(k_out, k_in, n, o, b, k, ki)
    s[matmul].tensorize(b, env.gemm)
    for tensor, scope in ((x_buf, env.inp_scope), (w_buf, env.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[matmul], k_out)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
        if knobs.ahead:
            s[tensor].double_buffer()
    return s, [x, w, end.constants, y]


@cache
def choose(workload: Dense, config: Config) -> Choice[DenseKnobs]:
    """The knobs that are estimated to take the fewest cycles, and what else was considered."""
    return best_of(candidates(workload, config), partial(estimated, workload, config))


def candidates(workload: Dense, config: Config) -> Iterator[tuple[float, DenseKnobs]]:
    """Knobs whose tiles fit the scratchpads, with a rough estimate of their cycles."""
    d = workload
    for rows, outputs, inputs, ahead in product(
        even_tiles(d.rows), even_tiles(d.outputs), divisors(d.inputs), (True, False)
    ):
        copies = 2 if ahead else 1
        if copies * rows * inputs > config.inp.depth:
            continue
        if copies * outputs * inputs > config.wgt.depth:
            continue
        if outputs * (d.requantize.accumulators * rows + d.requantize.constants) > config.acc.depth:
            continue
        knobs = DenseKnobs(rows, outputs, inputs, ahead)
        yield rough_cycles(d, config, knobs), knobs


def rough_cycles(d: Dense, config: Config, knobs: DenseKnobs) -> float:
    """An estimate without a walk, as if all tiles were alike."""
    tiles = parts(d.rows, knobs.rows) * parts(d.outputs, knobs.outputs)
    steps = parts(d.inputs, knobs.inputs)
    vectors = d.rows * d.outputs / tiles
    gemm, alu = vectors * d.inputs / steps, vectors * d.requantize.operations
    load = bus_cycles(config, knobs.rows, knobs.inputs * config.inp.element_bytes)
    load += bus_cycles(config, knobs.outputs, knobs.inputs * config.wgt.element_bytes)
    copies = 2 if knobs.ahead else 1
    step = max(gemm, load, (gemm + load + ROUND_TRIP_CYCLES) / copies)
    return load + tiles * (steps * step + alu + ROUND_TRIP_CYCLES)


def estimated(d: Dense, config: Config, knobs: DenseKnobs) -> Estimate:
    """All tiles of a schedule through the model of the machine."""
    pipeline, copies = Pipeline(config), 2 if knobs.ahead else 1
    x, w = TakingTurns(pipeline, copies), TakingTurns(pipeline, copies)
    steps = cut(d.inputs, knobs.inputs)
    stored: Task | None = None
    for outputs, rows in product(cut(d.outputs, knobs.outputs), cut(d.rows, knobs.rows)):
        if len(steps) > 1 or not config.overwrite:
            pipeline.reset(rows * outputs, [stored])
        gemm: Task | None = None
        for inputs in steps:
            x.load(rows, inputs * config.inp.element_bytes, (rows, outputs))
            w.load(outputs, inputs * config.wgt.element_bytes, (rows, outputs))
            gemm = pipeline.gemm(rows * outputs * inputs, [x.loaded, w.loaded, stored])
            x.use(gemm)
            w.use(gemm)
        pipeline.load_for_compute(outputs * d.requantize.constants * config.acc.element_bytes)
        alu = pipeline.alu(rows * outputs, [gemm], d.requantize.operations)
        stored = pipeline.store(rows, outputs * config.out.element_bytes, [alu])
    return pipeline.estimate()
