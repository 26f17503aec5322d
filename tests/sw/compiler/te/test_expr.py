"""Expressions are checked when they are constructed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.te.expr import Affine, Var
from amaranth_vta.sw.compiler.te.simplify import simplify, value_interval


def test_a_tensor_takes_one_index_per_dimension() -> None:
    a = te.placeholder((4, 4), "a")
    with pytest.raises(te.ExpressionError, match=r"a\[i\]: 1 indices for the shape \(4, 4\)"):
        te.compute((4,), lambda i: a[i], "b")


def test_an_index_must_stay_in_its_tensor() -> None:
    a = te.placeholder((4,), "a")
    with pytest.raises(
        te.ExpressionError,
        match=r"b: a\[i \+ 1\] reads index 4 of dimension 0 of a, whose extent is 4",
    ):
        te.compute((4,), lambda i: a[i + 1], "b")


def test_a_guarded_index_may_leave_its_tensor() -> None:
    a = te.placeholder((4,), "a")
    b = te.compute((4,), lambda i: te.if_then_else(i < 3, a[i + 1], 0), "b")
    assert b.shape == (4,)


def test_dtypes_must_agree() -> None:
    a, b = te.placeholder((4,), "a", "int8"), te.placeholder((4,), "b", "int32")
    with pytest.raises(
        te.ExpressionError,
        match=r"a\[i\] \+ b\[i\]: the left side is int8 and the right side int32",
    ):
        te.compute((4,), lambda i: a[i] + b[i], "c")


def test_a_constant_must_fit_its_dtype() -> None:
    a = te.placeholder((4,), "a", "int8")
    with pytest.raises(te.ExpressionError, match=r"a\[i\] \+ 200: 200 is not within int8"):
        te.compute((4,), lambda i: a[i] + 200, "b")


def test_a_dtype_must_exist() -> None:
    with pytest.raises(te.ExpressionError, match="'float32' is not a dtype; the dtypes are int4"):
        te.placeholder((4,), "a", "float32")


# Hide the deliberate errors in these calls from the type checker.
wrong: Any = te
A: Any = te.placeholder((4,), "a")
K = te.reduce_axis((0, 4), "k")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i: 1.5, "b: its function gives 1.5, not an expression"),
        (lambda i: A, r"b: its function gives a: int32\[4\], not an expression"),
        (lambda i: A[1.5], r"a\[… 1.5 …\]: 1.5 is not a whole number"),
        (lambda i: A[1:2], "slice.* is not a whole number"),
        (lambda i: A[i] + np.arange(3), "is not a whole number"),
        (lambda i: np.float32(2) * A[i], "is not a whole number"),
        (lambda i: A[i] / 2, r"a\[i\] / 2: there are whole numbers only; write //"),
        (lambda i: 4 // A[i], r"4 // a\[i\]: the divisor is not a positive constant"),
        (
            lambda i: wrong.if_then_else((i > 0) & (i < 3), A[i], 0),
            r"\(i > 0\) & \(i < 3\): conditions are joined by te.all",
        ),
        (lambda i: wrong.if_then_else(True, A[i], 0), "True is not a condition"),
        (lambda i: wrong.if_then_else(A[i], A[i], 0), r"a\[i\] is int32, not bool"),
        (lambda i: wrong.if_then_else(wrong.all(), A[i], 0), r"all\(\) has no condition"),
        (lambda i: wrong.sum(A[K]), r"sum\(a\[k\], axis=\[\]\): no axis is given"),
        (lambda i: wrong.sum(A[K], axis=[K, K]), r"axis=\[k, k\]\): an axis is given twice"),
        (lambda i: wrong.const(3.5), "3.5 is not a whole number"),
        (
            lambda i: wrong.max(A[i], 1 << 40),
            r"max\(a\[i\], 1099511627776\): .* is not within int32",
        ),
    ],
)
def test_what_is_not_an_expression_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(te.ExpressionError, match=message):
        wrong.compute((4,), function, "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wrong.placeholder(4, "a"), "a: its shape is 4, not a list of whole numbers"),
        (lambda: wrong.placeholder((4.0,), "a"), "a: its shape: 4.0 is not a whole number"),
        (lambda: wrong.reduce_axis(4, "k"), "its range is 4, not a list of whole numbers"),
        (lambda: wrong.reduce_axis((0, 4, 2), "k"), r"a range is \(begin, end\)"),
        (lambda: wrong.pad(A, 1), "pad: the pads before is 1, not a list of whole numbers"),
        (lambda: wrong.pad(A, [-1]), "contain a negative one"),
    ],
)
def test_sizes_are_whole_numbers(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(te.ExpressionError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # The argument order of TVM, completely or in part, and other orders.
        (lambda: wrong.placeholder((4,), "int8", "a"), "'int8' is given as its name and 'a' as"),
        (lambda: wrong.placeholder((4,), "int8"), "'int8' is given as its name$"),
        (lambda: wrong.placeholder("a", (4,)), "'a' is given as its shape$"),
        (lambda: wrong.placeholder((4,), (4,)), r"\(4,\) is given as its name$"),
        (lambda: wrong.placeholder((4,), "a", (4,)), r"\(4,\) is given as its dtype$"),
    ],
)
def test_arguments_of_placeholder_in_another_order_are_refused(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(te.ExpressionError, match=rf"placeholder\(shape, name, dtype\): {message}"):
        make()


def test_the_function_of_compute_is_one() -> None:
    with pytest.raises(te.ExpressionError, match=r"compute\(shape, function, name\): 'b' is no"):
        wrong.compute((4,), "b", lambda i: A[i])


def test_numbers_of_numpy_are_numbers() -> None:
    b = wrong.compute((np.int64(4),), lambda i: np.int32(3) + A[i] * np.int64(2), "b")
    assert str(b.op.body) == "3 + (a[i] * 2)"


def test_a_shape_must_be_positive() -> None:
    with pytest.raises(
        te.ExpressionError, match="a: 0 in its shape is not a positive whole number"
    ):
        te.placeholder((4, 0), "a")


def test_a_function_takes_one_index_per_dimension() -> None:
    with pytest.raises(
        te.ExpressionError, match="b: its function takes 1 indices, its shape has 2"
    ):
        te.compute((4, 4), lambda i: i, "b")


def test_a_reduction_is_a_separate_compute() -> None:
    a, k = te.placeholder((4, 4), "a"), te.reduce_axis((0, 4), "k")
    with pytest.raises(te.ExpressionError, match="a reduction is a separate compute"):
        te.compute((4,), lambda i: te.sum(a[i, k], axis=k) + 1, "b")


def test_only_reduce_axes_are_reduced() -> None:
    a = te.placeholder((4, 4), "a")
    with pytest.raises(te.ExpressionError, match="j is not a reduce_axis"):
        te.compute((4, 4), lambda i, j: te.sum(a[i, j], axis=j), "b")


def test_a_reduce_axis_is_not_an_index_outside_of_its_reduction() -> None:
    a, k = te.placeholder((4,), "a"), te.reduce_axis((0, 4), "k")
    with pytest.raises(te.ExpressionError, match="k in k is not an axis of this compute"):
        te.compute((4,), lambda i: a[k], "b")


def test_a_condition_has_no_truth_value_while_it_is_written() -> None:
    with pytest.raises(te.ExpressionError, match=r"use te\.if_then_else and te\.all"):
        te.compute((4,), lambda i: 1 if i < 2 else 0, "b")


def test_pads_are_given_for_each_dimension() -> None:
    a = te.placeholder((4, 4), "a")
    with pytest.raises(te.ExpressionError, match=r"pads \[1\], \[1\] for the shape \(4, 4\)"):
        te.pad(a, [1])


def test_a_padding_value_is_of_the_tensors_dtype() -> None:
    a = te.placeholder((4,), "a", "int8")
    assert te.pad(a, [1], value=-128).dtype == "int8"
    message = "wide: 128 is not within int8, the dtype of a"
    with pytest.raises(te.ExpressionError, match=message):
        te.pad(a, [1], value=128, name="wide")


def test_tensors_know_where_they_were_written() -> None:
    a = te.placeholder((4,), "a")
    assert str(a.op.origin).startswith("test_expr.py:")


def test_the_bounds_of_a_tensor_follow_from_how_it_is_computed() -> None:
    a, k = te.placeholder((4, 9), "a", "int8"), te.reduce_axis((0, 9), "k")
    wide = te.compute((4, 9), lambda i, j: a[i, j].astype("int32") * 2 - 1, "wide")
    total = te.compute((4,), lambda i: te.sum(wide[i, k], axis=k), "total")
    assert wide.interval == (-257, 253)
    assert total.interval == (-257 * 9, 253 * 9)


def test_divisions_by_a_split_are_carried_out() -> None:
    i, j = Var("i"), Var("j")
    value = Affine({i: 4, j: 1}, 8) // 4
    assert str(simplify(value, {i: (0, 3), j: (0, 3)})) == "i + 2"
    assert str(simplify(Affine({i: 4, j: 1}) % 4, {i: (0, 3), j: (0, 3)})) == "j"
    assert value_interval(value, {i: (0, 3), j: (0, 3)}) == (2, 5)


def test_conditions_that_always_hold_are_dropped() -> None:
    i = Var("i")
    condition = te.all(Affine({i: 1}) >= 0, Affine({i: 1}) < 2)
    assert str(simplify(condition, {i: (0, 3)})) == "i < 2"
    assert str(simplify(condition, {i: (2, 3)})) == "0"
