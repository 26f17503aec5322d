"""Errors for impossible schedule steps name the axis and the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import get_env
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.nest.ir import LoweringError
from amaranth_vta.sw.compiler.te.tensor import Tensor

NOT_BOTH = "a staggered buffer is kept for one iteration"


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    a = te.placeholder((8, 6), "a")
    b = te.compute((8, 6), lambda i, j: a[i, j] + 1, "b")
    c = te.compute((8, 6), lambda i, j: b[i, j] * 2, "c")
    return a, b, c


def _split_twice(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].split(c.op.axis[0], 4)
    s[c].split(c.op.axis[0], 2)


def _split_of_nothing(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].split(c.op.axis[0], 0)


def _split_without_a_size(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].split(c.op.axis[0])


def _foreign_axis(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].reorder(b.op.axis[1], c.op.axis[0])


def _fuse_of_strangers(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].fuse(c.op.axis[1], c.op.axis[0])


def _unknown_scope(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].set_scope("local")


def _output_within(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].compute_at(s[b], b.op.axis[0])


def _stored_with_an_input(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].store_with(s[b])


def _stored_with_itself(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].store_with(s[c])


def _stored_after_a_split(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s.outputs.append(b)
    s[c].split(c.op.axis[0], 4)
    s[c].store_with(s[b])


def _unknown_pragma(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].pragma(c.op.axis[0], "vectorize")


def _no_intrinsic(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].tensorize(c.op.axis[0], "gemm")  # type: ignore[arg-type]


def _inlined_output(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].compute_inline()


def _twice_in_an_order(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].reorder(c.op.axis[0], c.op.axis[0])


def _no_copies(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].double_buffer(0)


def _carried_then_stored(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    i, j = c.op.axis
    s[b].compute_at(s[c], j)
    s[b].store_at(i)
    s[b].carry(b.op.axis[1])
    s[b].store_at(i)


def _staggered_alone(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].stagger(1, 2)


def _no_parts(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].stagger(1, 0)


def _stored_then_staggered(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    i, j = c.op.axis
    s[b].compute_at(s[c], j)
    s[b].store_at(i)
    s[b].stagger(1, 2)


def _staggered_then_stored(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    i, j = c.op.axis
    s[b].compute_at(s[c], j)
    s[b].stagger(1, 2)
    s[b].store_at(i)


def _cache_for_a_stranger(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s.cache_read(s[b].op.body.left.source, "acc", [c])  # type: ignore[union-attr]


def _marked_then_split(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].pragma(c.op.axis[0], "alu")
    s[c].split(c.op.axis[0], 2)


def _thread_then_fused(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].bind(c.op.axis[1], te.thread_axis("cthread"))
    s[c].fuse(*c.op.axis)


def _two_kinds(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].pragma(c.op.axis[0], "alu")
    s[c].tensorize(c.op.axis[1], get_env().gemm)


def _scope_of_an_output(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].set_scope("acc")


def _placeholder_within(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    source = s.stages[0].tensor
    s[source].compute_at(s[c], c.op.axis[0])


def _another_schedule(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(te.create_schedule(c.op)[c], c.op.axis[0])


def _tensor_for_a_stage(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(c, c.op.axis[0])  # type: ignore[arg-type]


def _stage_by_name(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s["c"]  # type: ignore[index]


def _half_a_loop(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].split(c.op.axis[0], 2.5)  # type: ignore[arg-type]


def _late_cache(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[c].reorder(c.op.axis[1], c.op.axis[0])
    s.cache_write(c, "acc")


def _cache_without_readers(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s.cache_read(b, "acc", [])


def _stored_before_it_is_placed(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].store_at(c.op.axis[0])


def _stored_inside(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[0])
    s[b].store_at(c.op.axis[1])


def _carried_before_it_is_stored(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[1])
    s[b].carry(b.op.axis[1])


def _carried_along_a_stranger(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[1])
    s[b].store_at(c.op.axis[0])
    s[b].carry(c.op.axis[1])


def _stored_around_a_stranger(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[1])
    s[b].store_at(b.op.axis[0], s[b])


def _rewritten_nothing(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_at(s[c], c.op.axis[1])
    s[b].store_at(c.op.axis[0])
    s[b].carry(b.op.axis[1], 0)


def _whole_along_a_stranger(s: te.Schedule, b: Tensor, c: Tensor) -> None:
    s[b].compute_whole(c.op.axis[1])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_whole_along_a_stranger, "compute_whole: j is not an axis of the tensor b"),
        (_stored_before_it_is_placed, "store_at of b: compute_at comes first"),
        (_stored_inside, r"store_at of b: c.i, .* not the axis right within j"),
        (_carried_before_it_is_stored, "carry of b.j: store_at comes first"),
        (_carried_along_a_stranger, "carry: j is not an axis of the tensor b"),
        (_stored_around_a_stranger, "store_at of b: it is not computed within b"),
        (_rewritten_nothing, "carry of b.j: 0 is not positive"),
        (_split_twice, "split: c.i has been split into i_outer and i_inner"),
        (_split_of_nothing, "split of c.i: 0 is not positive"),
        (_split_without_a_size, "split of c.i: give factor or nparts"),
        (_foreign_axis, r"reorder: j is not an axis of c \(its axes are i, j\)"),
        (_fuse_of_strangers, r"fuse of c.j and i: i does not follow j \(the order is i, j\)"),
        (_unknown_scope, "set_scope of b: 'local' is not one of dram, inp, wgt, acc"),
        (_output_within, "compute_at of c: an output is computed at the top"),
        (_stored_with_an_input, "store_with of c: b is not an output"),
        (_stored_with_itself, "store_with of c: c has no loops of its own"),
        (_stored_after_a_split, "store_with of c: its own loops are scheduled already"),
        (_unknown_pragma, "pragma of c: 'vectorize' is not one of dma_copy, alu"),
        (_no_intrinsic, "tensorize of c.i: 'gemm' is not an intrinsic; use env.gemm"),
        (_inlined_output, "compute_inline of c: an output must be stored"),
        (_twice_in_an_order, "reorder of c: an axis is given twice"),
        (_no_copies, "double_buffer of b: 0 is not positive"),
        (_carried_then_stored, "store_at of b: carry has been given; it comes after"),
        (_staggered_alone, "stagger of b: compute_at comes first"),
        (_no_parts, "stagger of b: 0 is not positive"),
        (_stored_then_staggered, f"stagger of b: store_at has been given; {NOT_BOTH}"),
        (_staggered_then_stored, f"store_at of b: stagger has been given; {NOT_BOTH}"),
        (_cache_for_a_stranger, "cache_read of a: c does not read it"),
        (_marked_then_split, "split of c.i: it has been marked as alu already; split it before"),
        (_thread_then_fused, "fuse of c.j: it has been marked as a thread already"),
        (_two_kinds, "tensorize by gemm of c.j: c is alu from i inward already"),
        (_scope_of_an_output, "set_scope of c: an output stays in dram; use cache_write"),
        (_placeholder_within, "compute_at of a: a placeholder is not computed"),
        (_another_schedule, "compute_at of b: c is a stage of another schedule"),
        (
            _tensor_for_a_stage,
            r"c: int32\[8, 6\] is not a stage, such as s\[tensor\]",
        ),
        (_stage_by_name, r"s\['c'\]: index a schedule by a tensor or its op"),
        (_half_a_loop, "split of c.i: 2.5 is not a whole number"),
        (_late_cache, "cache_write of c: it is scheduled already"),
        (_cache_without_readers, "cache_read of b: no reader is given"),
    ],
)
def test_a_step_that_cannot_be_done_says_why(
    step: Callable[[te.Schedule, Tensor, Tensor], None], message: str
) -> None:
    _, b, c = tensors()
    s = te.create_schedule(c.op)
    with pytest.raises(te.ScheduleError, match=message):
        step(s, b, c)


def test_fuse_takes_any_number_of_axes() -> None:
    a = te.placeholder((2, 3, 4), "a")
    b = te.compute((2, 3, 4), lambda i, j, k: a[i, j, k], "b")
    s = te.create_schedule(b.op)
    assert s[b].fuse(*b.op.axis).name == "i_j_fused_k_fused"
    assert len(s[b].leaves) == 1


def test_a_schedule_needs_an_output() -> None:
    with pytest.raises(te.ExpressionError, match="a schedule needs an output"):
        te.create_schedule([])
    with pytest.raises(te.ExpressionError, match="create_schedule: None is not a tensor"):
        te.create_schedule(None)  # type: ignore[arg-type]


def test_only_cthreads_exist() -> None:
    with pytest.raises(te.ScheduleError, match="the only kind of thread is 'cthread'"):
        te.thread_axis("threadIdx.x")


def test_a_reduce_axis_cannot_be_a_thread() -> None:
    a, k = te.placeholder((8, 6), "a"), te.reduce_axis((0, 6), "k")
    c = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), "c")
    s = te.create_schedule(c.op)
    with pytest.raises(te.ScheduleError, match="bind of c.k: a reduce axis cannot be a thread"):
        s[c].bind(k, te.thread_axis("cthread"))


def test_a_placeholder_is_not_scheduled() -> None:
    with pytest.raises(te.ExpressionError, match="a is a placeholder"):
        te.create_schedule(te.placeholder((4,), "a").op)


def test_a_tensor_of_another_schedule_is_refused() -> None:
    _, _, c = tensors()
    _, other, _ = tensors()
    with pytest.raises(te.ScheduleError, match="b is not part of this schedule"):
        te.create_schedule(c.op)[other]


def test_cache_read_and_cache_write_add_stages() -> None:
    a, b, c = tensors()
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    cached = s.cache_read(a, get_env().acc_scope, [b])
    written = s.cache_write(c, get_env().acc_scope)
    assert [stage.name for stage in s.stages] == ["a", "a_acc", "b", "c_acc", "c"]
    assert dict(lower(s, [a, c], trace=True).steps)["infer_bounds"] == (
        """\
