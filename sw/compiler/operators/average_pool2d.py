"""Two-dimensional average pooling, global average pooling among them, with requantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.search import (
    ROW_CYCLES,
    TILE_CYCLES,
    build_best,
    even_tiles,
    parts,
)

from .parts.fixed_point import Array, FixedPoint, NotExact, Quantized, fixed_point

# Sums for which constants are checked at the most.
_MOST_SUMS = 1 << 24


@dataclass(frozen=True)
class AveragePool2d:
    """Sizes of a pooling, as of a `MaxPool2d`; every window counts kernel height · kernel width
    pixels, those of the ``pads`` among them, which have ``pad_value``. ``constants`` make results
    of sums; `average_constants` finds them. A global pooling has the kernel of the image."""

    batch: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    constants: FixedPoint
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0

    @property
    def output_height(self) -> int:
        return (self.height + self.pads[0] + self.pads[2] - self.kernel[0]) // self.strides[0] + 1

    @property
    def output_width(self) -> int:
        return (self.width + self.pads[1] + self.pads[3] - self.kernel[1]) // self.strides[1] + 1


@dataclass(frozen=True)
class AveragePool2dKnobs:
    """The tile of the output that is computed at a time, and the part of the kernel that is added
    at a time, for which pixels are loaded."""

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
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT), parameters, if the
    constants have any, and output (batch, channels, output height, output width, BATCH,
    BLOCK_OUT), which are out_dtype. The parameters are `FixedPoint.parameters`.

    Without knobs the cheapest ones are taken. Raises `NoScheduleFits`, or `BuildError` if
    ``knobs`` do not fit.
    """

    def built(chosen: AveragePool2dKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, candidates(workload, env.config), built)


def averaged(sums: Array, x: Quantized, y: Quantized, count: int, low: int, high: int) -> Array:
    """What ONNX Runtime makes of ``sums`` of ``count`` pixels:
    clip(rint(f32(sum - count · z_x) · f32(s_x / f32(s_y · count))) + z_y, low, high), int64."""
    return _scaled(sums - count * x.zero_point, _scale(x, y, count), y.zero_point, low, high)


def average_constants(
    x: Quantized, y: Quantized, count: int, config: Config, low: int = -128, high: int = 127
) -> FixedPoint:
    """Constants that give `averaged` for every sum of ``count`` pixels.

    Raises `NotExact` if none do; the pooling is then for the host.
    """
    scale = _scale(x, y, count)
    return sum_constants(scale, x.zero_point, y.zero_point, count, config, low, high)


def sum_constants(
    scale: np.float32,
    x_zero_point: int,
    y_zero_point: int,
    count: int,
    config: Config,
    low: int = -128,
    high: int = 127,
) -> FixedPoint:
    """Constants that give clip(rint(f32(sum - count · x_zero_point) · scale) + y_zero_point, low,
    high) for every sum of ``count`` pixels. Raises `NotExact` if none do."""
    if config.out_width != 8:
        raise NotExact(f"the machine stores {config.out_width} bits, not 8")
    if 256 * count > _MOST_SUMS:
        raise NotExact(f"sums of {count:,} pixels are too many to be checked")
    sums = np.arange(-128 * count, 127 * count + 1)
    offset, bounds = -count * x_zero_point, (y_zero_point, low, high)
    wanted = _scaled(sums + offset, scale, *bounds)
    if config.requantize and 0 < scale < te.SCALE_END:
        direct = FixedPoint((1,), offset, 0, *bounds, scale=float(scale))
        if np.array_equal(direct.evaluate([sums]), wanted):
            return direct
    ratio = float(scale)
    try:
        return fixed_point([sums], [ratio], y_zero_point + offset * ratio, wanted, bounds, config)
    except NotExact as problem:
        raise NotExact(f"sums of {count:,} pixels at {scale:.6g}: {problem}") from None


def _scale(x: Quantized, y: Quantized, count: int) -> np.float32:
    return np.float32(np.float32(x.scale) / (np.float32(y.scale) * np.float32(count)))


