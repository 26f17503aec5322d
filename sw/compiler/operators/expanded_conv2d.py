"""A depthwise convolution of what a 1×1 convolution computes, in the same tile.

The 1×1 convolution expands an image to many channels, of which the depthwise one reads each tile
by itself. A tile of channels is expanded, requantized and forwarded to the scratchpad of inputs,
where the depthwise convolution reads it: what is expanded is never in memory. Rows and columns that
two tiles of the output share are expanded for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Affine
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.cost_model import BufferCopies, Estimate, Pipeline, Task
from amaranth_vta.sw.compiler.tuner.formula import TILE_CYCLES
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of
from amaranth_vta.sw.compiler.tuner.tiles import cut, even_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .conv2d.sizes import Conv2dSizes
from .grouped_conv2d import GroupedConv2d, sums, tensorize
from .parts.epilogue import Epilogue, PerChannelScale, epilogue
from .parts.product import Product, of_term, reduce_axes, term_axis
from .parts.window import padded


@dataclass(frozen=True)
class ExpandedConv2d:
    """The ``depthwise`` convolution, of groups of one tile of channels, of the results of the
    ``expansion``, a 1×1 convolution with as many tiles of outputs."""

    expansion: Conv2dSizes
    depthwise: GroupedConv2d

    def scheduled(self, env: Environment, knobs: ExpandedConv2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[ExpandedConv2dKnobs]:
        def walked(knobs: ExpandedConv2dKnobs, limit: float) -> Estimate:
            return _Tiles(self, config, knobs).estimate()

        return best_of(candidates(self, config), walked)


@dataclass(frozen=True)
class ExpandedConv2dKnobs:
    """``rows`` and ``columns`` are the tile of the output, of one tile of channels;
    ``image_copies`` tiles of the image are held at a time. With ``whole_weights`` all weights are
    loaded at the beginning, else those of a tile of channels for each of its tiles."""

    rows: int
    columns: int
    image_copies: int = 2
    whole_weights: bool = True


def is_possible(workload: ExpandedConv2d, config: Config) -> bool:
    """Whether the machine can run it in one tile: it forwards results to inputs, GEMM and ALU
    overlap, and all results are requantized by REQUANTIZE."""
    a, b = workload.expansion, workload.depthwise.group
    plain = a.kernel == (1, 1) and a.strides == (1, 1) and not any(a.pads)
    alone = a.addition is None and a.pooling is None
    fits = (b.inputs, b.outputs, workload.depthwise.groups) == (1, 1, a.outputs)
    same = (a.batch, a.height, a.width) == (b.batch, b.height, b.width)
    scaled = all(isinstance(item.requantize, PerChannelScale) for item in (a, b))
    return bool(config.forward and config.overlap and plain and alone and fits and same and scaled)


def expanded_conv2d(
    workload: ExpandedConv2d,
    env: Environment,
    knobs: ExpandedConv2dKnobs | None = None,
    name: str = "expanded_conv2d",
) -> Function:
    """A function of input, weights and parameters of the expansion, those of the depthwise
    convolution, and output, as `conv2d` and `grouped_conv2d` have them; the weights of the
    expansion are (outputs, inputs, terms, BLOCK_OUT, BLOCK_IN). Knobs and errors are those of
    `tuned`."""
    return tuned(workload, env, knobs, name)


@dataclass(frozen=True)
class _Expanded:
    """The tensors of the expansion: ``narrowed`` is its result, out_dtype, and ``forwarded`` that
    with padding, in the scratchpad of inputs."""

    x: Tensor
    w: Tensor
    x_buf: Tensor
    w_buf: Tensor
    total: Tensor
    epilogue: Epilogue
    narrowed: Tensor
    forwarded: Tensor
    axes: tuple[te.IterVar, ...]


def _expression(workload: ExpandedConv2d, env: Environment) -> tuple[_Expanded, Product]:
    a, b, acc = workload.expansion, workload.depthwise.group, env.acc_dtype
    tail = (env.BATCH, env.BLOCK_IN)
    x = te.placeholder((a.batch, a.inputs, a.height, a.width, *tail), "x", env.inp_dtype)
    w = te.placeholder(
        (a.outputs, a.inputs, a.terms, env.BLOCK_OUT, env.BLOCK_IN), "expansion", env.wgt_dtype
    )
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "expansion_buf")
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
    expanded = _Expanded(x, w, x_buf, w_buf, total, end, end.y, forwarded, axes)
    return expanded, sums(workload.depthwise, env, x, forwarded)


def scheduled(workload: ExpandedConv2d, env: Environment, knobs: ExpandedConv2dKnobs) -> Scheduled:
    """The schedule that ``knobs`` describe, and the arguments of the function."""
    expanded, product = _expression(workload, env)
    y = product.epilogue.y
    s = te.create_schedule(y.op)
    n, g, o, h, w, b, k = s[y].op.axis
    (ho, hi), (wo, wi) = s[y].split(h, knobs.rows), s[y].split(w, knobs.columns)
    s[y].reorder(n, ho, wo, g, o, hi, wi, b, k)
    s[y].pragma(o, env.dma_copy)

    # The two sums are in different banks: GEMM works on one while the ALU requantizes the other.
    for bank, (total, end) in enumerate(
        ((expanded.total, expanded.epilogue), (product.total, product.epilogue))
    ):
        for tensor in (total, *end.stages):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].compute_at(s[y], g)
            s[tensor].double_buffer(2, bank)
        for tensor in end.stages:
            s[tensor].pragma(s[tensor].op.axis[0], env.alu)
        for tensor in (end.buffer, *([end.shared[1]] if end.shared else [])):
            s[tensor].set_scope(env.acc_scope)
            s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    s[expanded.narrowed].compute_inline()
    _load(s, expanded.x_buf, env.inp_scope, wo, knobs.image_copies, y, env)
    _load(s, expanded.forwarded, env.inp_scope, g, 2, y, env)
    s[expanded.forwarded].compute_ahead()
    for tensor, once in ((expanded.w_buf, False), (product.w_buf, workload.depthwise.alike)):
        _load(s, tensor, env.wgt_scope, None if knobs.whole_weights or once else g, 2, y, env)

    n, g, o, h, w, b, k = s[expanded.total].op.axis
    s[expanded.total].reorder(*expanded.axes[:-1], n, g, o, h, w, b, k, expanded.axes[-1])
    s[expanded.total].tensorize(b, env.gemm)
    depthwise = workload.depthwise
    tensorize(depthwise, product, s, (1, depthwise.group.kernel[0]), env)
    return s, [expanded.x, expanded.w, *expanded.epilogue.args, *product.args[1:]]


def _load(
    s: te.Schedule,
    tensor: Tensor,
    scope: str,
    at: te.IterVar | None,
    copies: int,
    y: Tensor,
    env: Environment,
) -> None:
    """Copies a ``tensor`` to a ``scope`` at an axis of ``y``, into ``copies`` in turn, or, if it is
    None, once."""
    s[tensor].set_scope(scope)
    s[tensor].pragma(s[tensor].op.axis[0], env.dma_copy)
    if at is not None:
        s[tensor].compute_at(s[y], at)
        s[tensor].double_buffer(copies)


def candidates(workload: ExpandedConv2d, config: Config) -> list[tuple[float, ExpandedConv2dKnobs]]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first."""
    b = workload.depthwise.group
    found = []
    for rows, columns, copies, whole in product(
        even_tiles(b.output_height), even_tiles(b.output_width), (2, 1), (True, False)
    ):
        knobs = ExpandedConv2dKnobs(rows, columns, copies, whole)
        if _fits(workload, config, knobs):
            found.append((_rough(workload, config, knobs), knobs))
    return sorted(found, key=lambda item: item[0])