def function(a: int32[8, 6], c: int32[8, 6]):
    a_acc = allocate(acc, int32, [8, 6])
    for i0 in range(8):
        for i1 in range(6):
            a_acc[i0, i1] = a[i0, i1]
    c_acc = allocate(acc, int32, [8, 6])
    for i in range(8):
        for j in range(6):
            c_acc[i, j] = (a_acc[i, j] + 1) * 2
    for i_1 in range(8):
        for j_1 in range(6):
            c[i_1, j_1] = c_acc[i_1, j_1]"""
    )
    assert cached.dtype == written.dtype == "int32"


def test_a_stage_can_come_later_than_right_before_its_reader() -> None:
    a = te.placeholder((8,), "a")
    b = te.compute((8,), lambda i: a[i] + 1, "b")
    c = te.compute((8,), lambda i: a[i] * 2, "c")
    d = te.compute((8,), lambda i: b[i] + c[i], "d")
    s = te.create_schedule(d.op)
    s[b].after(s[c])
    assert [stage.name for stage in s.stages] == ["a", "c", "b", "d"]
    s[b].after(s[c])
    assert [stage.name for stage in s.stages] == ["a", "c", "b", "d"]
    with pytest.raises(te.ScheduleError, match="a after d: c reads it"):
        s[a].after(s[d])
    with pytest.raises(te.ScheduleError, match="d is a stage of another schedule"):
        s[b].after(te.create_schedule(d.op)[d])


def test_an_output_can_be_stored_in_the_loops_of_another() -> None:
    a = te.placeholder((8, 6), "a")
    b = te.compute((8, 6), lambda i, j: a[i, j] + 1, "b")
    c = te.compute((8, 6), lambda i, j: b[i, j] * 2, "c")
    first = te.compute((8, 6), lambda i, j: b[i, j], "first")
    second = te.compute((8, 6), lambda i, j: c[i, j], "second")
    s = te.create_schedule([first, second])
    s[second].store_with(s[first])
    outer, _ = s[first].split(first.op.axis[0], 4)
    for tensor in (b, c):
        s[tensor].compute_at(s[first], outer)
    with pytest.raises(te.ScheduleError, match="store_with of first: second has no loops"):
        s[first].store_with(s[second])
    assert dict(lower(s, [a, first, second], trace=True).steps)["infer_bounds"] == (
        """\
def function(a: int32[8, 6], first: int32[8, 6], second: int32[8, 6]):
    for i_outer in range(2):
        b = allocate(dram, int32, [4, 6])
        for i in range(4):
            for j in range(6):
                b[i, j] = a[i + 4*i_outer, j] + 1
        c = allocate(dram, int32, [4, 6])
        for i_1 in range(4):
            for j_1 in range(6):
                c[i_1, j_1] = b[i_1, j_1] * 2
        for i_inner in range(4):
            for j_2 in range(6):
                first[4*i_outer + i_inner, j_2] = b[i_inner, j_2]
                second[4*i_outer + i_inner, j_2] = c[i_inner, j_2]"""
    )
    s[second].compute_part(second.op.axis[0], 0, 4)
    with pytest.raises(LoweringError, match="second is stored in the loops of first; a step is"):
        lower(s, [a, first, second])
    short = te.compute((8,), lambda i: a[i, 0], "short")
    s = te.create_schedule([first, short])
    with pytest.raises(te.ScheduleError, match=r"the shapes \[8\] and \[8, 6\] differ"):
        s[short].store_with(s[first])
