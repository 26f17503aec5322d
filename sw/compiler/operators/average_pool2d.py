"""Two-dimensional average pooling, including global average pooling, with requantization."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import Array, all_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.fixed_point import FixedPoint
from .building_blocks.identity import identity_operand, multiplied, reads_what_it_stores
from .building_blocks.tile_schedule import tile_schedule
from .building_blocks.window import ChannelWindow, padded


@dataclass(frozen=True)
class AveragePool2d(ChannelWindow, Tiled):
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

    takes_turns = False

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return scheduled(self, env, knobs)

    def by_gemm(self, env: Environment) -> bool:
        """Whether GEMM adds the pixels: input and output tiles are the same, and there are sums."""
        return reads_what_it_stores(env) and self.kernel != (1, 1)

    def candidate_tiles(self, config: Config) -> Array:
        return all_tiles(self.channels, self.output_height, self.output_width, *self.kernel)


def average_pool2d(
    workload: AveragePool2d,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "average_pool2d",
) -> Function:
    """Build a function of input, `identity_weights` if GEMM adds pixels, parameters if the
    constants have any, and output.

    Input is (batch, channels, height, width, BATCH, BLOCK_OUT), output is (batch, channels, output
    height, output width, BATCH, BLOCK_OUT), both out_dtype. Parameters are `FixedPoint.parameters`
    or, with ``by_result``, REQUANTIZE parameters (output height, output width, 4, BATCH, BLOCK_OUT)
    acc_dtype.

    The knobs tile channels, rows and columns, and the rows and columns of the kernel whose pixels
    are loaded and added at a time. Where GEMM adds pixels, the next part is prefetched. Default
    knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(p: AveragePool2d, env: Environment, knobs: OutputTile) -> Scheduled:
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

    *tile, kernel_rows, kernel_columns = knobs.extents
    # Separate parameters are loaded once for all channels.
    order = (2, 3, 0, 1) if p.by_result else ()
    inlined = [image] if identity is None else []
    s = tile_schedule(y, (1, *tile), env, order=order, inlined=inlined, others=[pool, x_buf])
    place = s[stages[-1]].attach
    assert place is not None
    s[pool].set_scope(env.acc_scope)
    s[pool].compute_at(*place)
    n, c, h, w, *vector = s[pool].op.axis
    dyo, dyi = s[pool].split(dy, kernel_rows)
    dxo, dxi = s[pool].split(dx, kernel_columns)
    # Pixels innermost: consecutive additions use different accumulators, which avoids hazards.
    s[pool].reorder(dyo, dxo, dyi, dxi, n, c, h, w, *vector)
    s[x_buf].compute_at(s[pool], dxo)
    s[x_buf].pragma(s[x_buf].op.axis[0], env.dma_copy)
    if identity is None:
        s[pool].pragma(dyi, env.alu)
        s[x_buf].set_scope(env.acc_scope)
    else:
        s[pool].tensorize(vector[0], env.gemm)
        s[x_buf].set_scope(env.inp_scope)
        s[x_buf].double_buffer()
    given = [] if identity is None else [identity[0]]
    return s, [x, *given, *([constants] if count else []), y]