@dataclass(frozen=True)
class _Sizes:
    """Vectors of a tile: ``expanded`` ones, the same ``padded``, and ``results``."""

    expanded: int
    padded: int
    results: int


def _sizes(workload: ExpandedConv2d, rows: int, columns: int) -> _Sizes:
    b = workload.depthwise.group
    height, width = b.input_rows(rows), b.input_columns(columns)
    return _Sizes(min(height, b.height) * min(width, b.width), height * width, rows * columns)


def _constants(workload: ExpandedConv2d) -> int:
    """Accumulators for constants."""
    a, d = workload.expansion, workload.depthwise
    both = (a.requantize, a.outputs), (d.group.requantize, d.constants)
    return sum(item.constants * tiles + item.shared for item, tiles in both)


def _weights(workload: ExpandedConv2d) -> tuple[int, int]:
    """Tiles of weights for a tile of channels, and for all of them together."""
    a, d = workload.expansion, workload.depthwise
    expansion, filters = a.inputs * a.terms, d.group.kernel[0] * d.weights_per_row
    return (expansion, filters) if d.alike else (expansion + filters, 0)


def _fits(workload: ExpandedConv2d, config: Config, knobs: ExpandedConv2dKnobs) -> bool:
    a = workload.expansion
    size = _sizes(workload, knobs.rows, knobs.columns)
    constants = _constants(workload)
    tiles = a.outputs if knobs.whole_weights else 2
    weights, shared = _weights(workload)
    return (
        knobs.image_copies * a.inputs * size.expanded + 2 * size.padded <= config.inp.depth
        and 2 * size.expanded <= config.acc.depth // 2
        and 2 * size.results + constants <= config.acc.depth // 2
        and tiles * weights + shared <= config.wgt.depth
    )


