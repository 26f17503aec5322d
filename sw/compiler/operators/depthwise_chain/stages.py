"""The convolutions as tensor expressions, and their schedules."""

from __future__ import annotations

from dataclasses import dataclass

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
from amaranth_vta.sw.compiler.operators.building_blocks.stage_placement import (
    Place,
    place_epilogue,
    place_load,
    place_stages,
)
from amaranth_vta.sw.compiler.operators.building_blocks.window import padded
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import expression as depthwise_expression
from amaranth_vta.sw.compiler.operators.grouped_conv2d import sums, tensorize
from amaranth_vta.sw.compiler.te.expr import Affine, Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .sizes import (
    WEIGHT_COPIES,
    DepthwiseChainKnobs,
    DepthwiseChainSizes,
    added_copies,
    epilogue_parts,
    expansion_copies,
    results_bank,
)


def _pointwise(
    c: Conv2d, x: Tensor, x_buf: Tensor, names: tuple[str, str], of_groups: bool, env: Environment
) -> Product:
    """A 1×1 convolution of ``x`` in ``x_buf`` (batch, channels, height, width, BATCH, BLOCK_IN), or
    with an axis of one element behind the channels. ``names`` name the weights and the sums; if
    these are inputs ``of_groups``, they have such an axis too.
    """
    one = (0,) * (len(x_buf.shape) - 6)
    tiles = (c.outputs, c.inputs, c.terms, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, names[0], c.int4_weights, env)
    ci, ki = reduce_axes(ci=c.inputs, ki=env.BLOCK_IN)
    term = term_axis(c.terms)
    axes = (ci, *term, ki)

    def total(n: Expr, o: Expr, h: Expr, w: Expr, b: Expr, k: Expr) -> Expr:
        weight = w_buf[o, ci, of_term(Affine({}), c.terms, term), k, ki]
        pixel = x_buf[n, ci, *one, h, w, b, ki]
        return te.sum(pixel.astype(env.acc_dtype) * weight.astype(env.acc_dtype), axis=list(axes))

    image = (c.height, c.width, env.BATCH, env.BLOCK_OUT)
    if of_groups:
        shape: tuple[int, ...] = (c.batch, c.outputs, 1, *image)
        sums = te.compute(shape, lambda n, g, o, h, w, b, k: total(n, g, h, w, b, k), names[1])
    else:
        sums = te.compute((c.batch, c.outputs, *image), total, names[1])
    end = epilogue(
        sums, (c.outputs,), lambda n, o, *_: (o,), c.requantize, env, name=f"{names[1]}_"
    )
    return Product(x, w, x_buf, w_buf, axes, sums, end)


@dataclass(frozen=True)
class _Stages:
    """Tensors of all convolutions; ``forwarded`` is the padded result of the expansion in the input
    scratchpad.
    """

    expansion: Product | None
    forwarded: Tensor | None
    depthwise: Product
    projection: Product | None

    @staticmethod
    def of(workload: DepthwiseChainSizes, env: Environment) -> _Stages:
        a, d, c = workload.expansion, workload.depthwise, workload.projection
        expansion = forwarded = projection = None
        if a is None:
            depthwise = depthwise_expression(d, env)
        else:
            tail = (env.BATCH, env.BLOCK_IN)
            x = te.placeholder((a.batch, a.inputs, a.height, a.width, *tail), "x", env.inp_dtype)
            x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
            expansion = _pointwise(a, x, x_buf, ("expansion", "expanded"), True, env)
            b = d.group
            forwarded = padded(expansion.epilogue.y, b.pads, b.pad_value, "forwarded")
            depthwise = sums(d, env, x, forwarded)
        if c is not None:
            y = depthwise.epilogue.y
            projection = _pointwise(c, y, y, ("projection", "projected"), False, env)
        return _Stages(expansion, forwarded, depthwise, projection)

    @property
    def args(self) -> list[Tensor]:
        """Arguments of the function."""
        products = [p for p in (self.expansion, self.depthwise, self.projection) if p is not None]
        *_, last = products
        end = last.epilogue
        given = [products[0].x, *([end.residual.x] if end.residual else [])]
        for product in products:
            given += [product.w, *product.epilogue.args]
        return [*given, end.y]


