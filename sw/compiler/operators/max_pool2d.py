"""Two-dimensional max pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.search import (
    ROW_CYCLES,
    TILE_CYCLES,
    build_best,
    even_tiles,
    parts,
)

from .parts.identity import identity_operand, multiplied, reads_what_it_stores


@dataclass(frozen=True)
class MaxPool2d:
    """Sizes of a pooling. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` are those of the input, in pixels; ``pads`` are rows and
    columns of ``pad_value`` at the top, left, bottom and right, which count as values: they change
    nothing if no input is less."""

    batch: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0

    @property
    def output_height(self) -> int:
        return (self.height + self.pads[0] + self.pads[2] - self.kernel[0]) // self.strides[0] + 1

    @property
    def output_width(self) -> int:
        return (self.width + self.pads[1] + self.pads[3] - self.kernel[1]) // self.strides[1] + 1

    def input_rows(self, rows: int) -> int:
        """Rows of input that ``rows`` of output read."""
        return (rows - 1) * self.strides[0] + self.kernel[0]

    def input_columns(self, columns: int) -> int:
        return (columns - 1) * self.strides[1] + self.kernel[1]


@dataclass(frozen=True)
class MaxPool2dKnobs:
    """The tile of the output that is computed at a time; with ``in_turn`` the next one while one
    is stored."""

    channels: int
    rows: int
    columns: int
    in_turn: bool = False


def max_pool2d(
    workload: MaxPool2d,
    env: Environment,
    knobs: MaxPool2dKnobs | None = None,
    name: str = "max_pool2d",
) -> Function:
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT), `identity_weights`
    where tiles of inputs are those of outputs, and output (batch, channels, output height, output
    width, BATCH, BLOCK_OUT), input and output out_dtype.

    Without knobs the cheapest ones are taken. Raises `NoScheduleFits`, or `BuildError` if
    ``knobs`` do not fit.
    """

    def built(chosen: MaxPool2dKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, candidates(workload, env.config), built)


def scheduled(
    workload: MaxPool2d, env: Environment, knobs: MaxPool2dKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    p, tail = workload, (env.BATCH, env.BLOCK_OUT)
    top, left, bottom, right = p.pads
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    padded = te.pad(
        x, (0, 0, top, left, 0, 0), (0, 0, bottom, right, 0, 0), p.pad_value, name="padded"
    )
    w, w_buf = identity_operand(env)
    by_gemm = reads_what_it_stores(env)
    shape = (p.batch, p.channels, p.output_height, p.output_width, *tail)

    def at(x: Tensor, dy: int, dx: int, i: Sequence[Expr]) -> Expr:
        n, c, h, w, b, k = i
        return x(n, c, h * p.strides[0] + dy, w * p.strides[1] + dx, b, k)

    if by_gemm:
        # A product makes what is compared with all others, which then needs no least value.
        x_buf = multiplied(padded.shape, padded, w_buf, "x_buf", env)
        first = multiplied(shape, lambda *i: at(padded, 0, 0, i), w_buf, "first", env)
    else:
        x_buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.acc_dtype), "x_buf")
        first = te.compute(shape, lambda *i: at(x_buf, 0, 0, i), "first")
    others = list(product(range(p.kernel[0]), range(p.kernel[1])))[1:]

    def greatest(*i: Expr) -> Expr:
        value = first(*i)
        for dy, dx in others:
            value = te.max(value, at(x_buf, dy, dx, i))
        return value

    pool = te.compute(shape, greatest, "pool") if others else first
    y = te.compute(pool.shape, lambda *i: pool(*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    n, c, h, w_, b, k = s[y].op.axis
    (co, ci), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((c, knobs.channels), (h, knobs.rows), (w_, knobs.columns))
    )
    s[y].reorder(n, co, ho, wo, ci, hi, wi, b, k)
    s[y].pragma(ci, env.dma_copy)
    accumulators = [first, pool] if others else [first]
    if others or not by_gemm:
        accumulators.append(x_buf)
    for tensor in accumulators:
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], wo)
    for tensor in accumulators:
        rows = tensor.op.axis
        if by_gemm and (tensor is not pool or not others):
            s[tensor].tensorize(rows[4], env.gemm)
        else:
            s[tensor].pragma(rows[0], env.dma_copy if tensor is x_buf else env.alu)
    if knobs.in_turn:
        s[pool].double_buffer()
    if not by_gemm:
        s[padded].compute_inline()
        return s, [x, y]
    s[padded].set_scope(env.inp_scope)
    s[padded].compute_at(s[y], wo)
    s[padded].double_buffer()
    s[w_buf].set_scope(env.wgt_scope)
    for tensor in (padded, w_buf):
        s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
    return s, [x, w, y]


def candidates(workload: MaxPool2d, config: Config) -> Iterator[tuple[float, MaxPool2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with an estimate of their cycles."""
    p, by_gemm = workload, reads_what_it_stores(Environment(config))
    resets = 1 if config.overwrite else 2
    for channels, rows, columns, in_turn in product(
        even_tiles(p.channels),
        even_tiles(p.output_height),
        even_tiles(p.output_width),
        (True, False),
    ):
        pixels = channels * p.input_rows(rows) * p.input_columns(columns)
        results = channels * rows * columns
        if pixels + (2 if in_turn else 1) * results > config.acc.depth:
            continue
        if by_gemm and 2 * pixels > config.inp.depth:
            continue
        tiles = (
            p.batch
            * parts(p.channels, channels)
            * parts(p.output_height, rows)
            * parts(p.output_width, columns)
        )
        row = p.input_columns(columns) * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        load = channels * p.input_rows(rows) * row
        store = results * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        compute = results * (p.kernel[0] * p.kernel[1] + 1)
        if by_gemm:
            compute = results * (p.kernel[0] * p.kernel[1] - 1) + resets * (pixels + results)
        # Loads of inputs run ahead, and stores beside what comes next if that has its own place.
        tile = max(load + store, compute) if by_gemm else load + max(compute, store)
        if not in_turn:
            tile = max(load, compute) + store if by_gemm else load + compute + store
        yield tiles * (tile + TILE_CYCLES) + load, MaxPool2dKnobs(channels, rows, columns, in_turn)
