"""Two-dimensional transposed convolution with bias and requantization.

Along an axis, result h is the sum over all inputs i and taps k with i · stride + k = h + pad. All
results of one phase, h modulo the stride, use the same taps: each phase is a convolution with every
stride-th tap, and no product is spent on zeros inserted between the inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import ROW_CYCLES, TILE_CYCLES, overlapped
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Requantization, Step, epilogue, followed_by
from .building_blocks.product import Product, reduce_axes
from .building_blocks.steps import LookupTable
from .building_blocks.window import padded


@dataclass(frozen=True)
class TransposedConv2d:
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

    def followed_by(self, step: Step) -> TransposedConv2d | None:
        """This convolution with a ``step`` at its end; None unless the step is a `LookupTable`."""
        return followed_by(self, step) if isinstance(step, LookupTable) else None

    def scheduled(self, env: Environment, knobs: TransposedConv2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[TransposedConv2dKnobs]:
        return Choice.by_formula(candidates(self, config))

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


@dataclass(frozen=True)
class TransposedConv2dKnobs:
    """The output tile that accumulates at a time: ``outputs`` channel tiles and, of each phase,
    ``rows`` and ``columns``. Loaded at a time: ``inputs`` channel tiles and, of each phase, rows of
    ``taps``. With ``ahead`` the next operands are prefetched, and with ``in_turn`` the next tile
    accumulates while its predecessor is requantized and stored.
    """

    outputs: int
    rows: int
    columns: int
    inputs: int
    taps: int
    ahead: bool = False
    in_turn: bool = False

    @property
    def copies(self) -> int:
        """Tiles of each operand held at a time."""
        return 2 if self.ahead else 1

    def is_whole(self, c: TransposedConv2d) -> bool:
        """Whether all operands of a tile are loaded at once."""
        return self.inputs >= c.inputs and self.taps >= c.vertical.taps


def transposed_conv2d(
    workload: TransposedConv2d,
    env: Environment,
    knobs: TransposedConv2dKnobs | None = None,
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


def scheduled(c: TransposedConv2d, env: Environment, knobs: TransposedConv2dKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    v, u, product = c.vertical, c.horizontal, expression(c, env)
    y, conv = product.epilogue.y, product.total
    s = te.create_schedule(y.op)
    n, o, h, w, b, k = s[y].op.axis
    rows, columns = knobs.rows * v.stride, knobs.columns * u.stride
    tile = ((o, knobs.outputs), (h, rows), (w, columns))
    (oo, oi), (ho, hi), (wo, wi) = (s[y].split(axis, factor) for axis, factor in tile)
    (hq, hp), (wq, wp) = s[y].split(hi, v.stride), s[y].split(wi, u.stride)
    s[y].reorder(oo, n, ho, wo, oi, hq, hp, wq, wp, b, k)
    s[y].pragma(oi, env.dma_copy)
    product.place_results(s, wo, env, 1 + knobs.in_turn)
    product.place_constants(s, None if knobs.in_turn else oo, env)

    n, o, h, p, w, q, b, k = s[conv].op.axis
    ci, ty, tx, ki = product.axes
    co, ci = s[conv].split(ci, knobs.inputs)
    to, ty = s[conv].split(ty, knobs.taps)
    s[conv].reorder(co, to, p, q, n, o, ci, ty, tx, h, w, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    step = None if knobs.is_whole(c) else to
    product.place_operands(s, wo, oo, step, (knobs.copies, knobs.copies), env)
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


def candidates(
    workload: TransposedConv2d, config: Config
) -> Iterator[tuple[float, TransposedConv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with estimated cycles."""
    c, v, u = workload, workload.vertical, workload.horizontal
    for outputs, rows, inputs, taps, ahead in product(
        even_tiles(c.outputs),
        even_tiles(v.steps),
        even_tiles(c.inputs),
        even_tiles(v.taps),
        (True, False),
    ):
        copies = 2 if ahead else 1
        kernel = min(taps * v.stride, v.kernel)
        if copies * outputs * inputs * kernel * u.kernel > config.wgt.depth:
            continue
        for in_turn in (True, False) if config.overlap else (False,):
            bank = config.acc.depth // 2 if in_turn else config.acc.depth
            constants = c.requantize.constants * (c.outputs if in_turn else outputs)
            constants *= v.stride * u.stride
            room = bank - constants - c.requantize.shared
            for columns in even_tiles(u.steps):
                loaded = inputs * (rows + taps - 1) * (columns + u.taps - 1)
                results = outputs * rows * v.stride * columns * u.stride
                if (
                    copies * loaded <= config.inp.depth
                    and c.requantize.accumulators * results <= room
                ):
                    knobs = TransposedConv2dKnobs(
                        outputs, rows, columns, inputs, taps, ahead, in_turn
                    )
                    yield _cycles(c, config, knobs), knobs
                    # Narrower tiles load more.
                    break


def _cycles(c: TransposedConv2d, config: Config, knobs: TransposedConv2dKnobs) -> float:
    """Estimated cycles; assumes that the rows of a load do not overlap."""
    v, u = c.vertical, c.horizontal
    output_tiles = parts(c.outputs, knobs.outputs)
    images = c.batch * parts(v.steps, knobs.rows) * parts(u.steps, knobs.columns)
    loads = parts(c.inputs, knobs.inputs) * parts(v.taps, knobs.taps)
    tiles = images * output_tiles
    row = (knobs.columns + u.taps - 1) * config.inp.element_bytes / config.bus_bytes + ROW_CYCLES
    region = knobs.inputs * (knobs.rows + knobs.taps - 1) * row
    kernel = min(knobs.taps * v.stride, v.kernel) * u.kernel
    weights = knobs.outputs * knobs.inputs * kernel * config.wgt.element_bytes / config.bus_bytes
    weight_loads = output_tiles if loads == 1 else tiles * loads
    steps = c.batch * c.outputs * v.steps * u.steps
    vectors = steps * v.stride * u.stride
    epilogue = c.requantize.operations * config.lane_columns
    operations = 0 if knobs.in_turn else epilogue
    resets = 0 if config.overwrite and knobs.is_whole(c) else 1
    compute = steps * c.inputs * v.kernel * u.kernel + vectors * (operations + resets)
    return overlapped(
        compute + tiles * (loads * v.stride * u.stride + 4) * TILE_CYCLES,
        tiles * loads * region + weight_loads * weights,
        region + weights,
        knobs.ahead,
    )