def scheduled(
    workload: DepthwiseChainSizes, env: Environment, knobs: DepthwiseChainKnobs
) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    stages = _Stages.of(workload, env)
    projection = stages.projection
    y = (projection or stages.depthwise).epilogue.y
    s = te.create_schedule(y.op)
    n, *channels, h, w, b, k = s[y].op.axis
    (ho, hi), (wo, wi) = s[y].split(h, knobs.rows), s[y].split(w, knobs.columns)
    # Rows are carried from the tile above, which must be computed directly before.
    outer = (wo, ho) if knobs.carries else (ho, wo)
    s[y].reorder(n, *outer, *channels, hi, wi, b, k)
    s[y].pragma(channels[-1], env.dma_copy)
    at = y, outer[-1]
    if projection is None:
        tile: Place = y, channels[0]
    else:
        _place_projection(s, workload, projection, at, knobs, env)
        tile = projection.total, projection.axes[0]

    _place_sums(s, stages.depthwise, tile, env)
    tensorize(workload.depthwise, stages.depthwise, s, (1, workload.depthwise.group.kernel[0]), env)
    if projection is not None:
        place_load(s, projection.x, env.inp_scope, tile, 2, env)
        s[projection.x].compute_ahead(2)
    weights = None if knobs.whole_weights else tile
    filters_at = None if workload.depthwise.alike else weights
    place_load(s, stages.depthwise.w_buf, env.wgt_scope, filters_at, WEIGHT_COPIES, env)
    if stages.expansion is None or stages.forwarded is None:
        place_load(s, stages.depthwise.x_buf, env.inp_scope, tile, knobs.image_copies, env)
    else:
        _place_expansion(s, stages.expansion, stages.forwarded, (at, tile), knobs, env)
        place_load(s, stages.expansion.w_buf, env.wgt_scope, weights, WEIGHT_COPIES, env)
        if projection is None:
            s[stages.expansion.total].compute_ahead()
        if knobs.carries:
            s[stages.forwarded].store_at(wo, s[y])
            s[stages.forwarded].carry(stages.forwarded.op.axis[3], workload.rows_shared)
    return s, stages.args


def _place_sums(s: te.Schedule, product: Product, tile: Place, env: Environment) -> None:
    """Compute the sums of a channel tile and their epilogue at the axis ``tile``."""
    place_stages(s, (product.total, *product.epilogue.stages), tile, 2, None, env)
    place_epilogue(s, product.epilogue, env)


def _place_expansion(
    s: te.Schedule,
    expansion: Product,
    forwarded: Tensor,
    places: tuple[Place, Place],
    knobs: DepthwiseChainKnobs,
    env: Environment,
) -> None:
    """Load the image and expand a channel tile, at the two ``places``, and forward the results two
    iterations ahead.
    """
    image, tile = places
    _place_sums(s, expansion, tile, env)
    for tensor in (expansion.total, *expansion.epilogue.stages):
        s[tensor].double_buffer(expansion_copies(knobs))
    s[expansion.epilogue.y].compute_inline()
    place_load(s, expansion.x_buf, env.inp_scope, image, knobs.image_copies, env)
    place_load(s, forwarded, env.inp_scope, tile, 2, env)
    s[forwarded].compute_ahead(2)
    n, g, o, h, w, b, k = s[expansion.total].op.axis
    *outer, ki = expansion.axes
    s[expansion.total].reorder(*outer, n, g, o, h, w, b, k, ki)
    s[expansion.total].tensorize(b, env.gemm)


def _place_projection(
    s: te.Schedule,
    workload: DepthwiseChainSizes,
    projection: Product,
    at: Place,
    knobs: DepthwiseChainKnobs,
    env: Environment,
) -> None:
    """Compute the projection of an output tile at the place ``at``, summed by channel tiles."""
    total, end = projection.total, projection.epilogue
    place_epilogue(s, end, env)
    first = len(end.stages) if end.residual is None else end.stages.index(end.residual.stages[0])
    own, added = end.stages[:first], end.stages[first:]
    bank, copies = results_bank(workload), added_copies(workload)
    place_stages(s, (total, *own), at, 2, bank, env)
    if end.residual is not None:
        place_stages(s, added, at, copies, bank, env)
        # After the sum is complete; without a summation loop, in the order within an iteration.
        after = total if workload.depthwise.groups > 1 else None
        end.residual.place(s, *at, env, (1, copies), bank, after)
    s[total].stagger(2, epilogue_parts(workload, knobs))
    place_load(s, projection.w_buf, env.wgt_scope, None, 1, env)
    n, o, h, w, b, k = s[total].op.axis
    ci, *term, ki = projection.axes
    s[total].reorder(ci, n, o, *term, h, w, b, k, ki)
    s[total].tensorize(b, env.gemm)