def _rough(workload: ExpandedConv2d, config: Config, knobs: ExpandedConv2dKnobs) -> float:
    """Cycles as if all tiles were alike: while GEMM works on one of the two sums of a tile, the ALU
    requantizes the other."""
    a, d = workload.expansion, workload.depthwise
    size = _sizes(workload, knobs.rows, knobs.columns)
    tiles = parts(d.group.output_height, knobs.rows) * parts(d.group.output_width, knobs.columns)
    steps = a.requantize.operations * size.expanded, d.group.requantize.operations * size.results
    tile = max(a.products * size.expanded, steps[1]) + TILE_CYCLES
    tile += max(d.products * size.results, steps[0]) + TILE_CYCLES
    image = a.inputs * size.expanded * config.inp.element_bytes / config.bus_bytes
    weights = a.outputs * _weights(workload)[0] * config.wgt.element_bytes / config.bus_bytes
    turns = 1 if knobs.whole_weights else tiles * a.batch
    waits = image if knobs.image_copies == 1 else 0
    moved = a.outputs * size.results * config.out.element_bytes / config.bus_bytes
    begin = image + (weights if knobs.whole_weights else weights / a.outputs)
    busy = max(a.outputs * tile + waits, image + moved + turns / tiles * weights)
    return float(tiles * a.batch * busy + begin)


class _Tiles:
    """The tiles of the output, in the order of the schedule, as tasks of the cost model."""

    def __init__(
        self, workload: ExpandedConv2d, config: Config, knobs: ExpandedConv2dKnobs
    ) -> None:
        self.a, self.d, self.knobs, self.config = (
            workload.expansion,
            workload.depthwise,
            knobs,
            config,
        )
        self.pipeline = Pipeline(config)
        self.image = BufferCopies(self.pipeline, knobs.image_copies)
        self.weights = BufferCopies(self.pipeline, 2)
        self.weight_bytes, self.shared_bytes = (
            tiles * config.wgt.element_bytes for tiles in _weights(workload)
        )
        self.constants = _constants(workload)
        # Tasks of the latest tiles, with None before the first.
        self.forwards: list[Task | None] = [None] * 3
        self.stores: list[Task | None] = [None] * 3
        self.products: list[Task | None] = [None] * 3
        self.rescaled: Task | None = None
        self.expanded: Task | None = None

    def estimate(self) -> Estimate:
        return self.pipeline.estimate(self._schedule())

    def _schedule(self) -> Iterator[None]:
        """Adds the tasks of one tile per step: the expansion, and the sums of the one before."""
        a, b, knobs = self.a, self.d.group, self.knobs
        self.pipeline.load_for_compute(self.constants * self.config.acc.element_bytes)
        if self.shared_bytes:
            self.pipeline.load(1, self.shared_bytes)
        if knobs.whole_weights:
            self.weights.load(1, a.outputs * self.weight_bytes, None)
        before: tuple[int, int] | None = None
        rows, columns = cut(b.output_height, knobs.rows), cut(b.output_width, knobs.columns)
        for _, height, width in product(range(a.batch), rows, columns):
            size = self._image(height, width)
            self.image.load(*self._image_rows(*size), None)
            for _ in range(a.outputs):
                self._expand(size[0] * size[1], b.input_rows(height) * b.input_columns(width))
                if before is not None:
                    self._sum(*before)
                before = height, width
                yield
        assert before is not None
        self._sum(*before)
        yield

    def _image(self, rows: int, columns: int) -> tuple[int, int]:
        b = self.d.group
        return min(b.input_rows(rows), b.height), min(b.input_columns(columns), b.width)

    def _image_rows(self, rows: int, columns: int) -> tuple[int, int]:
        """How many rows of memory hold a tile of the image, and the bytes of each."""
        if columns == self.a.width:
            rows, columns = 1, rows * columns
        return self.a.inputs * rows, columns * self.config.inp.element_bytes

    def _expand(self, vectors: int, padded: int) -> None:
        pipeline = self.pipeline
        if not self.knobs.whole_weights:
            self.weights.load(1, self.weight_bytes, None)
        # It is in the bank of the expansion before it, which the ALU has to leave.
        gemm = pipeline.gemm(
            vectors * self.a.products,
            [self.image.loaded, self.weights.loaded, self.expanded, self.forwards[-2]],
        )
        self.image.use(gemm)
        self.weights.use(gemm)
        self.expanded = pipeline.alu(vectors, [gemm], self.a.requantize.operations)
        self.forwards.append(pipeline.forward(padded, [self.expanded, self.products[-2]]))

    def _sum(self, rows: int, columns: int) -> None:
        pipeline, vectors = self.pipeline, rows * columns
        gemm = pipeline.gemm(
            vectors * self.d.products, [self.forwards[-2], self.rescaled, self.stores[-2]]
        )
        self.products.append(gemm)
        self.rescaled = pipeline.alu(vectors, [gemm], self.d.group.requantize.operations)
        if columns == self.d.group.output_width:
            rows, columns = 1, rows * columns
        row = columns * self.config.out.element_bytes
        self.stores.append(pipeline.store(rows, row, [self.rescaled]))
