"""Two-dimensional max pooling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import ROW_CYCLES, TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.identity import identity_operand, multiplied, reads_what_it_stores
from .building_blocks.window import ChannelWindow, padded


@dataclass(frozen=True)
class MaxPool2d(ChannelWindow):
    """Sizes of a max pooling. ``batch`` and ``channels`` count tiles of BATCH images and BLOCK_OUT
    channels; ``height`` and ``width`` of the input are in pixels; ``pads`` are rows and columns of
    ``pad_value`` at the top, left, bottom and right. Padding takes part in the maximum: it has no
    effect if no input is less than ``pad_value``.
    """

    batch: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0
    dilations: tuple[int, int] = (1, 1)

    def scheduled(self, env: Environment, knobs: MaxPool2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[MaxPool2dKnobs]:
        return Choice.by_formula(candidates(self, config))


@dataclass(frozen=True)
class MaxPool2dKnobs:
    """The output tile that is computed at a time. With ``in_turn`` the next tile is computed while
    one is stored; where GEMM and ALU overlap, GEMM copies the next tile's pixels to accumulators
    while the ALU compares.
    """

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
    """Build a function of input, `identity_weights` if input and output tiles are the same, and
    output.

    Input is (batch, channels, height, width, BATCH, BLOCK_OUT), output is (batch, channels, output
    height, output width, BATCH, BLOCK_OUT), both out_dtype. Default knobs and exceptions: see
    `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(p: MaxPool2d, env: Environment, knobs: MaxPool2dKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    if reads_what_it_stores(env):
        return _by_gemm(p, env, knobs)
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    image = padded(x, p.pads, p.pad_value, "padded")
    x_buf = te.compute(image.shape, lambda *i: image(*i).astype(env.acc_dtype), "x_buf")
    first = te.compute(_shape(p, env), lambda *i: _pixel(p, x_buf, (0, 0), i), "first")
    pool, y = _maximum(p, x_buf, first, env)
    s, at = _tiles(y, knobs, env)
    for tensor in dict.fromkeys((first, pool, x_buf)):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], at)
        s[tensor].pragma(tensor.op.axis[0], env.dma_copy if tensor is x_buf else env.alu)
    if knobs.in_turn:
        s[pool].double_buffer()
    s[image].compute_inline()
    return s, [x, y]


def _by_gemm(p: MaxPool2d, env: Environment, knobs: MaxPool2dKnobs) -> Scheduled:
    """The schedule that prefetches inputs and moves them to accumulators by GEMM. GEMM also
    produces the first operand of each comparison, so that no initial minimum is needed.
    """
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    image = padded(x, p.pads, p.pad_value, "padded")
    w, w_buf = identity_operand(env)
    x_buf = multiplied(image.shape, image, w_buf, "x_buf", env)
    shape = _shape(p, env)
    first = multiplied(shape, lambda *i: _pixel(p, image, (0, 0), i), w_buf, "first", env)
    pool, y = _maximum(p, x_buf, first, env)
    s, at = _tiles(y, knobs, env)
    # With a kernel of one pixel the first value is the result.
    products = [first] if pool is first else [first, x_buf]
    for tensor in dict.fromkeys((first, pool, *products)):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], at)
        if tensor in products:
            s[tensor].tensorize(tensor.op.axis[4], env.gemm)
        else:
            s[tensor].pragma(tensor.op.axis[0], env.alu)
    if knobs.in_turn and env.config.overlap:
        # The ALU reads an image in one bank and writes results to the other, while GEMM, which only
        # overwrites and reads no accumulators, produces the next image.
        for tensor in (first, pool):
            s[tensor].double_buffer(2, 0)
        if pool is not first:
            s[x_buf].double_buffer(2, 1)
    elif knobs.in_turn:
        s[pool].double_buffer()
    s[image].set_scope(env.inp_scope)
    s[image].compute_at(s[y], at)
    s[image].double_buffer()
    s[w_buf].set_scope(env.wgt_scope)
    for tensor in (image, w_buf):
        s[tensor].pragma(tensor.op.axis[0], env.dma_copy)
    return s, [x, w, y]


def _shape(p: MaxPool2d, env: Environment) -> tuple[int, ...]:
    return (p.batch, p.channels, p.output_height, p.output_width, env.BATCH, env.BLOCK_OUT)


def _pixel(p: MaxPool2d, image: Tensor, tap: tuple[int, int], i: Sequence[Expr]) -> Expr:
    """The pixel of ``image`` that a ``tap`` of the kernel reads for the result at index ``i``."""
    n, c, h, w, b, k = i
    row, column = (at * step for at, step in zip(tap, p.dilations, strict=True))
    return image(n, c, h * p.strides[0] + row, w * p.strides[1] + column, b, k)


def _maximum(p: MaxPool2d, x_buf: Tensor, first: Tensor, env: Environment) -> tuple[Tensor, Tensor]:
    """The maximum of ``first`` and of the other taps, and the output."""
    others = list(product(range(p.kernel[0]), range(p.kernel[1])))[1:]

    def greatest(*i: Expr) -> Expr:
        value = first(*i)
        for tap in others:
            value = te.max(value, _pixel(p, x_buf, tap, i))
        return value

    pool = te.compute(first.shape, greatest, "pool") if others else first
    return pool, te.compute(pool.shape, lambda *i: pool(*i).astype(env.out_dtype), "y")


def _tiles(y: Tensor, knobs: MaxPool2dKnobs, env: Environment) -> tuple[te.Schedule, te.IterVar]:
    """A schedule that tiles the output, and the axis over tiles."""
    s = te.create_schedule(y.op)
    n, c, h, w, b, k = s[y].op.axis
    tile = ((c, knobs.channels), (h, knobs.rows), (w, knobs.columns))
    (co, ci), (ho, hi), (wo, wi) = (s[y].split(axis, factor) for axis, factor in tile)
    s[y].reorder(n, co, ho, wo, ci, hi, wi, b, k)
    s[y].pragma(ci, env.dma_copy)
    return s, wo


def candidates(workload: MaxPool2d, config: Config) -> Iterator[tuple[float, MaxPool2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with estimated cycles."""
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
        overlap = by_gemm and in_turn and config.overlap
        held = (2 if overlap else 1) * pixels, (2 if in_turn else 1) * results
        if max(held) > config.acc.depth // 2 if overlap else sum(held) > config.acc.depth:
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
        compute = results * (p.kernel[0] * p.kernel[1] + 1) * config.lane_columns
        if by_gemm:
            alu = results * (p.kernel[0] * p.kernel[1] - 1) * config.lane_columns
            gemm = resets * (pixels + results)
            # Each tile size has its own loop nest, and loop nests do not overlap.
            alike = not (p.output_height % rows or p.output_width % columns)
            compute = alu + gemm
            if overlap and alike:
                compute = resets * results + max(alu, resets * pixels)
        # Input loads are prefetched, and a store overlaps with the next tile if that is in another
        # bank.
        tile = max(load + store, compute) if by_gemm else load + max(compute, store)
        if not in_turn:
            tile = max(load, compute) + store if by_gemm else load + compute + store
        yield tiles * (tile + TILE_CYCLES) + load, MaxPool2dKnobs(channels, rows, columns, in_turn)
