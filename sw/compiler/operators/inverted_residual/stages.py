"""The three convolutions as tensor expressions, and their schedules."""

from __future__ import annotations

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
    place_epilogue,
    place_load,
    place_stages,
)
from amaranth_vta.sw.compiler.operators.expanded_conv2d.stages import (
    expression,
    place_expansion,
    place_filters,
)
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.operators.grouped_conv2d import expression as depthwise_expression
from amaranth_vta.sw.compiler.te.expr import Affine
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .sizes import (
    FORWARDED,
    InvertedResidualKnobs,
    InvertedResidualSizes,
    added_copies,
    epilogue_parts,
    expansion_copies,
    results_bank,
)


def _projection(workload: InvertedResidualSizes, x: Tensor, env: Environment) -> Product:
    """The projection: sum of products over ``x`` (batch, channels, 1, height, width, BATCH,
    BLOCK_IN).
    """
    c, acc = workload.projection, env.acc_dtype
    tiles = (c.outputs, c.inputs, c.terms, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, "projection", c.int4_weights, env)
    ci, ki = reduce_axes(ci=c.inputs, ki=env.BLOCK_IN)
    term = term_axis(c.terms)
    axes = (ci, *term, ki)
    total = te.compute(
        (c.batch, c.outputs, c.height, c.width, env.BATCH, env.BLOCK_OUT),
        lambda n, o, h, w, b, k: te.sum(
            x[n, ci, 0, h, w, b, ki].astype(acc)
            * w_buf[o, ci, of_term(Affine({}), c.terms, term), k, ki].astype(acc),
            axis=list(axes),
        ),
        "projected",
    )
    end = epilogue(
        total,
        (c.outputs,),
        lambda n, o, h, w: (o,),
        c.requantize,
        env,
        name="projected_",
    )
    return Product(x, w, x, w_buf, axes, total, end)


def scheduled(
    workload: InvertedResidualSizes, env: Environment, knobs: InvertedResidualKnobs
) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    if isinstance(workload.expanded, GroupedConv2d):
        expanded, filtered = None, depthwise_expression(workload.expanded, env)
    else:
        expanded, filtered = expression(workload.expanded, env)
    product = _projection(workload, filtered.epilogue.y, env)
    total, end = product.total, product.epilogue
    s = te.create_schedule(end.y.op)
    n, o, h, w, b, k = s[end.y].op.axis
    (ho, hi), (wo, wi) = s[end.y].split(h, knobs.rows), s[end.y].split(w, knobs.columns)
    # Rows are carried from the tile above, which must be computed directly before.
    outer = (wo, ho) if knobs.carries else (ho, wo)
    s[end.y].reorder(n, *outer, o, hi, wi, b, k)
    s[end.y].pragma(o, env.dma_copy)
    at = end.y, outer[-1]

    place_epilogue(s, end, env)
    first = len(end.stages) if end.residual is None else end.stages.index(end.residual.stages[0])
    own, added = end.stages[:first], end.stages[first:]
    bank, copies = results_bank(workload), added_copies(workload)
    place_stages(s, (total, *own), at, 2, bank, env)
    if end.residual is not None:
        place_stages(s, added, at, copies, bank, env)
        # After the sum is complete; without a summation loop, in the order within an iteration.
        after = total if workload.projection.inputs > 1 else None
        end.residual.place(s, *at, env, (1, copies), bank, after)

    s[total].stagger(2, epilogue_parts(workload, knobs))
    ci, *term, ki = product.axes
    tile = total, ci
    place_filters(s, workload.depthwise, filtered, tile, env)
    if expanded is None:
        place_load(s, filtered.x_buf, env.inp_scope, tile, knobs.image_copies, env)
    else:
        place_expansion(s, expanded, (at, knobs.image_copies), tile, env)
        for tensor in (expanded.total, *expanded.epilogue.stages):
            s[tensor].double_buffer(expansion_copies(knobs))
        place_load(s, expanded.w_buf, env.wgt_scope, None, 1, env)
        s[expanded.forwarded].compute_ahead(FORWARDED)
    place_load(s, product.x, env.inp_scope, tile, 2, env)
    for weights in (filtered.w_buf, product.w_buf):
        place_load(s, weights, env.wgt_scope, None, 1, env)
    s[product.x].compute_ahead(FORWARDED)
    if expanded is not None and knobs.carries:
        s[expanded.forwarded].store_at(wo, s[end.y])
        row = expanded.forwarded.op.axis[3]
        s[expanded.forwarded].carry(row, workload.rows_shared)

    n, o, h, w, b, k = s[total].op.axis
    s[total].reorder(ci, n, o, *term, h, w, b, k, ki)
    s[total].tensorize(b, env.gemm)
    x, *others = product.args[1:] if end.residual is None else product.args[2:]
    image = filtered.x if expanded is None else expanded.x
    given = [image, *([end.residual.x] if end.residual else [])]
    before = [] if expanded is None else [expanded.w, *expanded.epilogue.args]
    return s, [*given, *before, *filtered.args[1:-1], x, *others]
