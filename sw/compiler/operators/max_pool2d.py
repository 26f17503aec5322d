"""Two-dimensional max pooling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tensor import Tensor

from .tiling import ROW_CYCLES, TILE_CYCLES, build_best, even_tiles, parts


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
    """The tile of the output that is computed at a time."""

    channels: int
    rows: int
    columns: int


def max_pool2d(
    workload: MaxPool2d,
    env: Environment,
    knobs: MaxPool2dKnobs | None = None,
    name: str = "max_pool2d",
) -> Function:
    """A function of input (batch, channels, height, width, BATCH, BLOCK_OUT) and output (batch,
    channels, output height, output width, BATCH, BLOCK_OUT), both out_dtype.

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
    x_buf = te.compute(padded.shape, lambda *i: padded(*i).astype(env.acc_dtype), "x_buf")
    dy, dx = te.reduce_axis((0, p.kernel[0]), "dy"), te.reduce_axis((0, p.kernel[1]), "dx")
    pool = te.compute(
        (p.batch, p.channels, p.output_height, p.output_width, *tail),
        lambda n, c, h, w, b, k: te.max(
            x_buf[n, c, h * p.strides[0] + dy, w * p.strides[1] + dx, b, k], axis=[dy, dx]
        ),
        "pool",
    )
    y = te.compute(pool.shape, lambda *i: pool(*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    s[padded].compute_inline()
    n, c, h, w, b, k = s[y].op.axis
    (co, ci), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((c, knobs.channels), (h, knobs.rows), (w, knobs.columns))
    )
    s[y].reorder(n, co, ho, wo, ci, hi, wi, b, k)
    s[y].pragma(ci, env.dma_copy)
    for tensor in (pool, x_buf):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], wo)
    s[x_buf].pragma(s[x_buf].op.axis[0], env.dma_copy)
    # Pixels innermost: one comparison then does not wait for the one before it.
    s[pool].reorder(dy, dx, *s[pool].op.axis)
    s[pool].pragma(dy, env.alu)
    return s, [x, y]


def candidates(workload: MaxPool2d, config: Config) -> Iterator[tuple[float, MaxPool2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with an estimate of their cycles."""
    p = workload
    for channels, rows, columns in product(
        even_tiles(p.channels), even_tiles(p.output_height), even_tiles(p.output_width)
    ):
        loaded = p.input_rows(rows) * p.input_columns(columns)
        if channels * (loaded + rows * columns) > config.acc.depth:
            continue
        tiles = (
            p.batch
            * parts(p.channels, channels)
            * parts(p.output_height, rows)
            * parts(p.output_width, columns)
        )
        row = p.input_columns(columns) * config.out.element_bytes / config.bus_bytes + ROW_CYCLES
        cycles = tiles * (channels * p.input_rows(rows) * row + TILE_CYCLES)
        yield cycles, MaxPool2dKnobs(channels, rows, columns)
