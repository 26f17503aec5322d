"""Fully connected layer: a matrix product with bias and requantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr, IterVar
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.cost_model import (
    ROUND_TRIP_CYCLES,
    BufferCopies,
    Estimate,
    Pipeline,
    Task,
    bus_cycles,
)
from amaranth_vta.sw.compiler.tuner.search import Candidates, Choice, best_of
from amaranth_vta.sw.compiler.tuner.tiles import cut, divisors, even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Requantization, Step, epilogue, followed_by
from .building_blocks.product import (
    Product,
    of_term,
    reduce_axes,
    term_axis,
    weight_memory,
    weight_operand,
)
from .building_blocks.row_sums import RowSums
from .building_blocks.steps import LookupTable
from .permute import Permute

# Number of tile sizes per setting of the other knobs that are ranked first.
_SHAPES = 4


@dataclass(frozen=True)
class Dense:
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
    def is_added_to(self) -> bool:
        """Whether another tensor is added to the results."""
        return self.requantize.addition is not None

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

    def scheduled(self, env: Environment, knobs: DenseKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[DenseKnobs]:
        found = Candidates.of(candidates(self, config), DenseKnobs)
        ranked = found.varied(["inputs", "ahead", "in_turn"], _SHAPES)
        return best_of(ranked, partial(estimated, self, config))


@dataclass(frozen=True)
class DenseKnobs:
    """The ``rows`` and ``outputs`` of the tile that accumulates at a time, and the ``inputs``
    loaded at a time. With ``ahead`` the next operands are prefetched, and with ``in_turn`` the next
    tile accumulates while its predecessor is requantized and stored.
    """

    rows: int
    outputs: int
    inputs: int
    ahead: bool = False
    in_turn: bool = False

    @property
    def copies(self) -> int:
        """Tiles of each operand held at a time."""
        return 2 if self.ahead else 1

    def is_whole(self, d: Dense) -> bool:
        """Whether all inputs are loaded at once; weights are then loaded once for all rows."""
        return self.inputs == d.inputs


def dense(
    workload: Dense, env: Environment, knobs: DenseKnobs | None = None, name: str = "dense"
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


def scheduled(d: Dense, env: Environment, knobs: DenseKnobs) -> Scheduled:
    """The schedule for ``knobs``, and the arguments of the function."""
    product = expression(d, env)
    y, matmul = product.epilogue.y, product.total
    s = te.create_schedule(y.op)
    oo, no, inner = _tiled(s, d, y, knobs)
    constants_at: te.IterVar | None = no
    if knobs.in_turn:
        constants_at = None
        held = outputs_held(d, env.config, knobs)
        if 0 < held < d.outputs:
            constants_at, oo = s[y].split(oo, held // knobs.outputs)
            s[y].reorder(constants_at, oo, no)
    s[y].pragma(inner, env.dma_copy)
    for tensor in (matmul, *product.epilogue.stages):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], no)
        if knobs.in_turn:
            s[tensor].double_buffer()
    if product.epilogue.residual is not None:
        product.epilogue.residual.place(s, y, no, env, (1, 1 + knobs.in_turn))
    if product.rows is not None:
        product.rows.place(s, y, no, 1 + knobs.in_turn, env)
    product.place_constants(s, constants_at, env)
    for tensor in product.epilogue.stages:
        # Rows innermost: the rows of an output tile share parameters.
        *g, n, o, b, k = s[tensor].op.axis
        s[tensor].reorder(*g, o, n, b, k)
        s[tensor].pragma(o, env.alu)

    *g, n, o, b, k = s[matmul].op.axis
    ko, *term, ki = product.axes
    step, ko = s[matmul].split(ko, knobs.inputs)
    s[matmul].reorder(*g, step, ko, *term, n, o, b, k, ki)
    s[matmul].tensorize(b, env.gemm)
    # If all inputs are loaded at once, weights are stationary while the rows pass.
    at = None if knobs.is_whole(d) else step
    product.place_operands(s, no, oo, at, (knobs.copies, knobs.copies), env)
    return s, product.args


def _tiled(
    s: te.Schedule, d: Dense, y: Tensor, knobs: DenseKnobs
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
    return Product(x, w, x_buf, w_buf, axes, matmul, end, rows)


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


def candidates(workload: Dense, config: Config) -> Iterator[tuple[float, DenseKnobs]]:
    """Knobs whose tiles fit the scratchpads, with rough estimates of their cycles."""
    d, of_head = workload, workload.outputs // workload.heads
    for rows, outputs, inputs, ahead in product(
        even_tiles(d.rows),
        [
            outputs
            for outputs in even_tiles(d.outputs)
            if d.heads == 1 or of_head % outputs == 0 or outputs % of_head == 0
        ],
        [d.inputs] if d.row_sums else divisors(d.inputs),
        (True, False),
    ):
        copies = 2 if ahead else 1
        if copies * rows * inputs + d.is_added_to * rows * outputs > config.inp.depth:
            continue
        weights = copies * outputs * inputs * d.terms + d.row_sums * inputs
        if weights + d.is_added_to > config.wgt.depth:
            continue
        for in_turn in (True, False) if config.overlap else (False,):
            knobs = DenseKnobs(rows, outputs, inputs, ahead, in_turn)
            if outputs_held(d, config, knobs):
                yield rough_cycles(d, config, knobs), knobs


def outputs_held(d: Dense, config: Config, knobs: DenseKnobs) -> int:
    """The number of outputs whose constants are loaded at a time; 0 if the accumulators are too
    few. With ``in_turn`` all outputs or several tiles are loaded, since the constants of the next
    tile must not overwrite the constants with which the ALU requantizes.
    """
    sums = (knobs.outputs * d.requantize.accumulators + d.row_sums) * knobs.rows
    bank = config.acc.depth // 2 if knobs.in_turn else config.acc.depth
    left = bank - sums - d.requantize.shared
    every = d.groups * d.outputs if knobs.in_turn else knobs.outputs
    if left < 0 or every * d.requantize.constants <= left:
        return every if left >= 0 else 0
    most = left // d.requantize.constants // knobs.outputs
    if not knobs.in_turn or d.groups > 1 or d.heads > 1 or most < 2:
        return 0
    tiles = parts(d.outputs, knobs.outputs)
    return -(-tiles // -(-tiles // most)) * knobs.outputs


def rough_cycles(d: Dense, config: Config, knobs: DenseKnobs) -> float:
    """A rough estimate that assumes equal tiles."""
    tiles = parts(d.rows, knobs.rows) * parts(d.outputs, knobs.outputs)
    steps = parts(d.inputs, knobs.inputs)
    vectors = d.rows * d.outputs / tiles
    gemm = (vectors * d.terms + d.row_sums * knobs.rows) * d.inputs / steps
    # Accumulators that the first products do not overwrite are reset.
    resets = steps > 1 or not config.overwrite
    gemm += (resets + d.is_added_to) * vectors / steps
    alu = vectors * (d.requantize.operations + d.row_sums)
    alu += d.requantize.parameter_cycles * d.outputs / parts(d.outputs, knobs.outputs)
    x = bus_cycles(config, knobs.rows, knobs.inputs * config.inp.element_bytes)
    tile = weight_memory(d.int4_weights, config).element_bytes
    w = bus_cycles(config, knobs.outputs, knobs.inputs * d.terms * tile)
    load = x + (w / parts(d.rows, knobs.rows) if knobs.is_whole(d) else w)
    # The store of a tile, and the load of an addition's other operand.
    moved = bus_cycles(config, knobs.rows, knobs.outputs * config.out.element_bytes)
    load += (d.requantize.parts + d.is_added_to) * moved / steps
    step = max(gemm, load, (gemm + load + ROUND_TRIP_CYCLES) / knobs.copies)
    tile = max(steps * step, alu) if knobs.in_turn else steps * step + alu
    tile += ROUND_TRIP_CYCLES
    weights = parts(d.outputs, knobs.outputs)
    if d.rows % knobs.rows:
        # The last rows have a loop nest that does not overlap with the main one.
        tile += (2 * weights - 1) * (x + alu + ROUND_TRIP_CYCLES) / tiles
    if not knobs.is_whole(d):
        weights *= parts(d.rows, knobs.rows) * steps
    early = min(_early_copies(d, config, knobs), weights)
    held = outputs_held(d, config, knobs)
    if knobs.in_turn and held < d.outputs:
        # Between blocks of outputs with their own constants nothing overlaps.
        size = held * d.requantize.constants * config.acc.element_bytes
        drained = bus_cycles(config, 1, size) + x + w + alu + moved + 2 * ROUND_TRIP_CYCLES
        tile += drained * parts(d.outputs, held) / tiles
    # Early loads shorten the fill, and later steps as far as these wait for loads.
    saved = w + (early - 1) * max(load - gemm, 0) if early else 0
    return d.groups * tiles * tile + x + w - saved * _hidden(d, config, knobs)


def _early_copies(d: Dense, config: Config, knobs: DenseKnobs) -> int:
    """Number of leading weight tiles that can be prefetched while the preceding layer computes, in
    half of the scratchpad. None with several ``groups``: their weights are results of that layer.
    """
    if d.groups > 1 or d.is_first:
        return 0
    return min(knobs.copies, config.wgt.depth // 2 // (knobs.outputs * knobs.inputs * d.terms))


def _hidden(d: Dense, config: Config, knobs: DenseKnobs) -> float:
    """The share of the loads of `_early_copies` that the preceding layer hides: all of a quarter of
    the scratchpad, and half of the rest, since its own weights may leave too little room.
    """
    held, quarter = knobs.copies * knobs.outputs * knobs.inputs * d.terms, config.wgt.depth // 4
    return 1.0 if held <= quarter else (held + quarter) / (2 * held)


def estimated(d: Dense, config: Config, knobs: DenseKnobs, limit: float = inf) -> Estimate:
    """Estimate a schedule by walking all its tiles through the cost model; the walk stops once the
    schedule is certain to take at least ``limit`` cycles.
    """
    pipeline = Pipeline(config)
    x, w = BufferCopies(pipeline, knobs.copies), BufferCopies(pipeline, knobs.copies)
    added = BufferCopies(pipeline, 1)
    steps = cut(d.inputs, knobs.inputs)
    resets = len(steps) > 1 or not config.overwrite
    vectors = d.groups * d.rows * d.outputs
    operations = d.requantize.operations + d.row_sums
    tile = d.terms * weight_memory(d.int4_weights, config).element_bytes
    least = vectors * (d.inputs * d.terms + resets + d.is_added_to)
    if d.row_sums:  # for each tile of outputs anew
        least += d.groups * d.rows * d.inputs * parts(d.outputs, knobs.outputs)
    if not config.overlap:
        least += vectors * operations
    constants = -(-outputs_held(d, config, knobs) // knobs.outputs)  # in tiles
    banks = 2 if knobs.in_turn else 1
    stores: list[Task] = []
    blocks = list(enumerate(cut(d.outputs, knobs.outputs) * d.groups))
    held: int | None = None
    loaded = -1
    early, hidden = _early_copies(d, config, knobs), _hidden(d, config, knobs)
    for (block, outputs), rows in product(blocks, cut(d.rows, knobs.rows)):
        if knobs.in_turn and block // constants > loaded:
            loaded += 1
            count = sum(size for _, size in blocks[block : block + constants])
            _load_constants(pipeline, d, config, count)
        free = stores[-banks] if len(stores) >= banks else None
        if d.is_added_to:
            added.load(rows, outputs * config.out.element_bytes, (rows, outputs))
            free = pipeline.gemm(rows * outputs, [added.loaded, free])
            added.use(free)
        if resets:
            pipeline.reset(rows * outputs, [free])
        gemm: Task | None = None
        for inputs in steps:
            x.load(rows, inputs * config.inp.element_bytes, (rows, outputs))
            if held != block or not knobs.is_whole(d):
                size = inputs * tile
                w.load(outputs, size - int(hidden * size) if early > 0 else size, (rows, outputs))
                held, early = block, early - 1
            count = rows * inputs * (outputs * d.terms + d.row_sums)
            gemm = pipeline.gemm(count, [x.loaded, w.loaded, free])
            x.use(gemm)
            w.use(gemm)
        if not knobs.in_turn:
            _load_constants(pipeline, d, config, outputs)
        changes = d.requantize.parameter_cycles * outputs / operations
        alu = pipeline.alu(rows * outputs + changes, [gemm], operations)
        row = min(outputs, d.outputs // d.heads)
        stored = rows * d.requantize.parts * outputs // row
        stores.append(pipeline.store(stored, row * config.out.element_bytes, [alu]))
    return pipeline.estimate(limit=limit, least=least)


def _load_constants(pipeline: Pipeline, d: Dense, config: Config, outputs: int) -> None:
    """Load the constants for ``outputs`` tiles of channels, and prepare the parameters."""
    for size in filter(None, d.requantize.constant_bytes(config)):
        pipeline.load_for_compute(outputs * size)
    if d.requantize.preparation_cycles:
        pipeline.alu(outputs * d.requantize.preparation_cycles, [])
