"""A convolution as a tensor expression, and its schedules."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import epilogue
from amaranth_vta.sw.compiler.operators.building_blocks.product import (
    Product,
    of_term,
    reduce_axes,
    term_axis,
    weight_operand,
)
from amaranth_vta.sw.compiler.operators.building_blocks.row_sums import RowSums
from amaranth_vta.sw.compiler.operators.building_blocks.window import padded
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .sizes import Conv2dSizes


def scheduled(c: Conv2dSizes, env: Environment, knobs: Tiling) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    product = expression(c, env)
    y, conv = product.epilogue.y, product.total
    s = te.create_schedule(y.op)
    *part, n, o, h, w, b, k = s[y].op.axis
    (oo, oi), (ho, hi), (wo, wi) = (
        s[y].split(axis, factor)
        for axis, factor in ((o, knobs.outputs), (h, knobs.rows), (w, knobs.columns))
    )
    # Results are carried from the tile above, which must be computed directly before.
    tile = (wo, ho) if c.carries else (ho, wo)
    outer = (oo, n, *tile) if knobs.weights_outside else (n, *tile, oo)
    s[y].reorder(*outer, *part, oi, hi, wi, b, k)
    s[y].pragma(part[0] if part else oi, env.dma_copy)
    product.place_results(s, outer[-1], env, knobs.copies_of_results, knobs.added_copies)
    product.place_constants(s, None if knobs.in_turn else oo, env)

    n, o, h, w, b, k = s[conv].op.axis
    ci, dy, dx, *term, ki = product.axes
    co, ci = s[conv].split(ci, knobs.inputs)
    do, dy = s[conv].split(dy, knobs.kernel_rows)
    s[conv].reorder(co, do, n, o, ci, dy, dx, *term, h, w, b, k, ki)
    s[conv].tensorize(b, env.gemm)
    copies = c.copies_of_image(knobs), c.copies_of_weights(knobs)
    product.place_operands(s, tile[-1], oo, None if c.is_whole(knobs) else do, copies, env)
    if c.carries:
        _carry(s, product, wo, knobs)
    return s, product.args


def _carry(s: te.Schedule, product: Product, column: IterVar, knobs: Tiling) -> None:
    """Compute each row of results once per ``column`` of tiles, and carry shared rows."""
    results = (product.total, *product.epilogue.stages)
    for tensor in (product.x_buf, *results):
        s[tensor].store_at(column)
    carried = (product.total, *product.epilogue.carried)
    for tensor in carried:
        s[tensor].carry(tensor.op.axis[2])
    # Two tiles read its last row while GEMM computes the next one.
    s[carried[-1]].double_buffer(2 * knobs.copies_of_results)


def expression(c: Conv2dSizes, env: Environment) -> Product:
    """The convolution as a sum of products for GEMM, and its epilogue."""
    acc = env.acc_dtype
    x = te.placeholder(
        (c.batch, c.inputs, c.height, c.width, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype
    )
    x_buf = _rows_that_are_read(x, c)
    tiles = (c.outputs, c.inputs, c.kernel[0], c.weights_per_row, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, "w", c.int4_weights, env)
    ci, dy, dx, ki = reduce_axes(ci=c.inputs, dy=c.kernel[0], dx=c.kernel[1], ki=env.BLOCK_IN)
    term = term_axis(c.terms)
    axes = (ci, dy, dx, *term, ki)

    def operand(i: Sequence[Expr], at: Sequence[IterVar]) -> Expr:
        n, h, w, b = i
        ci, dy, dx, *_, ki = at
        row = h * (c.strides[0] // c.row_step) + dy * c.dilations[0]
        return x_buf[n, ci, row, w * c.strides[1] + dx * c.dilations[1], b, ki]

    conv = te.compute(
        (c.batch, c.outputs, *c.image, env.BATCH, env.BLOCK_OUT),
        lambda n, o, h, w, b, k: te.sum(
            operand((n, h, w, b), axes).astype(acc)
            * w_buf[o, ci, dy, of_term(dx, c.terms, term), k, ki].astype(acc),
            axis=list(axes),
        ),
        "conv",
    )
    rows = RowSums.added(conv, 1, operand, axes, env) if c.row_sums else None
    end = epilogue(
        rows.total if rows else conv,
        (c.outputs,),
        lambda n, o, h, w: (o,),
        c.requantize,
        env,
        pooling=c.pooling,
    )
    return Product(x, w, x_buf, w_buf, axes, conv, end, rows)


def _rows_that_are_read(x: Tensor, c: Conv2dSizes) -> Tensor:
    """The padded input, without the rows that no output reads."""
    if c.row_step == 1:
        return padded(x, c.pads, c.pad_value, "x_buf")
    batch, inputs, _, *row = x.shape
    return te.compute(
        (batch, inputs, c.output_height, *row),
        lambda n, o, h, w, b, k: x(n, o, h * c.row_step, w, b, k),
        "x_buf",
    )
