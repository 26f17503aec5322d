"""Two-dimensional max pooling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.identity import identity_operand, multiplied, reads_what_it_stores
from .building_blocks.tile_schedule import tile_schedule
from .building_blocks.window import ChannelWindow, padded


@dataclass(frozen=True)
class MaxPool2d(ChannelWindow, Tiled):
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

    @property
    def is_separable(self) -> bool:
        """Whether it takes fewer ALU micro-ops to reduce windows along columns first, and these
        maxima along rows. Each reduction begins with a pixel that GEMM moves: along columns one of
        the taps, along rows one more operand.
        """
        height, width = self.kernel
        return self.strides[0] * (width - 1) + height < height * width - 1

    @property
    def along_axes(self) -> tuple[MaxPool2d, MaxPool2d]:
        """The poolings along columns and, of their results, along rows."""
        (height, width), (down, right) = self.kernel, self.strides
        columns = replace(self, kernel=(1, width), strides=(1, right))
        return columns, replace(self, kernel=(height, 1), strides=(down, 1))

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        return all_tiles(self.channels, self.output_height, self.output_width)


def max_pool2d(
    workload: MaxPool2d,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "max_pool2d",
) -> Function:
    """Build a function of input, `identity_weights` if input and output tiles are the same, and
    output.

    Input is (batch, channels, height, width, BATCH, BLOCK_OUT), output is (batch, channels, output
    height, output width, BATCH, BLOCK_OUT), both out_dtype. The knobs tile channels, rows and
    columns; where GEMM and ALU overlap, GEMM copies the next tile's pixels to accumulators while
    the ALU compares. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(p: MaxPool2d, env: Environment, knobs: OutputTile) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    if reads_what_it_stores(env):
        return _by_gemm(p, env, knobs)
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    image = padded(x, p.pads, p.pad_value, "padded")
    x_buf = te.compute(image.shape, lambda *i: image(*i).astype(env.acc_dtype), "x_buf")
    first = te.compute(_shape(p, env), lambda *i: _pixel(p, x_buf, (0, 0), i), "first")
    pool = first if p.kernel == (1, 1) else _maximum(p, x_buf, first, _taps(p)[1:], "pool")
    y = te.compute(pool.shape, lambda *i: pool(*i).astype(env.out_dtype), "y")
    s = tile_schedule(y, (1, *knobs.extents), env, inlined=[image])
    if knobs.in_turn:
        s[pool].double_buffer()
    return s, [x, y]


def _by_gemm(p: MaxPool2d, env: Environment, knobs: OutputTile) -> Scheduled:
    """The schedule that prefetches inputs and moves them to accumulators by GEMM. GEMM also
    produces the first operand of each comparison, so that no initial minimum is needed.
    """
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    image = padded(x, p.pads, p.pad_value, "padded")
    w, w_buf = identity_operand(env)

    def moved(shape: Sequence[int], strides: tuple[int, int], name: str) -> Tensor:
        window = replace(p, strides=strides)
        return multiplied(shape, lambda *i: _pixel(window, image, (0, 0), i), w_buf, name, env)

    shape = _shape(p, env)
    first = moved(shape, p.strides, "first")
    pool, moves, maxima = first, {first: 0}, dict[Tensor, int]()
    if p.kernel != (1, 1):
        x_buf = moved(image.shape, (1, 1), "x_buf")
        if p.is_separable:
            across, down = p.along_axes
            rows = (*shape[:2], image.shape[2], *shape[3:])
            begun = moved(rows, across.strides, "across_first")
            columns = _maximum(across, x_buf, begun, _taps(across)[1:], "across")
            pool = _maximum(down, columns, first, _taps(down), "pool")
            moves, maxima = {x_buf: 1, first: 1, begun: 0}, {columns: 0, pool: 1}
        else:
            pool = _maximum(p, x_buf, first, _taps(p)[1:], "pool")
            moves, maxima = {x_buf: 1, first: 0}, {pool: 0}
    y = te.compute(shape, lambda *i: pool(*i).astype(env.out_dtype), "y")
    s = tile_schedule(y, (1, *knobs.extents), env)
    overlaps = knobs.in_turn and env.config.overlap
    for tensor, bank in (*moves.items(), *maxima.items()) if overlaps else ():
        # While the ALU compares one tile, GEMM moves the next. Operands of a comparison are in
        # different banks, so that it takes one cycle.
        s[tensor].double_buffer(2, bank)
    for one, other in pairwise(moves):
        # GEMM first writes to the bank that the ALU begins to read.
        s[other].after(s[one])
    if knobs.in_turn and not overlaps:
        s[pool].double_buffer()
    s[image].double_buffer()
    return s, [x, w, y]


def _shape(p: MaxPool2d, env: Environment) -> tuple[int, ...]:
    return (p.batch, p.channels, p.output_height, p.output_width, env.BATCH, env.BLOCK_OUT)


def _pixel(p: MaxPool2d, image: Tensor, tap: tuple[int, int], i: Sequence[Expr]) -> Expr:
    """The pixel of ``image`` that a ``tap`` of the kernel reads for the result at index ``i``."""
    n, c, h, w, b, k = i
    row, column = (at * step for at, step in zip(tap, p.dilations, strict=True))
    return image(n, c, h * p.strides[0] + row, w * p.strides[1] + column, b, k)


def _taps(p: MaxPool2d) -> list[tuple[int, int]]:
    return list(product(range(p.kernel[0]), range(p.kernel[1])))


def _maximum(
    p: MaxPool2d, image: Tensor, first: Tensor, taps: Iterable[tuple[int, int]], name: str
) -> Tensor:
    """The maximum of ``first`` and the ``taps`` of ``image``."""

    def greatest(*i: Expr) -> Expr:
        value = first(*i)
        for tap in taps:
            value = te.max(value, _pixel(p, image, tap, i))
        return value

    return te.compute(first.shape, greatest, name)
