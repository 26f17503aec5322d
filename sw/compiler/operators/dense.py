"""Fully connected layer: a matrix product with bias and requantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.product_candidates import best_tilings
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiled_product import TiledProduct, TileSizes, Tiling
from amaranth_vta.sw.compiler.tuner.tiles import even_tiles
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Requantization, Step, epilogue, followed_by
from .building_blocks.product import (
    Product,
    of_term,
    reduce_axes,
    term_axis,
    weight_operand,
)
from .building_blocks.row_sums import RowSums
from .building_blocks.steps import LookupTable
from .permute import Permute


@dataclass(frozen=True)
class Dense(TiledProduct):
    """Sizes of a matrix product, in tiles of BATCH rows, BLOCK_IN inputs and BLOCK_OUT outputs.
    Each weight is the sum of ``terms`` values of wgt_dtype, or with ``int4_weights`` one int4 value
    (extension WGT_4BIT). ``groups`` is the number of independent
    products of these sizes. With ``row_sums`` a weighted sum of the row's inputs is added to each
    result, with the same weights for all outputs (see `RowSums`).

    If the layer ``is_first`` in its launch, no preceding layer hides the load of its first weights.

    Attention heads: the outputs of one product can be stored as ``heads``, one after the other, and
    with ``joined`` those of all groups side by side, as one row.
    """

    rows: int
    inputs: int
    outputs: int
    requantize: Requantization
    terms: int = 1
    groups: int = 1
    row_sums: bool = False
    heads: int = 1
    joined: bool = False
    is_first: bool = False
    int4_weights: bool = False

    batch = 1

    def followed_by(self, step: Step) -> Dense | None:
        """This product with a ``step`` at its end; None if that is impossible."""
        if (self.heads > 1 or self.joined) and not isinstance(step, LookupTable):
            return None
        return followed_by(self, step)

    def permuted(self, permute: Permute) -> Dense | None:
        """This product with results stored as ``permute`` would store them; None if that is
        impossible.
        """
        if permute.order != (1, 0, 2) or self.heads > 1 or self.joined:
            return None
        first, second, last = permute.shape
        if self.groups == 1 and (first, second * last) == (self.rows, self.outputs):
            return replace(self, heads=second)
        if permute.shape == (self.groups, self.rows, self.outputs):
            return replace(self, joined=True)
        return None

    def without_parameters(self) -> Dense:
        """The same product with placeholders for constants that are arguments."""
        return replace(self, requantize=self.requantize.without_parameters())

    @property
    def extents(self) -> Mapping[int, int]:
        rows, groups = (-5, -4) if self.joined else (-4, -5)
        if self.heads > 1:
            # Tiles are sized for whole heads.
            return {groups: self.heads, rows: self.rows}
        outer = {groups: self.groups} if self.groups > 1 else {}
        return {**outer, rows: self.rows, -3: self.outputs}

    def part(self, axis: int, extent: int) -> Dense:
        if axis == -3:
            return replace(self, outputs=extent)
        if axis == (-5 if self.joined else -4):
            return replace(self, rows=extent)
        if self.heads > 1:
            return replace(self, heads=extent, outputs=self.outputs // self.heads * extent)
        return replace(self, groups=extent)

    def scheduled(self, env: Environment, knobs: Tiling) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Tiling]:
        return best_tilings(self, config)

    @cached_property
    def whole(self) -> TileSizes:
        return TileSizes(self.outputs, self.rows, inputs=self.inputs)

    @property
    def weight_loops(self) -> tuple[int, ...]:
        return (self.terms,)

    @property
    def independent_products(self) -> int:
        return self.groups

    def hidden_bytes(self, config: Config) -> float:
        # Weights of several groups are results of the preceding layer. Products of few rows follow
        # layers with more products.
        return 0.0 if self.is_first or self.groups > 1 else inf

    @property
    def parameter_cycles(self) -> int:
        return self.requantize.parameter_cycles

    @property
    def loads_some_constants(self) -> bool:
        return self.groups == self.heads == 1

    def tiles_of_outputs(self) -> list[int]:
        of_head, sizes = self.outputs // self.heads, even_tiles(self.outputs)
        if self.heads == 1:
            return sizes
        # Whole heads, or parts of one.
        return [size for size in sizes if of_head % size == 0 or size % of_head == 0]

    def image_tile(self, tile: TileSizes) -> tuple[int, int]:
        return tile.rows, tile.inputs

    def image_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        return 1, tile.rows, tile.inputs

    def results_in_dram(self, tile: TileSizes) -> tuple[int, int, int]:
        of_head = min(tile.outputs, self.outputs // self.heads)
        return tile.outputs // of_head, tile.rows, of_head


def dense(
    workload: Dense, env: Environment, knobs: Tiling | None = None, name: str = "dense"
) -> Function:
    """Build a function of input, the other operand of an addition if there is one, weights, bias,
    other constants of the requantization, and output.

    Input is (rows, inputs, BATCH, BLOCK_IN) inp_dtype, weights are (outputs, inputs · terms,
    BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs, BATCH, BLOCK_OUT) acc_dtype or requantization
    parameters (see `epilogue`), output is (rows, outputs, BATCH, BLOCK_OUT) out_dtype. With several
    ``groups`` all four have a leading axis of groups, but for ``heads`` and ``joined`` (see
    `Dense`). The weights of ``row_sums``, (inputs,
    BLOCK_OUT, BLOCK_IN), come after the bias. Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)


