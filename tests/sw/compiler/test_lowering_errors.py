"""Unsupported schedules are refused with the stage, the index or buffer, and the reason."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import BuildError, build
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

ENV = Environment(PRESETS["tiny"])
TAIL = (ENV.BATCH, ENV.BLOCK_OUT)
Scheduled = tuple[te.Schedule, list[Tensor]]


def loaded(
    shape: tuple[int, ...],
    function: Callable[..., Expr],
    source: tuple[int, ...] = (8, *TAIL),
    dtype: str = ENV.acc_dtype,
    scope: str = ENV.acc_scope,
    stored: str = ENV.out_dtype,
) -> Scheduled:
    """A schedule that copies ``function`` of a placeholder to ``scope``, and back to memory."""
    x = te.placeholder(source, "x", dtype)
    buf = te.compute(shape, lambda *i: function(x, *i), "buf")
    y = te.compute(shape, lambda *i: buf(*i).astype(stored), "y")
    s = te.create_schedule(y.op)
    s[buf].set_scope(scope)
    for tensor in (buf, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def computed(function: Callable[..., Expr]) -> Scheduled:
    """A schedule that computes ``function`` of accumulators on the ALU."""
    shape = (8, *TAIL)
    args = [te.placeholder(shape, name, ENV.acc_dtype) for name in ("a", "b")]
    bufs = [te.compute(shape, lambda *i, t=t: t(*i), f"{t.name}_buf") for t in args]
    result = te.compute(shape, lambda *i: function(*(b(*i) for b in bufs)), "result")
    y = te.compute(shape, lambda *i: result(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor in (*bufs, result):
        s[tensor].set_scope(ENV.acc_scope)
        s[tensor].pragma(s[tensor].op.axis[0], ENV.alu if tensor is result else ENV.dma_copy)
    s[y].pragma(s[y].op.axis[0], ENV.dma_copy)
    return s, [*args, y]


def multiplied(
    scope: str = ENV.wgt_scope,
    axis: int = 2,
    transposed: bool = False,
    rows: bool = False,
    inputs: str = ENV.inp_scope,
    sums: str = ENV.acc_scope,
) -> Scheduled:
    """A matrix product of two tiles in every dimension, with one error: in the scope of the
    weights, the tensorized axis, the layout of the weights, the loops within the tensorized axis,
    or the scope of the inputs or sums.
    """
    x = te.placeholder((2, 2, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    w = te.placeholder((2, 2, ENV.BLOCK_OUT, ENV.BLOCK_IN), "w", ENV.wgt_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    ko, ki = te.reduce_axis((0, 2), "ko"), te.reduce_axis((0, ENV.BLOCK_IN), "ki")

    def element(bo: Expr, co: Expr, bi: Expr, ci: Expr) -> Expr:
        weight = w_buf(co, ko, ki, ci) if transposed else w_buf(co, ko, ci, ki)
        return te.sum(
            x_buf(bo, ko, bi, ki).astype(ENV.acc_dtype) * weight.astype(ENV.acc_dtype),
            axis=[ko, ki],
        )

    total = te.compute((2, 2, *TAIL), element, "total")
    y = te.compute(total.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    bo, co, bi, ci = total.op.axis
    s[total].reorder(bo, co, *((ki, bi, ci, ko) if rows else (ko, bi, ci, ki)))
    s[total].set_scope(sums)
    s[total].tensorize([*total.op.axis, ko, ki][axis], ENV.gemm)
    s[x_buf].set_scope(inputs)
    s[w_buf].set_scope(scope)
    for tensor in (x_buf, w_buf, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, w, y]


def square_index() -> Scheduled:
    return loaded((2, *TAIL), lambda x, i, b, k: x(i * i, b, k))


def folded_index() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: x(i // 2 + i % 2, b, k))


def reshaped_index() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: x(i // 2, b, k))


def part_of_a_tile() -> Scheduled:
    return loaded((8, ENV.BATCH, 2), lambda x, i, b, k: x(i, b, k))


def tile_in_reverse() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: x(i, b, ENV.BLOCK_OUT - 1 - k))


def padding_with_ones() -> Scheduled:
    return loaded((9, *TAIL), lambda x, i, b, k: te.if_then_else(i < 8, x(i, b, k), 1))


def two_sources_within_a_tile() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: te.if_then_else(k < 2, x(i, b, k), x(0, b, k)))


def padding_with_two_values() -> Scheduled:
    def element(x: Tensor, i: Expr, b: Expr, k: Expr) -> Expr:
        return te.if_then_else(i < 9, te.if_then_else(i >= 1, x(i - 1, b, k), 3), 0)

    return loaded((10, *TAIL), element)


def padding_of_a_store() -> Scheduled:
    x = te.placeholder((8, *TAIL), "x", ENV.acc_dtype)
    buf = te.compute(x.shape, lambda *i: x(*i), "buf")
    y = te.compute(
        (9, *TAIL),
        lambda i, b, k: te.if_then_else(i < 8, buf(i, b, k), 0).astype(ENV.out_dtype),
        "y",
    )
    s = te.create_schedule(y.op)
    s[buf].set_scope(ENV.acc_scope)
    for tensor in (buf, y):
        s[tensor].pragma(tensor.op.axis[0], ENV.dma_copy)
    return s, [x, y]


def padding_within_a_tile() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: te.if_then_else(k < 2, x(i, b, k), 0))


def padding_along_a_diagonal() -> Scheduled:
    return loaded(
        (4, 4, *TAIL), lambda x, i, j, b, k: te.if_then_else(i + j < 6, x(i + j, b, k), 0)
    )


def padding_by_contents() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: te.if_then_else(x(i, b, k) > 0, x(i, b, k), 0))


def copy_of_a_sum() -> Scheduled:
    return loaded((8, *TAIL), lambda x, i, b, k: x(i, b, k) + 1)


def wrong_type_of_load() -> Scheduled:
    return loaded((8, *TAIL), lambda x, *i: x(*i), dtype="int16", stored="int8")


def wrong_type_of_inputs() -> Scheduled:
    return loaded((8, *TAIL), lambda x, *i: x(*i).astype("int8"), scope=ENV.inp_scope)


def wrong_type_of_store() -> Scheduled:
    return loaded((8, *TAIL), lambda x, *i: x(*i), stored="int16")


def store_of_inputs() -> Scheduled:
    return loaded((8, *TAIL), lambda x, *i: x(*i), dtype="int8", scope=ENV.inp_scope)


def too_large() -> Scheduled:
    return loaded((130, *TAIL), lambda x, *i: x(*i), source=(130, *TAIL))


def nowhere() -> Scheduled:
    return loaded((8, *TAIL), lambda x, *i: x(*i), scope="dram")


def load_of_accumulators() -> Scheduled:
    x = te.placeholder((8, *TAIL), "x", ENV.acc_dtype)
    buf = te.compute(x.shape, lambda *i: x(*i), "buf")
    more = te.compute(x.shape, lambda *i: buf(*i), "more")
    y = te.compute(x.shape, lambda *i: more(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor in (buf, more):
        s[tensor].set_scope(ENV.acc_scope)
    for tensor in (buf, more, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def alu_on_inputs() -> Scheduled:
    x = te.placeholder((8, *TAIL), "x", ENV.inp_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    result = te.compute(x.shape, lambda *i: x_buf(*i).astype(ENV.acc_dtype) + 1, "result")
    y = te.compute(x.shape, lambda *i: result(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[x_buf].set_scope(ENV.inp_scope)
    s[result].set_scope(ENV.acc_scope)
    s[result].pragma(result.op.axis[0], ENV.alu)
    for tensor in (x_buf, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def sum_of_inputs() -> Scheduled:
    x = te.placeholder((2, ENV.BATCH, ENV.BLOCK_IN), "x", ENV.inp_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    ki = te.reduce_axis((0, ENV.BLOCK_IN), "ki")
    total = te.compute(
        (2, *TAIL), lambda i, b, c: te.sum(x_buf(i, b, ki).astype(ENV.acc_dtype), axis=ki), "total"
    )
    y = te.compute(total.shape, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    s[x_buf].set_scope(ENV.inp_scope)
    s[total].set_scope(ENV.acc_scope)
    s[total].tensorize(total.op.axis[1], ENV.gemm)
    for tensor in (x_buf, y):
        s[tensor].pragma(s[tensor].op.axis[0], ENV.dma_copy)
    return s, [x, y]


def not_marked() -> Scheduled:
    s, args = loaded((8, *TAIL), lambda x, *i: x(*i))
    s[args[1]].pragmas.clear()
    return s, args


def read_after_store() -> Scheduled:
    s, args = loaded((8, *TAIL), lambda x, *i: x(*i))
    again = te.compute(args[1].shape, lambda *i: args[1](*i).astype(ENV.acc_dtype), "again")
    z = te.compute((8, *TAIL), lambda *i: again(*i).astype(ENV.out_dtype), "z")
    s = te.create_schedule([args[1].op, z.op])
    for stage in s.stages:
        if stage.name in ("buf", "again"):
            stage.set_scope(ENV.acc_scope)
        if stage.body is not None:
            stage.pragma(stage.op.axis[0], ENV.dma_copy)
    return s, [*args, z]


def read_outside_of_its_loop() -> Scheduled:
    a = te.placeholder((8, 4), "a")
    b = te.compute((8, 4), lambda i, j: a[i, j], "b")
    c = te.compute((8, 4), lambda i, j: b[i, j] + 1, "c")
    d = te.compute((8, 4), lambda i, j: b[i, j] + c[i, j], "d")
    s = te.create_schedule(d.op)
    s[b].compute_at(s[c], c.op.axis[0])
    return s, [a, d]


def at_an_axis_that_is_gone() -> Scheduled:
    a = te.placeholder((8,), "a")
    b = te.compute((8,), lambda i: a[i], "b")
    c = te.compute((8,), lambda i: b[i], "c")
    s = te.create_schedule(c.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].split(c.op.axis[0], 2)
    return s, [a, c]


def within_an_instruction() -> Scheduled:
    s, args = multiplied()
    total = next(stage for stage in s.stages if stage.name == "total")
    inputs = next(stage for stage in s.stages if stage.name == "x_buf")
    inputs.compute_at(total, total.reduce_axis[1])
    return s, args


def parts_of_a_fused_axis() -> Scheduled:
    a = te.placeholder((4, 6), "a")
    b = te.compute((4, 6), lambda i, j: a[i, j], "b")
    s = te.create_schedule(b.op)
    s[b].split(s[b].fuse(*b.op.axis), 8)
    return s, [a, b]


def output_that_is_not_an_argument() -> Scheduled:
    s, args = loaded((8, *TAIL), lambda x, *i: x(*i))
    return s, args[:1]


def argument_that_is_inlined() -> Scheduled:
    a = te.placeholder((8,), "a")
    b = te.compute((8,), lambda i: a[i] + 1, "b")
    c = te.compute((8,), lambda i: b[i], "c")
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    return s, [a, b, c]


def argument_within_a_stage() -> Scheduled:
    s, args = argument_that_is_inlined()
    s[args[1]].inlined = False
    s[args[1]].compute_at(s[args[2]], args[2].op.axis[0])
    return s, args


def argument_twice() -> Scheduled:
    s, args = loaded((8, *TAIL), lambda x, *i: x(*i))
    return s, [args[0], *args]


def stages_within_each_other() -> Scheduled:
    a = te.placeholder((8,), "a")
    b = te.compute((8,), lambda i: a[i], "b")
    c = te.compute((8,), lambda i: b[i], "c")
    d = te.compute((8,), lambda i: c[i], "d")
    s = te.create_schedule(d.op)
    s[b].compute_at(s[c], c.op.axis[0])
    s[c].compute_at(s[b], b.op.axis[0])
    return s, [a, d]


def stage_within_one_that_is_inlined() -> Scheduled:
    s, args = stages_within_each_other()
    c = next(stage for stage in s.stages if stage.name == "c")
    c.compute_root()
    c.compute_inline()
    return s, args


def not_a_product() -> Scheduled:
    s, args = computed(lambda a, b: a * a + b)
    result = next(stage for stage in s.stages if stage.name == "result")
    result.pragmas.clear()
    result.tensorize(result.op.axis[0], ENV.gemm)
    return s, args


def sum_of_squares() -> Scheduled:
    x = te.placeholder((8, *TAIL), "x", ENV.acc_dtype)
    x_buf = te.compute(x.shape, lambda *i: x(*i), "x_buf")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute(TAIL, lambda b, c: te.sum(x_buf(k, b, c) * x_buf(k, b, c), axis=k), "total")
    y = te.compute(TAIL, lambda *i: total(*i).astype(ENV.out_dtype), "y")
    s = te.create_schedule(y.op)
    for tensor in (x_buf, total):
        s[tensor].set_scope(ENV.acc_scope)
    s[x_buf].pragma(x_buf.op.axis[0], ENV.dma_copy)
    s[total].pragma(total.op.axis[0], ENV.alu)
    s[y].pragma(y.op.axis[0], ENV.dma_copy)
    return s, [x, y]


def input_that_is_not_an_argument() -> Scheduled:
    s, args = loaded((8, *TAIL), lambda x, *i: x(*i))
    return s, args[1:]


CASES: list[tuple[Callable[[], Scheduled], str]] = [
    (square_index, r"buf: index i0 \* i0 of dimension 0 of x is not affine, a sum of axes"),
    (
        folded_index,
        r"buf: index \(i0 // 2\) \+ \(i0 % 2\) of dimension 0 of x is not affine, a sum of",
    ),
    (reshaped_index, "buf: index i0 // 2 of .* is not affine: split i0 by 2$"),
    (part_of_a_tile, r"buf: the copy x\[i0, 0, i2\] does not move whole tiles of 4 consecutive"),
    (tile_in_reverse, r"buf: the copy x\[i0, 0, -i2 \+ 3\] does not move whole tiles"),
    (
        padding_with_ones,
        "buf is padded with 1; a machine without the extension PAD_VALUE pads with 0",
    ),
    (
        two_sources_within_a_tile,
        r"buf: the copy x\[i0, 0, i2\] does not move whole tiles of 4",
    ),
    (padding_with_two_values, "buf is padded with 0 and 3; a copy pads with one value"),
    (padding_of_a_store, "y: int8.if_then_else.* is padded; only loads can be"),
    (
        padding_within_a_tile,
        "buf: i2 < 2 depends on i2, within a tile; only whole tiles are padded",
    ),
    (padding_along_a_diagonal, r"buf: \(i0 \+ i1\) < 6 joins the loops i0 and i1"),
    (padding_by_contents, r"buf: the condition x\[i0, 0, i2\] > 0 is not a comparison of affine"),
    (copy_of_a_sum, r"buf: x\[i0, 0, i2\] \+ 1 is not a copy; dma_copy copies one tensor"),
    (wrong_type_of_load, "buf is int16; acc_scope holds int32"),
    (wrong_type_of_inputs, "buf: x is int32; a load into inp_scope takes int8"),
    (wrong_type_of_store, "y is int16; the machine stores accumulators as int8"),
    (store_of_inputs, "y: buf is in inp_scope; what dma_copy stores has to be in acc_scope"),
    (
        too_large,
        r"acc holds 128 elements of 16 bytes: buf \[130, 1, 4\] takes 130; at most 128 would fit "
        "for buf",
    ),
    (nowhere, "buf: both x and buf are in dram; dma_copy loads into inp_scope, wgt_scope or acc_"),
    (load_of_accumulators, "more: buf is in acc_scope; what dma_copy loads has to be in dram$"),
    (not_marked, "no instruction computes y: none of its axes has the pragma dma_copy or alu, or"),
    (read_after_store, "again reads y, which the same function stores"),
    (read_outside_of_its_loop, r"b is computed at c\.i, but it is read outside of that loop"),
    (at_an_axis_that_is_gone, r"b is computed at c\.i, which has been split or fused since"),
    (within_an_instruction, r"x_buf is computed at total\.ki, which is within one instruction"),
    (parts_of_a_fused_axis, r"b\.i_j_fused is fused from loops of 4 x 6 and cannot be split by 8"),
    (output_that_is_not_an_argument, "y is computed but is not one of the arguments"),
    (input_that_is_not_an_argument, "x is read but is not one of the arguments"),
    (argument_that_is_inlined, "b is an argument, which cannot be inlined"),
    (argument_within_a_stage, "b is an argument, which cannot be computed within another stage"),
    (argument_twice, "x is an argument twice"),
    (stages_within_each_other, r"c is computed at b\.i: that is a cycle, b within c within b"),
    (
        stage_within_one_that_is_inlined,
        r"b is computed at c\.i, but c is inlined and has no loops",
    ),
    (not_a_product, r"result: .* is not a te\.sum of products, which gemm begins at 0"),
    (sum_of_squares, r"total: total.* \+ \(x_buf.* \* x_buf.*\) is more than one operation on"),
    (
        lambda: multiplied(axis=5),
        r"total: the loops from the axis that gemm tensorizes inward are ki \(4\); they have to "
        "walk through a tile of 1 x 4 accumulators",
    ),
    (
        lambda: multiplied(scope=ENV.inp_scope),
        "total: w_buf is in inp_scope; a factor of gemm has to be in wgt_scope$",
    ),
    (
        lambda: multiplied(inputs=ENV.wgt_scope),
        "total: x_buf is in wgt_scope; a factor of gemm has to be in inp_scope$",
    ),
    (
        lambda: multiplied(scope=ENV.inp_scope, inputs=ENV.wgt_scope),
        "total: w_buf is in inp_scope and x_buf in wgt_scope; gemm needs the factor with the axis "
        "ci of the outputs, w_buf, in wgt_scope",
    ),
    (
        lambda: multiplied(sums="dram"),
        "y: both total and y are in dram; dma_copy loads .* and stores from acc_scope$",
    ),
    (
        lambda: multiplied(rows=True),
        r"inward are ci \(4\), ko \(2\); they have to be 1 rows, 4 outputs and 4 inputs$",
    ),
    (sum_of_inputs, "total: .* is not a product of two tensors, which gemm sums up$"),
    (lambda: multiplied(transposed=True), "which does not walk through tiles of 4 x 4 scalars"),
    (
        lambda: computed(lambda a, b: (a + 1) * (b + 1)),
        "both sides of .* must be computed first; do that in a separate stage",
    ),
    (
        lambda: computed(lambda a, b: a >> te.max(b, 0)),
        r"result: the right side of a_buf.* >> max\(.* must be computed first",
    ),
    (lambda: computed(lambda a, b: (a + b) // 2), "result: the ALU has no //, as in"),
    (lambda: computed(lambda a, b: a << b), "result: the ALU cannot do << by a tensor, as in"),
    (
        lambda: computed(lambda a, b: a + b + 40000),
        "result: ADD by 40000: an immediate is within -32768 to 32767; give the value as a tensor",
    ),
    (
        lambda: computed(lambda a, b: (a + b).astype("int8")),
        "result: result is int8; what the ALU computes, in acc_scope, has to be int32$",
    ),
    (
        lambda: computed(lambda a, b: te.if_then_else(a > b, a, b)),
        "result: the ALU cannot do if_then_else",
    ),
    (
        lambda: computed(lambda a, b: te.requantize(a, *[b] * REQUANTIZE_PARAMETERS)),
        "result: requantize needs a machine with the extension REQUANTIZE; on others scales are",
    ),
    (alu_on_inputs, "conversion, as in int32.*; x_buf has to be int32 in acc_scope"),
]


@pytest.mark.parametrize(
    ("make", "message"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    make: Callable[[], Scheduled], message: str
) -> None:
    s, args = make()
    with pytest.raises(ValueError, match=message):
        build(s, args, env=ENV)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda a, b: te.requantize(a, *[b] * REQUANTIZE_PARAMETERS),
            "the parameters of requantize are tiles of one tensor, one after the other; "
            ".* does not follow",
        ),
        (
            lambda a, b: te.requantize(a, b + 1, *[b] * (REQUANTIZE_PARAMETERS - 1)),
            "result: the parameters of .* are not all accumulators",
        ),
    ],
)
def test_requantization_that_the_machine_cannot_do_is_refused(
    function: Callable[..., Expr], message: str
) -> None:
    s, args = computed(function)
    with pytest.raises(ValueError, match=message):
        build(s, args, env=Environment(PRESETS["tiny-extended"]))


def test_lower_prints_what_build_refuses() -> None:
    s, args = not_marked()
    text = str(lower(s, args, env=ENV, simple_mode=True))
    assert "y[i0, 0, i2] = int8(buf[i0, 0, i2])" in text
    assert text.splitlines()[-1].startswith("# not for the machine: no instruction computes y")
    with pytest.raises(BuildError, match="function: no instruction computes y"):
        build(s, args, env=ENV)


def test_every_line_can_name_its_stage_axis_and_source() -> None:
    s, args = multiplied()
    lowered = lower(s, args, env=ENV, trace=True, labels=True)
    label = re.compile(r"  # (x_buf|w_buf|total|y)(\.[a-z0-9 ]+)?, test_lowering_errors\.py:\d+$")
    for _, text in lowered.steps:
        for line in text.splitlines()[1:]:
            assert label.search(line) or line.strip() == "with lifetime():", line
    assert re.search(r"uop_loop.*# total\.co, test_lowering_errors", lowered.labelled())


def test_every_instruction_can_name_its_stage_and_source() -> None:
    s, args = multiplied()
    lines = lower(s, args, env=ENV).instructions().splitlines()
    label = re.compile(r"# (micro-ops|(x_buf|w_buf|total|y), test_lowering_errors\.py:\d+)$")
    assert all(label.search(line) for line in lines if "uop[" not in line[:30])
    assert sum(line.endswith("acc[0] = 0") for line in lines) == 1
