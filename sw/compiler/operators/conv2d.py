"""Two-dimensional convolution with bias and requantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tensor import Tensor

from .conv2d_cost import estimated, rough_cycles
from .requantize import Requantize, Rescale, requantized, rescaled
from .tiling import Choice, best_of, build_best, divisors, even_tiles, parts

# Of the image, with `Conv2dKnobs.ahead`.
_MOST_COPIES = 8
# The share of all cycles in which GEMM waits that lets more copies be tried.
_WAITS_WORTH_COPIES = 0.007


@dataclass(frozen=True)
class Conv2d:
    """Sizes of a convolution. ``batch``, ``inputs`` and ``outputs`` count tiles of BATCH images,
    BLOCK_IN and BLOCK_OUT channels; ``height`` and ``width`` are those of the input, in pixels;
    ``pads`` are rows and columns of ``pad_value`` at the top, left, bottom and right."""

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: tuple[int, int]
    requantize: Requantize | Rescale
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_value: int = 0

    @property
    def output_height(self) -> int:
        reach = (self.kernel[0] - 1) * self.dilations[0] + 1
        return (self.height + self.pads[0] + self.pads[2] - reach) // self.strides[0] + 1

    @property
    def output_width(self) -> int:
        reach = (self.kernel[1] - 1) * self.dilations[1] + 1
        return (self.width + self.pads[1] + self.pads[3] - reach) // self.strides[1] + 1

    @property
    def constants(self) -> int:
        """Elements of bias or parameters for each tile of outputs."""
        return REQUANTIZE_PARAMETERS if isinstance(self.requantize, Rescale) else 1

    @property
    def row_step(self) -> int:
        """Of how many rows of the input one is loaded: those that no output reads are not."""
        return self.strides[0] if self.kernel[0] == 1 and not any(self.pads) else 1

    def input_rows(self, rows: int, kernel_rows: int) -> int:
        """Rows of input to load for ``rows`` of output under ``kernel_rows`` of the kernel."""
        if self.row_step > 1:
            return rows
        return (rows - 1) * self.strides[0] + (kernel_rows - 1) * self.dilations[0] + 1

    def input_columns(self, columns: int) -> int:
        return (columns - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1


@dataclass(frozen=True)
class Conv2dKnobs:
    """How a convolution is cut into tiles.

    ``outputs``, ``rows`` and ``columns`` are the tile of the output that accumulates at a time;
    ``inputs`` channel tiles and ``kernel_rows`` of the kernel are loaded at a time. With
    ``weights_outside`` each tile of weights stays while it passes over the image, else each tile
    of the image stays while all weights pass. With ``ahead`` the next tiles are loaded while the
    machine computes, beside those that it computes with. With ``in_turn`` the next tile of the
    output accumulates while one is requantized and stored; bias or parameters are then all loaded
    at the beginning. ``image_copies`` tiles of the image are held at a time if ``ahead``: with more
    than two, loading weights holds up fewer tiles.
    """

    outputs: int
    rows: int
    columns: int
    inputs: int
    kernel_rows: int
    weights_outside: bool = True
    ahead: bool = False
    in_turn: bool = False
    image_copies: int = 2

    def weights_loaded_once(self, c: Conv2d) -> bool:
        return (
            self.is_whole(c)
            and self.outputs >= c.outputs
            and (self.weights_outside or self.images(c) == 1)
        )

    def image_loaded_once(self, c: Conv2d) -> bool:
        """Whether the first tile of the image is the only one, and loaded but once."""
        return (
            self.is_whole(c)
            and self.images(c) == 1
            and (self.outputs >= c.outputs or not self.weights_outside)
        )

    def is_whole(self, c: Conv2d) -> bool:
        """Whether all that accumulates in a tile is loaded at a time."""
        return self.inputs >= c.inputs and self.kernel_rows >= c.kernel[0]

    def copies_of_image(self, c: Conv2d) -> int:
        """Tiles of the image that are held at a time."""
        return self.image_copies if self.ahead and not self.image_loaded_once(c) else 1

    def copies_of_weights(self, c: Conv2d) -> int:
        return 2 if self.ahead and not self.weights_loaded_once(c) else 1

    def fits(self, c: Conv2d, config: Config) -> bool:
        weights = self.outputs * self.inputs * self.kernel_rows * c.kernel[1]
        accumulators = self.outputs * self.rows * self.columns
        if isinstance(c.requantize, Requantize) and c.requantize.shift:
            accumulators *= 2
        constants = c.constants * (c.outputs if self.in_turn else self.outputs)
        return (
            self.copies_of_weights(c) * weights <= config.wgt.depth
            and self.copies_of_image(c) * self.image_elements(c) <= config.inp.depth
            and accumulators + constants <= config.acc.depth // (2 if self.in_turn else 1)
        )

    def image_elements(self, c: Conv2d) -> int:
        """Elements of a tile of the image."""
        region = c.input_rows(self.rows, self.kernel_rows) * c.input_columns(self.columns)
        return self.inputs * region

    def with_more_copies(self, c: Conv2d, config: Config) -> Iterator[Conv2dKnobs]:
        """The same with more copies of the image, an even number, as long as there is room."""
        if self.copies_of_image(c) > 1:
            for copies in range(self.image_copies + 2, _MOST_COPIES + 1, 2):
                more = replace(self, image_copies=copies)
                if more.fits(c, config):
                    yield more

    def resets(self, c: Conv2d, config: Config) -> bool:
        """Whether accumulators are reset: else the first products overwrite them."""
        return not (config.overwrite and self.is_whole(c))

    def images(self, c: Conv2d) -> int:
        """Tiles of the image, over all images."""
        rows, columns = parts(c.output_height, self.rows), parts(c.output_width, self.columns)
        return c.batch * rows * columns


def conv2d(
    workload: Conv2d, env: Environment, knobs: Conv2dKnobs | None = None, name: str = "conv2d"
) -> Function:
    """A function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width, BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs, BATCH,
    BLOCK_OUT) acc_dtype and has `Requantize.half` added, output is (batch, outputs, output
    height, output width, BATCH, BLOCK_OUT) out_dtype. For `Rescale` there are parameters instead
    of bias, (outputs, number of them, BATCH, BLOCK_OUT) acc_dtype. Without knobs those of `choose`
    are taken. Raises `NoScheduleFits`, or `BuildError` if ``knobs`` do not fit.
    """

    def built(chosen: Conv2dKnobs) -> Function:
        schedule, args = scheduled(workload, env, chosen)
        return build(schedule, args, name=name, env=env)

    if knobs is not None:
        return built(knobs)
    return build_best(name, choose(workload, env.config).ranked, built)


@cache
def choose(workload: Conv2d, config: Config) -> Choice[Conv2dKnobs]:
    """The knobs that are estimated to take the fewest cycles, and what else was considered."""
    return best_of(
        candidates(workload, config),
        partial(estimated, workload, config),
        lambda knobs, estimate: (
            knobs.with_more_copies(workload, config)
            if estimate.waits > _WAITS_WORTH_COPIES * estimate.cycles
            else ()
        ),
    )


def scheduled(
    workload: Conv2d, env: Environment, knobs: Conv2dKnobs
) -> tuple[te.Schedule, list[Tensor]]:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    c, acc = workload, env.acc_dtype
    top, left, bottom, right = c.pads
    x = te.placeholder(
        (c.batch, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype
    )
    w = te.placeholder(
        (c.outputs, c.inputs, *c.kernel, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype
    )
    tile = (env.BATCH, env.BLOCK_OUT)
    if isinstance(c.requantize, Rescale):
        bias = te.placeholder((c.outputs, REQUANTIZE_PARAMETERS, *tile), "parameters", acc)
    else:
        bias = te.placeholder((c.outputs, *tile), "bias", acc)
    step = c.row_step
    if step > 1:
        x_buf = te.compute(
            (c.batch, c.inputs, c.output_height, c.width, env.BATCH, env.BLOCK_IN),
            lambda n, o, h, w, b, k: x(n, o, h * step, w, b, k),
            "x_buf",
        )
    else:
        x_buf = te.pad(
            x, (0, 0, top, left, 0, 0), (0, 0, bottom, right, 0, 0), c.pad_value, name="x_buf"
        )
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    bias_buf = te.compute(bias.shape, lambda *i: bias(*i), f"{bias.name}_buf")
    ci, dy, dx, ki = (
        te.reduce_axis((0, extent), axis)
        for extent, axis in zip(
            (c.inputs, *c.kernel, env.BLOCK_IN), ("ci", "dy", "dx", "ki"), strict=True
        )
    )
    conv = te.compute(
        (c.batch, c.outputs, c.output_height, c.output_width, env.BATCH, env.BLOCK_OUT),
        lambda n, o, h, w, b, k: te.sum(
            x_buf[
                n,
                ci,
                h * (c.strides[0] // step) + dy * c.dilations[0],
                w * c.strides[1] + dx * c.dilations[1],
                b,
                ki,
            ].astype(acc)
            * w_buf[o, ci, dy, dx, k, ki].astype(acc),
            axis=[ci, dy, dx, ki],
        ),
        "conv",
    )
    if isinstance(c.requantize, Rescale):
        stages = rescaled(conv, lambda number, n, o, h, w, b, k: bias_buf(o, number, b, k))
    else:
        stages = requantized(conv, lambda n, o, h, w, b, k: bias_buf(o, b, k), c.requantize, env)
    y = te.compute(conv.shape, lambda *i: stages[-1](*i).astype(env.out_dtype), "y")

    s = te.create_schedule(y.op)
    n, o, h, w_, b, k = s[y].op.axis
    (oo, oi), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((o, knobs.outputs), (h, knobs.rows), (w_, knobs.columns))
    )
    outer = (oo, n, ho, wo) if knobs.weights_outside else (n, ho, wo, oo)
    s[y].reorder(*outer, oi, hi, wi, b, k)
    s[y].pragma(oi, env.dma_copy)
    for tensor in (conv, *stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], outer[-1])
        if knobs.in_turn:
            s[tensor].double_buffer()
    for tensor in stages:
        s[tensor].pragma(s[tensor].op.axis[0], env.alu)
    s[bias_buf].set_scope(env.acc_scope)
    if not knobs.in_turn:
        s[bias_buf].compute_at(s[y], oo)
    s[bias_buf].pragma(s[bias_buf].op.axis[0], env.dma_copy)

    n, o, h, w_, b, k = s[conv].op.axis
    co, ci_ = s[conv].split(ci, knobs.inputs)
    do, di = s[conv].split(dy, knobs.kernel_rows)
    s[conv].reorder(co, do, n, o, ci_, di, dx, h, w_, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    for tensor, scope, place, copies in (
        (x_buf, env.inp_scope, wo, knobs.copies_of_image(c)),
        (w_buf, env.wgt_scope, oo, knobs.copies_of_weights(c)),
    ):
        s[tensor].set_scope(scope)
        if knobs.is_whole(c):
            s[tensor].compute_at(s[y], place)
        else:
            s[tensor].compute_at(s[conv], do)
        s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
        if copies > 1:
            s[tensor].double_buffer(copies)
    return s, [x, w, bias, y]


def candidates(workload: Conv2d, config: Config) -> Iterator[tuple[float, Conv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, with a rough estimate of their cycles."""
    c = workload
    for outputs, rows, inputs, kernel, ahead in product(
        even_tiles(c.outputs),
        even_tiles(c.output_height),
        divisors(c.inputs),
        divisors(c.kernel[0]),
        (True, False),
    ):
        whole = inputs == c.inputs and kernel == c.kernel[0]
        if outputs * inputs * kernel * c.kernel[1] > config.wgt.depth:
            continue
        for weights_outside, in_turn in product(
            (True, False) if whole else (True,), (True, False) if config.overlap else (False,)
        ):
            found = set()
            # Narrower tiles load more, but those that leave no rest may take less.
            for widths in (even_tiles(c.output_width), divisors(c.output_width)):
                cut = (
                    Conv2dKnobs(
                        outputs, rows, columns, inputs, kernel, weights_outside, ahead, in_turn
                    )
                    for columns in widths
                )
                widest = next((knobs for knobs in cut if knobs.fits(c, config)), None)
                if widest is not None:
                    found.add(widest)
            for knobs in found:
                yield rough_cycles(c, config, knobs), knobs