def scheduled(d: Dense, env: Environment, knobs: Tiling) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    product = expression(d, env)
    y, matmul = product.epilogue.y, product.total
    s = te.create_schedule(y.op)
    oo, no, inner = _tiled(s, d, y, knobs)
    constants_at: te.IterVar | None = no
    if knobs.in_turn:
        constants_at = None
        held = int(d.outputs_held(knobs, env.config))
        if 0 < held < d.outputs:
            constants_at, oo = s[y].split(oo, held // knobs.outputs)
            s[y].reorder(constants_at, oo, no)
    s[y].pragma(inner, env.dma_copy)
    for tensor in product.epilogue.stages:
        # Rows innermost: the rows of an output tile share parameters.
        *outer, o, b, k = s[tensor].op.axis
        s[tensor].reorder(o, *outer, b, k)
    product.place_results(s, no, env, knobs.copies_of_results, knobs.added_copies)
    product.place_constants(s, constants_at, env)
    *g, n, o, b, k = s[matmul].op.axis
    ko, *term, ki = product.axes
    step, ko = s[matmul].split(ko, knobs.inputs)
    s[matmul].reorder(*g, step, ko, *term, n, o, b, k, ki)
    s[matmul].tensorize(b, env.gemm)
    # If all inputs are loaded at once, weights are stationary while the rows pass.
    at = None if d.is_whole(knobs) else step
    copies = d.copies_of_image(knobs), d.copies_of_weights(knobs)
    product.place_operands(s, no, oo, at, copies, env)
    return s, product.args


def _tiled(
    s: te.Schedule, d: Dense, y: Tensor, knobs: Tiling
) -> tuple[te.IterVar, te.IterVar, te.IterVar]:
    """Split the output into tiles. Returns the axes over tiles of outputs and of rows, and the
    outermost axis within a tile.
    """
    axes = list(s[y].op.axis)
    within = [axes.pop(0)] if d.requantize.parts > 1 else []
    outer: list[te.IterVar] = []
    outputs = knobs.outputs
    if d.heads > 1:
        # A tile has several whole heads, or a part of one.
        of_head = d.outputs // d.heads
        head, some = s[y].split(axes.pop(0), max(outputs // of_head, 1))
        outer, within, outputs = [head], [some], min(outputs, of_head)
    elif d.groups > 1:
        outer = [axes.pop(1 if d.joined else 0)]
    n, o, *tile = axes
    no, ni = s[y].split(n, knobs.rows)
    oo, oi = s[y].split(o, outputs)
    s[y].reorder(*outer, oo, no, *within, ni, oi, *tile)
    return oo, no, [*within, ni][0]


def expression(d: Dense, env: Environment) -> Product:
    """The sum of products for GEMM, the row sums added to it, and its epilogue."""
    acc = env.acc_dtype
    groups = (d.groups,) if d.groups > 1 else ()
    x = te.placeholder((*groups, d.rows, d.inputs, env.BATCH, env.BLOCK_IN), "x", env.inp_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    tiles = (*groups, d.outputs, d.inputs * d.terms, env.BLOCK_OUT, env.BLOCK_IN)
    w, w_buf = weight_operand(tiles, "w", d.int4_weights, env)
    ko, ki = reduce_axes(ko=d.inputs, ki=env.BLOCK_IN)
    term = term_axis(d.terms)
    axes = (ko, *term, ki)

    def operand(i: Sequence[Expr], at: Sequence[IterVar]) -> Expr:
        return x_buf[*i[:-1], at[0], i[-1], at[-1]]

    def products(n: Expr, o: Expr, b: Expr, k: Expr, *g: Expr) -> Expr:
        weight = w_buf[*g, o, of_term(ko, d.terms, term), k, ki].astype(acc)
        return te.sum(operand((*g, n, b), axes).astype(acc) * weight, axis=list(axes))

    shape = (*groups, d.rows, d.outputs, env.BATCH, env.BLOCK_OUT)
    # `te.compute` names axes after the parameters of the function.
    if groups:
        matmul = te.compute(shape, lambda g, n, o, b, k: products(n, o, b, k, g), "matmul")
    else:
        matmul = te.compute(shape, lambda n, o, b, k: products(n, o, b, k), "matmul")
    at = len(groups) + 1
    rows = RowSums.added(matmul, at, operand, axes, env) if d.row_sums else None
    total = rows.total if rows else matmul
    channels = (*groups, d.outputs)
    end = epilogue(
        total, channels, lambda *i: (*i[:-2], i[-1]), d.requantize, env, partial(_output, d, env)
    )
    return Product(x, w, x_buf, w_buf, axes, matmul, end, [rows] if rows else [])


def _output(d: Dense, env: Environment, last: Tensor) -> Tensor:
    """The output as stored, from the ``last`` stage of the epilogue."""
    tail, of_head = (env.BATCH, env.BLOCK_OUT), d.outputs // d.heads
    if d.heads > 1:
        return te.compute(
            (d.heads, d.rows, of_head, *tail),
            lambda h, n, o, b, k: last(n, h * of_head + o, b, k).astype(env.out_dtype),
            "y",
        )
    if d.joined:
        return te.compute(
            (d.rows, d.groups, d.outputs, *tail),
            lambda n, g, o, b, k: last(g, n, o, b, k).astype(env.out_dtype),
            "y",
        )
    return te.compute(last.shape, lambda *i: last(*i).astype(env.out_dtype), "y")
