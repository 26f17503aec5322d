"""Both convolutions as tensor expressions, and their schedules."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import Epilogue, epilogue
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
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d, sums, tensorize
from amaranth_vta.sw.compiler.te.expr import Affine
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.workload import Scheduled

from .sizes import ExpandedConv2dKnobs, ExpandedSizes


@dataclass(frozen=True)
class Expanded:
    """Tensors of the expansion: ``narrowed`` is its result, out_dtype, and ``forwarded`` the padded
    result in the input scratchpad.
    """

    x: Tensor
    w: Tensor
    x_buf: Tensor
    w_buf: Tensor
    total: Tensor
    epilogue: Epilogue
    narrowed: Tensor
    forwarded: Tensor
    axes: tuple[te.IterVar, ...]


def expression(workload: ExpandedSizes, env: Environment) -> tuple[Expanded, Product]:
    """The expansion, and the sum of products over its forwarded results, with its epilogue."""
    a, b, acc = workload.expansion, workload.depthwise.group, env.acc_dtype
    tail = (env.BATCH, env.BLOCK_IN)
    x = te.placeholder((a.batch, a.inputs, a.height, a.width, *tail), "x", env.inp_dtype)
    tiles = (a.outputs, a.inputs, a.terms, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, "expansion", a.int4_weights, env)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    ci, ki = reduce_axes(ci=a.inputs, ki=env.BLOCK_IN)
    term = term_axis(a.terms)
    axes = (ci, *term, ki)
    total = te.compute(
        (a.batch, a.outputs, 1, a.height, a.width, env.BATCH, env.BLOCK_OUT),
        lambda n, g, o, h, w, b, k: te.sum(
            x_buf[n, ci, h, w, b, ki].astype(acc)
            * w_buf[g, ci, of_term(Affine({}), a.terms, term), k, ki].astype(acc),
            axis=list(axes),
        ),
        "expanded",
    )
    end = epilogue(
        total, (a.outputs,), lambda n, g, o, h, w: (g,), a.requantize, env, name="expanded_"
    )
    forwarded = padded(end.y, b.pads, b.pad_value, "forwarded")
    expanded = Expanded(x, w, x_buf, w_buf, total, end, end.y, forwarded, axes)
    return expanded, sums(workload.depthwise, env, x, forwarded)


def scheduled(workload: ExpandedSizes, env: Environment, knobs: ExpandedConv2dKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    expanded, product = expression(workload, env)
    y = product.epilogue.y
    s = te.create_schedule(y.op)
    n, g, o, h, w, b, k = s[y].op.axis
    (ho, hi), (wo, wi) = s[y].split(h, knobs.rows), s[y].split(w, knobs.columns)
    s[y].reorder(n, ho, wo, g, o, hi, wi, b, k)
    s[y].pragma(o, env.dma_copy)

    image, tile = (y, wo), (y, g)
    copies = knobs.image_copies
    place_expansion(s, expanded, (image, copies), tile, env)
    place_filters(s, workload.depthwise, product, tile, env)
    s[expanded.forwarded].compute_ahead(2)
    s[expanded.total].compute_ahead()
    for tensor, once in ((expanded.w_buf, False), (product.w_buf, workload.depthwise.alike)):
        at = None if knobs.whole_weights or once else tile
        place_load(s, tensor, env.wgt_scope, at, 2, env)
    return s, [expanded.x, expanded.w, *expanded.epilogue.args, *product.args[1:]]


def place_expansion(
    s: te.Schedule, expanded: Expanded, image: tuple[Place, int], tile: Place, env: Environment
) -> None:
    """Place an expansion at the axis ``tile``, for one channel tile; the image is loaded at its own
    axis, into the given number of copies.
    """
    place_stages(s, (expanded.total, *expanded.epilogue.stages), tile, 2, None, env)
    place_epilogue(s, expanded.epilogue, env)
    s[expanded.narrowed].compute_inline()
    place_load(s, expanded.x_buf, env.inp_scope, *image, env)
    place_load(s, expanded.forwarded, env.inp_scope, tile, 2, env)
    n, g, o, h, w, b, k = s[expanded.total].op.axis
    s[expanded.total].reorder(*expanded.axes[:-1], n, g, o, h, w, b, k, expanded.axes[-1])
    s[expanded.total].tensorize(b, env.gemm)


def place_filters(
    s: te.Schedule, depthwise: GroupedConv2d, product: Product, tile: Place, env: Environment
) -> None:
    """Place a depthwise convolution at the axis ``tile``, for one channel tile."""
    place_stages(s, (product.total, *product.epilogue.stages), tile, 2, None, env)
    place_epilogue(s, product.epilogue, env)
    tensorize(depthwise, product, s, (1, depthwise.group.kernel[0]), env)
