"""Fully connected layer, a matrix product, with bias and requantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tensor import Tensor

from .requantize import Requantize, Rescale, requantized, rescaled
from .tiling import ROW_CYCLES, TILE_CYCLES, build_best, estimate, even_tiles, parts


@dataclass(frozen=True)
class Dense:
    """Sizes of a matrix product, in tiles of BATCH rows, BLOCK_IN inputs and BLOCK_OUT outputs."""

    rows: int
    inputs: int
    outputs: int
    requantize: Requantize | Rescale


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
    BLOCK_IN) wgt_dtype, bias is (outputs, BATCH, BLOCK_OUT) acc_dtype and has `Requantize.half`
    added, output is (rows, outputs, BATCH, BLOCK_OUT) out_dtype. For `Rescale` there are
    parameters instead of bias, (outputs, number of them, BATCH, BLOCK_OUT) acc_dtype. Without
    knobs the cheapest ones are taken. Raises `NoScheduleFits`, or `BuildError` if ``knobs`` do
    not fit.
    """

    def built(chosen: DenseKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, candidates(workload, env.config), built)


def scheduled(
    workload: Dense, env: Environment, knobs: DenseKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    d, acc = workload, env.acc_dtype
    x = te.placeholder((d.rows, d.inputs, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    w = te.placeholder((d.outputs, d.inputs, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    tile = (env.BATCH, env.BLOCK_OUT)
    if isinstance(d.requantize, Rescale):
        bias = te.placeholder((d.outputs, isa.REQUANTIZE_PARAMETERS, *tile), "parameters", acc)
    else:
        bias = te.placeholder((d.outputs, *tile), "bias", acc)
    x_buf, w_buf, bias_buf = (
        te.compute(tensor.shape, lambda *i, t=tensor: t(*i), f"{tensor.name}_buf")
        for tensor in (x, w, bias)
    )
    ko, ki = te.reduce_axis((0, d.inputs), "ko"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    matmul = te.compute(
        (d.rows, d.outputs, env.BATCH, env.BLOCK_OUT),
        lambda n, o, b, k: te.sum(
            x_buf[n, ko, b, ki].astype(acc) * w_buf[o, ko, k, ki].astype(acc), axis=[ko, ki]
        ),
        "matmul",
    )
    if isinstance(d.requantize, Rescale):
        stages = rescaled(matmul, lambda number, n, o, b, k: bias_buf(o, number, b, k))
    else:
        stages = requantized(matmul, lambda n, o, b, k: bias_buf(o, b, k), d.requantize, env)
    y = te.compute(matmul.shape, lambda *i: stages[-1](*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    n, o, b, k = s[y].op.axis
    no, ni = s[y].split(n, knobs.rows)
    oo, oi = s[y].split(o, knobs.outputs)
    s[y].reorder(oo, no, ni, oi, b, k)
    s[y].pragma(ni, env.dma_copy)
    for tensor in (matmul, *stages, bias_buf):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], no)
    for tensor in stages:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    s[bias_buf].pragma(s[bias_buf].op.axis[0], env.dma_copy)

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
    return s, [x, w, bias, y]


def candidates(workload: Dense, config: Config) -> Iterator[tuple[float, DenseKnobs]]:
    """Knobs whose tiles fit the scratchpads, with an estimate of their cycles."""
    d = workload
    accumulators = 2 if isinstance(d.requantize, Requantize) and d.requantize.shift else 1
    parameters = isa.REQUANTIZE_PARAMETERS if isinstance(d.requantize, Rescale) else 1
    compute = d.rows * d.outputs * (d.inputs + d.requantize.operations)
    for rows, outputs, inputs, ahead in product(
        even_tiles(d.rows), even_tiles(d.outputs), even_tiles(d.inputs), (True, False)
    ):
        copies = 2 if ahead else 1
        if copies * rows * inputs > config.inp.depth:
            continue
        if copies * outputs * inputs > config.wgt.depth:
            continue
        if outputs * (accumulators * rows + parameters) > config.acc.depth:
            continue
        tiles = parts(d.rows, rows) * parts(d.outputs, outputs)
        steps = parts(d.inputs, inputs)
        load = rows * inputs * config.inp.element_bytes
        load += outputs * inputs * config.wgt.element_bytes
        load = load // config.bus_bytes + 2 * ROW_CYCLES
        cycles = estimate(
            compute + tiles * (steps + 4) * TILE_CYCLES, tiles * steps * load, load, ahead
        )
        yield cycles, DenseKnobs(rows, outputs, inputs, ahead)
