"""Two-dimensional convolution with bias and requantization."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.parts.epilogue import epilogue
from amaranth_vta.sw.compiler.operators.parts.placing import (
    place_constants,
    place_operands,
    place_results,
)
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of, build_best, divisors, even_tiles

from .cost import estimated, rough_cycles
from .sizes import Conv2d, Conv2dKnobs

# The share of all cycles in which GEMM waits that lets more copies be tried.
_WAITS_WORTH_COPIES = 0.007


def conv2d(
    workload: Conv2d, env: Environment, knobs: Conv2dKnobs | None = None, name: str = "conv2d"
) -> Function:
    """A function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width, BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs, BATCH,
    BLOCK_OUT) acc_dtype and has `RoundingShift.half` added, output is (batch, outputs, output
    height, output width, BATCH, BLOCK_OUT) out_dtype. For `PerChannelScale` there are parameters
    instead of bias, (outputs, REQUANTIZE_PARAMETERS, BATCH, BLOCK_OUT) acc_dtype. Without knobs
    those of `choose` are taken. Raises `NoScheduleFits`, or `BuildError` if ``knobs`` do not fit.
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
    end = epilogue(conv, (c.outputs,), lambda n, o, h, w: (o,), c.requantize, env)
    y = end.y

    s = te.create_schedule(y.op)
    n, o, h, w_, b, k = s[y].op.axis
    (oo, oi), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((o, knobs.outputs), (h, knobs.rows), (w_, knobs.columns))
    )
    outer = (oo, n, ho, wo) if knobs.weights_outside else (n, ho, wo, oo)
    s[y].reorder(*outer, oi, hi, wi, b, k)
    s[y].pragma(oi, env.dma_copy)
    place_results(s, y, conv, end.stages, outer[-1], knobs.in_turn, env)
    place_constants(s, y, end.buffer, oo, knobs.in_turn, env)

    n, o, h, w_, b, k = s[conv].op.axis
    co, ci_ = s[conv].split(ci, knobs.inputs)
    do, di = s[conv].split(dy, knobs.kernel_rows)
    s[conv].reorder(co, do, n, o, ci_, di, dx, h, w_, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    operands = (
        (x_buf, env.inp_scope, wo, knobs.copies_of_image(c)),
        (w_buf, env.wgt_scope, oo, knobs.copies_of_weights(c)),
    )
    place_operands(s, y, conv, operands, None if knobs.is_whole(c) else do, env)
    return s, [x, w, end.constants, y]


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
