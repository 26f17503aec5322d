"""Two-dimensional transposed convolution with bias and requantization.

Along an axis, result h is the sum over all inputs i and taps k with i · stride + k = h + pad. All
results of one phase, h modulo the stride, use the same taps: each phase is a convolution with every
stride-th tap, and no product is spent on zeros inserted between the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.product_candidates import best_tilings
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, TileSizes, Tiling
from amaranth_vta.sw.compiler.tuner.tiles import parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Requantization, Step, epilogue, followed_by
from .building_blocks.product import Product, reduce_axes
from .building_blocks.steps import LookupTable
from .building_blocks.window import padded


@dataclass(frozen=True)
class TransposedConv2d(TiledProduct):
    """Sizes of a transposed convolution. ``batch``, ``inputs`` and ``outputs`` count tiles of BATCH
    images, BLOCK_IN and BLOCK_OUT channels; ``height`` and ``width`` of the input are in pixels;
    ``pads`` are rows and columns cropped from the result at the top, left, bottom and right, and
    ``output_padding`` rows and columns added at the bottom and the right. Inputs outside the image
    read as ``pad_value``.
    """

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    requantize: Requantization
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    output_padding: tuple[int, int] = (0, 0)
    pad_value: int = 0

    keeps_images = True

    def followed_by(self, step: Step) -> TransposedConv2d | None:
        """This convolution with a ``step`` at its end; None unless the step is a `LookupTable`."""
        return followed_by(self, step) if isinstance(step, LookupTable) else None

    def scheduled(self, env: Environment, knobs: Tiling) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Tiling]:
        return best_tilings(self, config)

    @cached_property
    def whole(self) -> TileSizes:
        """The extents, with the rows and columns of one phase."""
        v, u = self.vertical, self.horizontal
        return TileSizes(self.outputs, v.steps, u.steps, self.inputs, v.taps)

    @property
    def phases(self) -> int:
        return self.strides[0] * self.strides[1]

    @property
    def weight_loops(self) -> tuple[int, ...]:
        return self.strides[0], self.kernel[1]

    def results(self, tile: TileSizes) -> tuple[int, int]:
        return tile.rows * self.strides[0], tile.columns * self.strides[1]

    def weights(self, tile: TileSizes) -> int:
        rows = tile.kernel_rows * self.strides[0]
        beyond = rows - self.kernel[0]
        return (rows - beyond * (beyond > 0)) * self.kernel[1]

    def gemm_cycles(self, tile: TileSizes) -> int:
        # Each phase multiplies by its own weights.
        return super().gemm_cycles(tile) // self.phases

    def image_tile(self, tile: TileSizes) -> tuple[int, int]:
        rows = tile.rows + tile.kernel_rows - 1
        return tile.inputs * rows, tile.columns + self.horizontal.taps - 1

    def image_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        rows, columns = self.image_tile(replace(tile, inputs=1))
        return tile.inputs, np.minimum(rows, self.height), np.minimum(columns, self.width)

    @property
    def vertical(self) -> Axis:
        before, after = self.pads[0], self.pads[2] - self.output_padding[0]
        return Axis(self.height, self.kernel[0], self.strides[0], before, after)

    @property
    def horizontal(self) -> Axis:
        before, after = self.pads[1], self.pads[3] - self.output_padding[1]
        return Axis(self.width, self.kernel[1], self.strides[1], before, after)


@dataclass(frozen=True)
class Axis:
    """One of the two axes; ``before`` and ``after`` are the numbers of results cropped at its ends.

    Result h = ``stride`` · q + p, of phase p, is the sum over t of input q + ``ahead`` - t times
    tap ``stride`` · t + p - ``back``, where both exist.
    """

    inputs: int
    kernel: int
    stride: int
    before: int
    after: int

    @property
    def results(self) -> int:
        return (self.inputs - 1) * self.stride + self.kernel - self.before - self.after

    @property
    def steps(self) -> int:
        """Results per phase; the last one may lie outside the output."""
        return parts(self.results, self.stride)

    @property
    def ahead(self) -> int:
        return (self.stride - 1 + self.before) // self.stride

    @property
    def back(self) -> int:
        return self.ahead * self.stride - self.before

    @property
    def taps(self) -> int:
        """Number of taps summed per result, including nonexistent ones."""
        return (self.kernel - 1 + self.back) // self.stride + 1

    @property
    def pads(self) -> tuple[int, int]:
        """Zeros read before and after the inputs."""
        return max(self.taps - 1 - self.ahead, 0), max(self.steps + self.ahead - self.inputs, 0)


def transposed_conv2d(
    workload: TransposedConv2d,
    env: Environment,
    knobs: Tiling | None = None,
    name: str = "transposed_conv2d",
) -> Function:
    """Build a function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width, BLOCK_OUT, BLOCK_IN) wgt_dtype, output is (batch, outputs,
    output height, output width, BATCH, BLOCK_OUT) out_dtype. Bias is (outputs, vertical stride,
    horizontal stride, BATCH, BLOCK_OUT) acc_dtype or requantization parameters (see `epilogue`):
    one per phase, since each phase sums over different taps. Default knobs and exceptions: see
    `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(c: TransposedConv2d, env: Environment, knobs: Tiling) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    v, u, product = c.vertical, c.horizontal, expression(c, env)
    y, conv = product.epilogue.y, product.total
    s = te.create_schedule(y.op)
    n, o, h, w, b, k = s[y].op.axis
    rows, columns = knobs.rows * v.stride, knobs.columns * u.stride
    oo, oi = s[y].split(o, knobs.outputs, first=knobs.first or None)
    (ho, hi), (wo, wi) = s[y].split(h, rows), s[y].split(w, columns)
    (hq, hp), (wq, wp) = s[y].split(hi, v.stride), s[y].split(wi, u.stride)
    outer = (oo, n, ho, wo) if knobs.weights_outside else (n, ho, wo, oo)
    s[y].reorder(*outer, oi, hq, hp, wq, wp, b, k)
    s[y].pragma(oi, env.dma_copy)
    product.place_results(s, outer[-1], env, knobs.copies_of_results)
    product.place_constants(s, None if knobs.in_turn else oo, env)

    n, o, h, p, w, q, b, k = s[conv].op.axis
    ci, ty, tx, ki = product.axes
    co, ci = s[conv].split(ci, knobs.inputs)
    to, ty = s[conv].split(ty, knobs.kernel_rows)
    s[conv].reorder(co, to, p, q, n, o, ci, ty, tx, h, w, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    step = None if c.is_whole(knobs) else s[conv].fuse(co, to)
    copies = c.copies_of_image(knobs), c.copies_of_weights(knobs)
    product.place_operands(s, wo, oo, step, copies, env, keeps_x=knobs.first > 0)
    return s, product.args


def expression(c: TransposedConv2d, env: Environment) -> Product:
    """The sum of products of each phase, and the epilogue, which interleaves the phases."""
    v, u, acc = c.vertical, c.horizontal, env.acc_dtype
    x = te.placeholder(
        (c.batch, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype
    )
    w = te.placeholder(
        (c.outputs, c.inputs, *c.kernel, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype
    )
    (top, bottom), (left, right) = v.pads, u.pads
    x_buf = padded(x, (top, left, bottom, right), c.pad_value, "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    axes = reduce_axes(ci=c.inputs, ty=v.taps, tx=u.taps, ki=env.BLOCK_IN)
    ci, ty, tx, ki = axes

    def term(n: Expr, o: Expr, *i: Expr) -> Expr:
        h, p, w_, q, b, k = i
        dy, dx = ty * v.stride + p - v.back, tx * u.stride + q - u.back
        pixel = x_buf[n, ci, h + v.ahead + top - ty, w_ + u.ahead + left - tx, b, ki]
        weight = w_buf[o, ci, dy, dx, k, ki]
        there = te.all(dy >= 0, dy < v.kernel, dx >= 0, dx < u.kernel)
        return te.if_then_else(there, pixel.astype(acc) * weight.astype(acc), 0)

    conv = te.compute(
        (c.batch, c.outputs, v.steps, v.stride, u.steps, u.stride, env.BATCH, env.BLOCK_OUT),
        lambda *i: te.sum(term(*i), axis=list(axes)),
        "conv",
    )

    def interleaved(last: Tensor) -> Tensor:
        return te.compute(
            (c.batch, c.outputs, v.results, u.results, env.BATCH, env.BLOCK_OUT),
            lambda n, o, h, w, b, k: last(
                n, o, h // v.stride, h % v.stride, w // u.stride, w % u.stride, b, k
            ).astype(env.out_dtype),
            "y",
        )

    def position(n: Expr, o: Expr, h: Expr, p: Expr, w: Expr, q: Expr) -> tuple[Expr, ...]:
        return o, p, q

    phases = (c.outputs, v.stride, u.stride)
    end = epilogue(conv, phases, position, c.requantize, env, interleaved)
    return Product(x, w, x_buf, w_buf, axes, conv, end)
