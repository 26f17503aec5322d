"""Each pass by the text before and after it, in tests/golden/lowering.

``pytest --rewrite-golden tests/sw/compiler/passes/test_passes.py`` rewrites the files; review the
difference before you commit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower, lower_further
from amaranth_vta.sw.compiler.nest.parse import parse
from amaranth_vta.sw.compiler.nest.printer import to_text
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import DepthwiseChain, DepthwiseChainKnobs
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.passes.pipeline import PASSES
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from tests.support.golden import FOLDER, Golden

ENV = Environment(PRESETS["tiny"])
# The same sizes, and all extensions.
EXTENDED = Environment(PRESETS["tiny-extended"])
TAIL = (ENV.BATCH, ENV.BLOCK_OUT)
Scheduled = tuple[te.Schedule, list[Tensor]]


def element_wise(
    shape: tuple[int, ...], function: Callable[..., Expr], inputs: int = 1
) -> Scheduled:
    """Loads accumulators, applies ``function`` to them, and stores the result."""
    args = [te.placeholder(shape, f"x{n}", ENV.acc_dtype) for n in range(inputs)]
    bufs = [te.compute(shape, lambda *i, x=x: x(*i), f"{x.name}_buf") for x in args]
    result = te.compute(shape, lambda *i: function(*(b(*i) for b in bufs)), "result")
    y = te.compute(shape, lambda *i: result(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor in (*bufs, result):
        s[tensor].set_scope(ENV.acc_scope)
        s[tensor].pragma(s[tensor].op.axis[0], ENV.alu if tensor is result else ENV.dma_copy)
    s[y].pragma(s[y].op.axis[0], ENV.dma_copy)
    return s, [*args, y]


def copied(
    source: tuple[int, ...], shape: tuple[int, ...], function: Callable[..., Expr]
) -> Scheduled:
    """A load of inputs at the indices of ``function``, without further use of the data."""
    x = te.placeholder(source, "x", ENV.inp_dtype)
    buf = te.compute(shape, lambda *i: function(x, *i), "buf")
    y = te.compute(shape, lambda *i: buf(*i), "y")
    s = te.create_schedule(y.op)
    s[buf].set_scope(ENV.inp_scope)
    s[buf].pragma(s[buf].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def product(rows: int = 2, inputs: int = 3, outputs: int = 4, threads: bool = False) -> Scheduled:
    """A matrix product, two tiles of outputs at a time."""
    x = te.placeholder((rows, inputs, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    w = te.placeholder((outputs, inputs, ENV.BLOCK_OUT, ENV.BLOCK_IN), "w", ENV.wgt_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ko, ki = te.reduce_axis((0, inputs), "ko"), te.reduce_axis((0, ENV.BLOCK_IN), "ki")
    total = te.compute(
        (rows, outputs, *TAIL),
        lambda bo, co, bi, ci: te.sum(
            x_buf[bo, ko, bi, ki].astype(ENV.acc_dtype)
            * w_buf[co, ko, ci, ki].astype(ENV.acc_dtype),
            axis=[ko, ki],
        ),
        "total",
    )
    y = te.compute(
        total.shape, lambda bo, co, bi, ci: total(bo, co, bi, ci).astype(ENV.out_dtype), "y"
    )
    s = te.create_schedule(y.op)
    bo, co, bi, ci = y.op.axis
    co_outer, co_inner = s[y].split(co, 2)
    s[y].reorder(co_outer, bo, co_inner, bi, ci)
    if threads:
        s[y].bind(co_outer, te.thread_axis("cthread"))
    s[total].compute_at(s[y], co_outer)
    s[total].set_scope(ENV.acc_scope)
    bo, co, bi, ci = total.op.axis
    s[total].reorder(ko, bo, co, bi, ci, ki)
    s[total].tensorize(bi, ENV.gemm)
    for tensor, scope in ((x_buf, ENV.inp_scope), (w_buf, ENV.wgt_scope)):
        s[tensor].set_scope(scope)
        s[tensor].compute_at(s[total], ko)
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    s[y].pragma(s[y].leaves[1], ENV.dma_copy)
    return s, [x, w, y]


def tails() -> Scheduled:
    a = te.placeholder((7, 5), "a")
    b = te.compute((7, 5), lambda i, j: a[i, j] + 1, "b")
    c = te.compute((7, 5), lambda i, j: b[i, j] * 2, "c")
    s = te.create_schedule(c.op)
    i, j = c.op.axis
    i_outer, i_inner = s[c].split(i, 3)
    s[c].reorder(i_outer, j, i_inner)
    s[b].compute_at(s[c], i_outer)
    return s, [a, c]


def minor_loops_outside() -> Scheduled:
    a = te.placeholder((7,), "a")
    b = te.compute((7,), lambda i: a[i] + 1, "b")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(b.op.axis[0], 3)
    s[b].reorder(inner, outer)
    return s, [a, b]


def fused_loops() -> Scheduled:
    a = te.placeholder((4, 6), "a")
    b = te.compute((4, 6), lambda i, j: a[i, j] + 1, "b")
    s = te.create_schedule(b.op)
    outer, inner = s[b].split(s[b].fuse(*b.op.axis), 12)
    s[b].reorder(inner, outer)
    return s, [a, b]


def windows() -> Scheduled:
    """A strided window over a tile, and a maximum whose initial value is the int8 minimum."""
    a = te.placeholder((9,), "a", "int8")
    b = te.compute((9,), lambda i: a[i].astype("int32"), "b")
    k = te.reduce_axis((0, 3), "k")
    c = te.compute((4,), lambda i: te.max(b[i * 2 + k], axis=k), "c")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], 2)
    s[b].compute_at(s[c], outer)
    return s, [a, c]


def padded_on_all_sides() -> Scheduled:
    return copied(
        (2, 5, 6, 1, 4),
        (2, 8, 9, 1, 4),
        lambda x, c, h, w, b, k: te.if_then_else(
            te.all(h >= 1, h < 6, w >= 2, w < 8), x(c, h - 1, w - 2, b, k), 0
        ),
    )


def padded_with_a_value() -> Scheduled:
    """An image padded with -128, in accumulators."""
    x = te.placeholder((2, 5, 6, *TAIL), "x", ENV.out_dtype)
    padded = te.pad(x, (0, 1, 1, 0, 0), (0, 1, 2, 0, 0), -128, "padded")
    buf = te.compute(padded.shape, lambda *i: padded(*i).astype(ENV.acc_dtype), "buf")
    y = te.compute(buf.shape, lambda *i: buf(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[padded].compute_inline()
    s[buf].set_scope(ENV.acc_scope)
    for tensor in (buf, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def strided_rows() -> Scheduled:
    return copied(
        (3, 8, 5, 1, 4), (3, 4, 2, 1, 4), lambda x, c, h, w, b, k: x(c, h * 2, w + 1, b, k)
    )


def padding_that_depends_on_the_tile() -> Scheduled:
    s, args = copied(
        (6, 4, 1, 4),
        (8, 4, 1, 4),
        lambda x, h, w, b, k: te.if_then_else(te.all(h >= 1, h < 7), x(h - 1, w, b, k), 0),
    )
    outer, _ = s[args[1]].split(args[1].op.axis[0], 4)
    buf = next(stage for stage in s.stages if stage.name == "buf")
    buf.compute_at(s[args[1]], outer)
    return s, args


def padding_of_a_split_loop() -> Scheduled:
    s, args = padding_that_depends_on_the_tile()
    buf = next(stage for stage in s.stages if stage.name == "buf")
    buf.compute_root()
    buf.pragmas.clear()
    outer, _ = buf.split(buf.op.axis[0], 4)
    buf.pragma(outer, ENV.dma_copy)
    return s, args


def arithmetic() -> Scheduled:
    """The first operand is dead afterwards and is overwritten; the second operand is still live."""
    s, args = element_wise((2, *TAIL), lambda a, b: te.max((a + b) >> 3, b) * 2 - 5, inputs=2)
    return s, args


def differences() -> Scheduled:
    """The first operand is overwritten, so it is the operand to negate."""
    return element_wise((2, *TAIL), lambda a, b: 3 - (a - b), inputs=2)


def copies_of_accumulators() -> Scheduled:
    return element_wise((2, *TAIL), lambda a: te.min(a * a, 100))


def unrolled() -> Scheduled:
    s, args = product()
    s[args[2]].unroll(s[args[2]].leaves[0])
    return s, args


def doubled() -> Scheduled:
    s, args = product()
    for stage in s.stages:
        if stage.name in ("x_buf", "w_buf"):
            stage.double_buffer()
    return s, args


def requantized(copies: int = 2) -> Scheduled:
    """Matrix products of one output tile at a time, alternating between ``copies`` of the
    accumulators.
    """
    rows, inputs, outputs = 2, 3, 4
    x = te.placeholder((rows, inputs, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    w = te.placeholder((outputs, inputs, ENV.BLOCK_OUT, ENV.BLOCK_IN), "w", ENV.wgt_dtype)
    p = te.placeholder((outputs, REQUANTIZE_PARAMETERS, *TAIL), "p", ENV.acc_dtype)
    bufs = [te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (x, w, p)]
    x_buf, w_buf, p_buf = bufs
    ko, ki = te.reduce_axis((0, inputs), "ko"), te.reduce_axis((0, ENV.BLOCK_IN), "ki")
    total = te.compute(
        (outputs, rows, *TAIL),
        lambda co, bo, bi, ci: te.sum(
            x_buf[bo, ko, bi, ki].astype(ENV.acc_dtype)
            * w_buf[co, ko, ci, ki].astype(ENV.acc_dtype),
            axis=[ko, ki],
        ),
        "total",
    )
    result = te.compute(
        total.shape,
        lambda co, bo, bi, ci: te.requantize(
            total(co, bo, bi, ci),
            *(p_buf(co, number, bi, ci) for number in range(REQUANTIZE_PARAMETERS)),
        ),
        "result",
    )
    y = te.compute(total.shape, lambda o, r, b, k: result(o, r, b, k).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    o, r = y.op.axis[:2]
    for tensor in (total, result):
        s[tensor].compute_at(s[y], o)
        s[tensor].set_scope(ENV.acc_scope)
        s[tensor].double_buffer(copies)
    for tensor, scope in zip(bufs, (ENV.inp_scope, ENV.wgt_scope, ENV.acc_scope), strict=True):
        s[tensor].set_scope(scope)
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy)
    s[total].reorder(ko, *total.op.axis, ki)
    s[total].tensorize(total.op.axis[2], ENV.gemm)
    s[result].pragma(result.op.axis[0], ENV.alu)
    s[y].pragma(r, ENV.dma_copy)
    return s, [x, w, p, y]


def sum_under_a_condition() -> Scheduled:
    """A sum over every other tap of a three-tap kernel, for alternating phases of the result, as in
    a transposed convolution.
    """
    x = te.placeholder((5,), "x")
    w = te.placeholder((3,), "w")
    t = te.reduce_axis((0, 2), "t")
    y = te.compute(
        (4, 2),
        lambda i, p: te.sum(te.if_then_else(t * 2 + p < 3, x[i + t] * w[t * 2 + p], 0), axis=t),
        "y",
    )
    return te.create_schedule(y.op), [x, w, y]


def two_sources() -> Scheduled:
    a, b = te.placeholder((3, 2), "a"), te.placeholder((4, 2), "b")
    y = te.compute((7, 2), lambda i, j: te.if_then_else(i < 3, a[i, j], b[i - 3, j]), "y")
    s = te.create_schedule(y.op)
    s[y].split(y.op.axis[0], 2)
    return s, [a, b, y]


def parts_of_a_product() -> Scheduled:
    """The second output skips the first input, so the reset covers more than the first nest
    updates.
    """
    x = te.placeholder((3, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    w = te.placeholder((3, ENV.BLOCK_OUT, ENV.BLOCK_IN), "w", ENV.wgt_dtype)
    bufs = [te.compute(t.shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in (x, w)]
    ko, ki = te.reduce_axis((0, 3), "ko"), te.reduce_axis((0, ENV.BLOCK_IN), "ki")
    total = te.compute(
        (2, *TAIL),
        lambda o, b, k: te.sum(
            te.if_then_else(
                ko >= o,
                bufs[0][ko, b, ki].astype(ENV.acc_dtype) * bufs[1][ko, k, ki].astype(ENV.acc_dtype),
                0,
            ),
            axis=[ko, ki],
        ),
        "total",
    )
    y = te.compute(total.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor, scope in zip((*bufs, total), ("inp", "wgt", "acc"), strict=True):
        s[tensor].set_scope(scope)
    for tensor in bufs:
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy)
    o, b, k = total.op.axis
    s[total].reorder(ko, o, b, k, ki)
    s[total].tensorize(b, ENV.gemm)
    s[y].pragma(y.op.axis[0], ENV.dma_copy)
    return s, [x, w, y]


def rows_stored_twice() -> Scheduled:
    x = te.placeholder((3, 4, *TAIL), "x", ENV.acc_dtype)
    buf = te.compute(x.shape, lambda *i: x(*i), "buf")
    y = te.compute(
        (3, 2, 4, *TAIL), lambda h, time, w, b, k: buf[h, w, b, k].astype(ENV.out_dtype), "y"
    )
    s = te.create_schedule(y.op)
    s[buf].set_scope(ENV.acc_scope)
    s[buf].pragma(buf.op.axis[0], ENV.dma_copy)
    s[y].pragma(y.op.axis[0], ENV.dma_copy)
    return s, [x, y]


def two_in_each_bank() -> Scheduled:
    return requantized(4)


def forwarded() -> Scheduled:
    """An expanded convolution: two rows of results at a time, of two channel tiles each, one tile
    ahead.
    """
    expansion = Conv2d(1, 1, 2, 4, 3, (1, 1), PerChannelScale())
    depthwise = replace(expansion, outputs=1, kernel=(3, 3), pads=(1, 1, 1, 1), pad_value=-7)
    block = DepthwiseChain(expansion, GroupedConv2d(2, depthwise, EXTENDED.config.taps))
    return block.scheduled(EXTENDED, DepthwiseChainKnobs(rows=2, columns=3, image_copies=1))


def projected() -> Scheduled:
    """An inverted residual: the projection sums over three channel tiles, two iterations later."""
    expansion = Conv2d(1, 1, 3, 4, 3, (1, 1), PerChannelScale())
    depthwise = replace(expansion, outputs=1, kernel=(3, 3), pads=(1, 1, 1, 1), pad_value=-7)
    filters = GroupedConv2d(3, depthwise, EXTENDED.config.taps)
    block = DepthwiseChain(expansion, filters, replace(expansion, inputs=3, outputs=1))
    return block.scheduled(EXTENDED, DepthwiseChainKnobs(rows=2, columns=3, image_copies=1))


def pooled() -> Scheduled:
    """Maxima of three rows of results; the first row is carried over from the previous tile, if
    there is one.
    """
    pooling = Pooling((3, 1), (3, 1), (2, 1), (1, 0))
    conv = Conv2d(1, 1, 1, 6, 1, (1, 1), PerChannelScale(wraps=True), pooling=pooling)
    return conv.scheduled(EXTENDED, Tiling(1, 1, 1, 1, 1, in_turn=True))


OF_EXTENSIONS = (
    requantized,
    padded_with_a_value,
    parts_of_a_product,
    two_in_each_bank,
    forwarded,
    projected,
    pooled,
)
CASES: list[tuple[str, Callable[[], Scheduled]]] = [
    ("infer_bounds", tails),
    ("infer_bounds", minor_loops_outside),
    ("infer_bounds", fused_loops),
    ("infer_bounds", windows),
    ("infer_bounds", sum_under_a_condition),
    ("infer_bounds", two_sources),
    ("interleave_threads", lambda: product(threads=True)),
    ("unroll_loops", unrolled),
    ("share_storage", arithmetic),
    ("read_carried_first", pooled),
    ("copy_by_dma", padded_on_all_sides),
    ("copy_by_dma", padded_with_a_value),
    ("copy_by_dma", strided_rows),
    ("copy_by_dma", padding_that_depends_on_the_tile),
    ("copy_by_dma", padding_of_a_split_loop),
    ("copy_by_dma", rows_stored_twice),
    ("tensorize_gemm", product),
    ("map_to_alu", arithmetic),
    ("map_to_alu", copies_of_accumulators),
    ("map_to_alu", differences),
    ("fold_loops", product),
    ("fold_loops", arithmetic),
    ("allocate_scratchpads", doubled),
    ("insert_tokens", product),
    ("insert_tokens", doubled),
    ("overwrite_first", requantized),
    ("overwrite_first", parts_of_a_product),
    ("tensorize_gemm", requantized),
    ("map_to_alu", requantized),
    ("allocate_scratchpads", requantized),
    ("allocate_scratchpads", two_in_each_bank),
    ("mark_independent", requantized),
    ("software_pipeline", forwarded),
    ("copy_by_dma", forwarded),
    ("allocate_scratchpads", forwarded),
    ("insert_tokens", forwarded),
    ("infer_bounds", projected),
    ("overwrite_first", projected),
    ("software_pipeline", projected),
    ("allocate_scratchpads", projected),
    ("insert_tokens", projected),
]


def environment(case: tuple[str, Callable[[], Scheduled]]) -> Environment:
    return EXTENDED if case[1] in OF_EXTENSIONS else ENV


def case_name(case: tuple[str, Callable[[], Scheduled]]) -> str:
    step, make = case
    return f"{step}-{make.__name__.strip('<>').replace('lambda', 'product_threads')}"


def written(case: tuple[str, Callable[[], Scheduled]]) -> str:
    """The text of a case's golden file, from lowering its schedule."""
    step, make = case
    steps = lower(*make(), env=environment(case), trace=True).steps
    position = [name for name, _ in steps].index(step)
    text = f"# before {step}\n{steps[position - 1][1]}\n\n" if position else ""
    return text + f"# after {step}\n{steps[position][1]}\n"


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_a_schedule_lowers_to_the_text_before_and_after(
    case: tuple[str, Callable[[], Scheduled]], golden: Golden
) -> None:
    golden.check_text(f"lowering/{case_name(case)}.txt", written(case))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[0] != "infer_bounds"], ids=case_name
)
def test_a_pass_makes_of_the_text_before_the_text_after(
    case: tuple[str, Callable[[], Scheduled]],
) -> None:
    """Runs the pass alone: the text contains everything that it needs."""
    text = (FOLDER / "lowering" / f"{case_name(case)}.txt").read_text(encoding="utf-8")
    before, after = text.removeprefix(f"# before {case[0]}\n").split(f"\n\n# after {case[0]}\n")
    step = next(step for step in PASSES if step.__name__ == case[0])
    assert to_text(step(parse(before), environment(case).config)) == after.rstrip("\n")


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_printed_text_reads_back_and_lowers_to_the_same(
    case: tuple[str, Callable[[], Scheduled]],
) -> None:
    lowered = lower(*case[1](), env=environment(case), trace=True)
    for name, text in lowered.steps:
        assert to_text(parse(text)) == text
        again = lower_further(parse(text), name, environment(case).config)
        assert to_text(again.nest) == lowered.steps[-1][1]
        assert type(again.problem) is type(lowered.problem)


def test_every_pass_has_a_case() -> None:
    names = {step.__name__ for step in PASSES} | {"infer_bounds"}
    assert names - {step for step, _ in CASES} == {"require_instructions"}
