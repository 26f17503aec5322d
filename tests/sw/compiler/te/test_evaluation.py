"""The values of expressions, against handwritten NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sim.model.arithmetic import requantized
from amaranth_vta.sw.compiler import te

RNG = np.random.default_rng(7)


def test_arithmetic_wraps_at_its_dtype() -> None:
    a = te.placeholder((256,), "a", "int8")
    b = te.compute((256,), lambda i: a[i] * 3 + 100, "b")
    values = np.arange(-128, 128).astype(np.int8)
    want = (values.astype(np.int64) * 3 + 100).astype(np.int8)
    np.testing.assert_array_equal(te.evaluate(b, {a: values}), want)


def test_four_bits_wrap_at_four_bits() -> None:
    a = te.placeholder((40,), "a", "int32")
    b = te.compute((40,), lambda i: a[i].astype("int4"), "b")
    values = np.arange(-20, 20, dtype=np.int32)
    assert te.evaluate(b, {a: values}).tolist() == [(v + 8) % 16 - 8 for v in range(-20, 20)]


@pytest.mark.parametrize(("amount", "want"), [(1, -3), (40, -1), (-1, -10), (-40, 0), (0, -5)])
def test_shifts_take_signed_amounts_of_any_size(amount: int, want: int) -> None:
    a, n = te.placeholder((1,), "a", "int32"), te.placeholder((1,), "n", "int32")
    b = te.compute((1,), lambda i: a[i] >> n[i], "b")
    inputs = {a: np.array([-5], np.int32), n: np.array([amount], np.int32)}
    assert te.evaluate(b, inputs).tolist() == [want]


def test_only_the_chosen_side_is_read() -> None:
    a = te.placeholder((3,), "a")
    b = te.pad(a, [2], [1], value=9)
    assert te.evaluate(b, {a: np.array([1, 2, 3], np.int32)}).tolist() == [9, 9, 1, 2, 3, 9]


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_reductions_agree_with_numpy(kind: str) -> None:
    a = te.placeholder((3, 4, 5), "a", "int16")
    j, k = te.reduce_axis((0, 4), "j"), te.reduce_axis((1, 5), "k")
    reduce: Any = {"sum": te.sum, "max": te.max, "min": te.min}[kind]
    b = te.compute((3,), lambda i: reduce(a[i, j, k], axis=[j, k]), "b")
    values = RNG.integers(-(1 << 15), 1 << 15, (3, 4, 5)).astype(np.int16)
    part = values[:, :, 1:].reshape(3, -1)
    want = {"sum": part.sum(1), "max": part.max(1), "min": part.min(1)}[kind].astype(np.int16)
    np.testing.assert_array_equal(te.evaluate(b, {a: values}), want)


def test_reductions_that_are_too_large_to_do_at_once_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = te.placeholder((3, 4, 5), "a", "int8")
    j, k = te.reduce_axis((0, 4), "j"), te.reduce_axis((0, 5), "k")
    b = te.compute((3,), lambda i: te.sum(a[i, j, k].astype("int32"), axis=[j, k]), "b")
    values = RNG.integers(-128, 128, (3, 4, 5)).astype(np.int8)
    monkeypatch.setattr("amaranth_vta.sw.compiler.te.evaluation._CHUNK", 4)
    np.testing.assert_array_equal(te.evaluate(b, {a: values}), values.reshape(3, -1).sum(1))


def test_an_unguarded_read_outside_is_an_error() -> None:
    a = te.placeholder((4,), "a")
    n = te.placeholder((1,), "n")
    b = te.compute((1,), lambda i: te.if_then_else(n[i] > 0, a[i + 4], 0), "b")
    inputs = {a: np.arange(4, dtype=np.int32), n: np.array([0], np.int32)}
    assert te.evaluate(b, inputs).tolist() == [0]
    with pytest.raises(te.ExpressionError, match=r"a\[i \+ 4\] reads outside of dimension 0"):
        te.evaluate(b, {**inputs, n: np.array([1], np.int32)})


def test_a_missing_value_is_named() -> None:
    a = te.placeholder((4,), "a")
    b = te.compute((4,), lambda i: a[i], "b")
    with pytest.raises(te.ExpressionError, match="no value is given for a"):
        te.evaluate(b, {})
    with pytest.raises(te.ExpressionError, match=r"a has the shape \(4,\), not \(5,\)"):
        te.evaluate(b, {a: np.zeros(5, np.int32)})


def test_requantization_means_what_the_machine_does() -> None:
    bias, sums = RNG.integers(-1 << 31, 1 << 31, (2, 100_000))
    values = ((sums >> RNG.integers(0, 31, sums.size)) - bias).astype(np.int32)
    near = np.ldexp(RNG.uniform(0.5, 2, values.size), RNG.integers(-24, 2, values.size))
    extreme = np.where(RNG.random(values.size) < 0.01, 63.99999, 1e-13)
    scale = np.where(RNG.random(values.size) < 0.9, near, extreme).astype(np.float32)
    parameters = te.requantization_parameters(bias, scale, -7, -100, 90)
    v, p = te.placeholder(values.shape, "v"), te.placeholder(parameters.shape, "p")
    y = te.compute(
        values.shape,
        lambda i: te.requantize(v[i], *(p[i, number] for number in range(p.shape[1]))),
        "y",
    )
    assert y.op.body is not None
    result = te.evaluate(y, {v: values, p: parameters})
    np.testing.assert_array_equal(result, requantized(values, *parameters.T))
    assert np.unique(result).size == 191


def test_requantization_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="a scale is not positive and less than 64"):
        te.requantization_parameters([1], [0.0], 0, -128, 127)
    with pytest.raises(ValueError, match="zero point 0 and bounds 5 to 4 are not int8"):
        te.requantization_parameters([1], [1.0], 0, 5, 4)
    a = te.placeholder((4,), "a", "int8")
    with pytest.raises(te.ExpressionError, match=r"requantize\(a\[i\], .*: a\[i\] is int8, not"):
        te.compute((4,), lambda i: te.requantize(a[i], *[a[i]] * REQUANTIZE_PARAMETERS), "b")
