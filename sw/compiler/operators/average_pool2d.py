"""Two-dimensional average pooling, including global average pooling, with requantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.formula import ROW_CYCLES, TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.fixed_point import FixedPoint
from .building_blocks.identity import identity_operand, multiplied, reads_what_it_stores
from .building_blocks.window import ChannelWindow, padded


@dataclass(frozen=True)
class AveragePool2d(ChannelWindow):
    """Sizes of an average pooling; fields as in `MaxPool2d`. Every window counts kernel height ·
    kernel width pixels, including padding, whose pixels are ``pad_value``. ``constants`` requantize
    the sums; `exact_constants.average_constants` finds them. For global pooling the kernel is the
    whole image.

    With ``by_result`` each output pixel has its own REQUANTIZE parameters, for windows at the
    border that count fewer pixels; ``pad_value`` is then the zero point.
    """

    batch: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    constants: FixedPoint
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0
    by_result: bool = False

    def scheduled(self, env: Environment, knobs: AveragePool2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def by_gemm(self, env: Environment) -> bool:
        """Whether GEMM adds the pixels: input and output tiles are the same, and there are sums."""
        return reads_what_it_stores(env) and self.kernel != (1, 1)

    def considered(self, config: Config) -> Choice[AveragePool2dKnobs]:
        return Choice.by_formula(candidates(self, config))


@dataclass(frozen=True)
class AveragePool2dKnobs:
    """The output tile that is computed at a time, and the part of the kernel whose pixels are
    loaded and added at a time. Where GEMM adds pixels, the next part is prefetched.
    """

    channels: int
    rows: int
    columns: int
    kernel_rows: int
    kernel_columns: int


def average_pool2d(
    workload: AveragePool2d,
    env: Environment,
    knobs: AveragePool2dKnobs | None = None,
    name: str = "average_pool2d",
) -> Function:
    """Build a function of input, `identity_weights` if GEMM adds pixels, parameters if the
    constants have any, and output.

    Input is (batch, channels, height, width, BATCH, BLOCK_OUT), output is (batch, channels, output
    height, output width, BATCH, BLOCK_OUT), both out_dtype. Parameters are `FixedPoint.parameters`
    or, with ``by_result``, REQUANTIZE parameters (output height, output width, 4, BATCH, BLOCK_OUT)
    acc_dtype.

    Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(p: AveragePool2d, env: Environment, knobs: AveragePool2dKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    tail = (env.BATCH, env.BLOCK_OUT)
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    image = padded(x, p.pads, p.pad_value, "padded")
    count = p.constants.parameter_count
    each = (p.output_height, p.output_width, REQUANTIZE_PARAMETERS)
    shape = (*(each if p.by_result else (count or 1,)), *tail)
    constants = te.placeholder(shape, "parameters", env.acc_dtype)
    constants_buf = te.compute(shape, lambda *i: constants(*i), "parameters_buf")

    def parameter(number: int, *i: Expr) -> Expr:
        if p.by_result:  # without the factor, which is 1
            return constants_buf(i[2], i[3], number - 1, *i[-2:])
        return constants_buf(number, *i[-2:])

    dy, dx = te.reduce_axis((0, p.kernel[0]), "dy"), te.reduce_axis((0, p.kernel[1]), "dx")

    def pixel(image: Tensor, n: Expr, c: Expr, h: Expr, w: Expr, b: Expr, k: Expr) -> Expr:
        return image(n, c, h * p.strides[0] + dy, w * p.strides[1] + dx, b, k)

    shape = (p.batch, p.channels, p.output_height, p.output_width, *tail)
    identity = identity_operand(env) if p.by_gemm(env) else None
    if identity is not None:
        x_buf = image
        pool = multiplied(shape, partial(pixel, image), identity[1], "pool", env, [dy, dx])
    else:
        x_buf = te.compute(image.shape, lambda *i: image(*i).astype(env.acc_dtype), "x_buf")
        pool = te.compute(shape, lambda *i: te.sum(pixel(x_buf, *i), axis=[dy, dx]), "pool")
    stages = p.constants.stages([pool], parameter, env)
    y = te.compute(pool.shape, lambda *i: stages[-1](*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    n, c, h, w, b, k = s[y].op.axis
    (co, ci), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((c, knobs.channels), (h, knobs.rows), (w, knobs.columns))
    )
    # Separate parameters are loaded once for all channels.
    at = co if p.by_result else wo
    s[y].reorder(*((ho, wo, n, co) if p.by_result else (n, co, ho, wo)), ci, hi, wi, b, k)
    s[y].pragma(ci, env.dma_copy)
    for tensor in (pool, *stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], at)
    for tensor in stages:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    if count:
        s[constants_buf].set_scope(env.acc_scope)
        s[constants_buf].pragma(s[constants_buf].op.axis[0], env.dma_copy)
        if p.by_result:
            s[constants_buf].compute_at(s[y], wo)

    n, c, h, w, *tile = s[pool].op.axis
    dyo, dyi = s[pool].split(dy, knobs.kernel_rows)
    dxo, dxi = s[pool].split(dx, knobs.kernel_columns)
    # Pixels innermost: consecutive additions use different accumulators, which avoids hazards.
    s[pool].reorder(dyo, dxo, dyi, dxi, n, c, h, w, *tile)
    s[x_buf].compute_at(s[pool], dxo)
    s[x_buf].pragma(s[x_buf].op.axis[0], env.dma_copy)
    if identity is not None:
        s[pool].tensorize(tile[0], env.gemm)
        s[x_buf].set_scope(env.inp_scope)
        s[x_buf].double_buffer()
        s[identity[1]].set_scope(env.wgt_scope)
        s[identity[1]].pragma(identity[1].op.axis[0], env.dma_copy)
    else:
        s[image].compute_inline()
        s[pool].pragma(dyi, env.alu)
        s[x_buf].set_scope(env.acc_scope)
    given = [] if identity is None else [identity[0]]
    return s, [x, *given, *([constants] if count else []), y]


def candidates(
    workload: AveragePool2d, config: Config
) -> Iterator[tuple[float, AveragePool2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with estimated cycles."""
    p, by_gemm = workload, workload.by_gemm(Environment(config))
    accumulators = 1 + (p.constants.to_even > 0)
    room = config.acc.depth - (0 if p.by_result else p.constants.parameter_count)
    for channels, rows, columns, kernel_rows, kernel_columns in product(
        even_tiles(p.channels),
        even_tiles(p.output_height),
        even_tiles(p.output_width),
        even_tiles(p.kernel[0]),
        even_tiles(p.kernel[1]),
    ):
        height = p.input_rows(rows, kernel_rows)
        width = p.input_columns(columns, kernel_columns)
        # The second accumulator of a result reuses the storage of its pixels, which are dead by
        # then.
        pixels = 0 if by_gemm else height * width
        taken = rows * columns + max(pixels, (accumulators - 1) * rows * columns)
        held = REQUANTIZE_PARAMETERS * rows * columns if p.by_result else 0
        if channels * taken + held > room:
            continue
        if by_gemm and 2 * channels * height * width > config.inp.depth:
            continue
        tiles = (
            p.batch
            * parts(p.channels, channels)
            * parts(p.output_height, rows)
            * parts(p.output_width, columns)
        )
        loads = parts(p.kernel[0], kernel_rows) * parts(p.kernel[1], kernel_columns)
        row = width * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        load = channels * height * row
        if by_gemm:
            gemm = channels * rows * columns * kernel_rows * kernel_columns
            load = max(load, gemm)
        cycles = tiles * (loads * (load + TILE_CYCLES) + TILE_CYCLES)
        cycles += held * config.acc.element_bytes / config.bus_bytes * tiles * channels / p.channels
        yield cycles, AveragePool2dKnobs(channels, rows, columns, kernel_rows, kernel_columns)