def _scaled(sums: Array, scale: np.float32, zero_point: int, low: int, high: int) -> Array:
    whole = np.rint(sums.astype(np.float32) * scale).astype(np.float64)
    return np.clip(whole + zero_point, low, high).astype(np.int64)


def scheduled(
    workload: AveragePool2d, env: Environment, knobs: AveragePool2dKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    p, tail = workload, (env.BATCH, env.BLOCK_OUT)
    top, left, bottom, right = p.pads
    x = te.placeholder((p.batch, p.channels, p.height, p.width, *tail), "x", env.out_dtype)
    padded = te.pad(
        x, (0, 0, top, left, 0, 0), (0, 0, bottom, right, 0, 0), p.pad_value, name="padded"
    )
    x_buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.acc_dtype), "x_buf")
    count = p.constants.parameter_count
    constants = te.placeholder((count or 1, *tail), "parameters", env.acc_dtype)
    constants_buf = te.compute(constants.shape, lambda *i: constants(*i), "parameters_buf")
    dy, dx = te.reduce_axis((0, p.kernel[0]), "dy"), te.reduce_axis((0, p.kernel[1]), "dx")
    pool = te.compute(
        (p.batch, p.channels, p.output_height, p.output_width, *tail),
        lambda n, c, h, w, b, k: te.sum(
            x_buf[n, c, h * p.strides[0] + dy, w * p.strides[1] + dx, b, k], axis=[dy, dx]
        ),
        "pool",
    )
    stages = p.constants.stages([pool], lambda number, *i: constants_buf(number, *i[-2:]), env)
    y = te.compute(pool.shape, lambda *i: stages[-1](*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    s[padded].compute_inline()
    n, c, h, w, b, k = s[y].op.axis
    (co, ci), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((c, knobs.channels), (h, knobs.rows), (w, knobs.columns))
    )
    s[y].reorder(n, co, ho, wo, ci, hi, wi, b, k)
    s[y].pragma(ci, env.dma_copy)
    for tensor in (pool, *stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], wo)
    for tensor in stages:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    if count:
        s[constants_buf].set_scope(env.acc_scope)
        s[constants_buf].pragma(s[constants_buf].op.axis[0], env.dma_copy)

    n, c, h, w, b, k = s[pool].op.axis
    dyo, dyi = s[pool].split(dy, knobs.kernel_rows)
    dxo, dxi = s[pool].split(dx, knobs.kernel_columns)
    # Pixels innermost: one addition then does not wait for the one before it.
    s[pool].reorder(dyo, dxo, dyi, dxi, n, c, h, w, b, k)
    s[pool].pragma(dyi, env.alu)
    s[x_buf].set_scope(env.acc_scope)
    s[x_buf].compute_at(s[pool], dxo)
    s[x_buf].pragma(s[x_buf].op.axis[0], env.dma_copy)
    return s, [x, *([constants] if count else []), y]


def candidates(
    workload: AveragePool2d, config: Config
) -> Iterator[tuple[float, AveragePool2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with an estimate of their cycles."""
    p = workload
    accumulators = 1 + (p.constants.to_even > 0)
    room = config.acc.depth - p.constants.parameter_count
    for channels, rows, columns, kernel_rows, kernel_columns in product(
        even_tiles(p.channels),
        even_tiles(p.output_height),
        even_tiles(p.output_width),
        even_tiles(p.kernel[0]),
        even_tiles(p.kernel[1]),
    ):
        height = (rows - 1) * p.strides[0] + kernel_rows
        width = (columns - 1) * p.strides[1] + kernel_columns
        # The second accumulator of a result comes when its pixels have gone.
        taken = rows * columns + max(height * width, (accumulators - 1) * rows * columns)
        if channels * taken > room:
            continue
        tiles = (
            p.batch
            * parts(p.channels, channels)
            * parts(p.output_height, rows)
            * parts(p.output_width, columns)
        )
        loads = parts(p.kernel[0], kernel_rows) * parts(p.kernel[1], kernel_columns)
        row = width * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        cycles = tiles * (loads * (channels * height * row + TILE_CYCLES) + TILE_CYCLES)
        yield cycles, AveragePool2dKnobs(channels, rows, columns, kernel_rows, kernel_columns)
