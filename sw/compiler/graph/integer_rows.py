"""Softmax and normalization of rows of 8-bit integers, as integer operators of ONNX on int32.

`append_softmax` and `append_normalization` have the arithmetic of the modules `softmax` and
`normalization` of `operators`, operator by operator: divisions are of numbers from 0 up, which ONNX
and a right shift round alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from amaranth_vta.hw.isa import SCALE_FRACTION
from amaranth_vta.sw.compiler.operators.normalization import (
    DROPPED,
    GREATEST_BIAS,
    LEAST,
    RECIPROCAL_ROOTS,
    ROOTS,
    Arithmetic,
    RowLine,
)
from amaranth_vta.sw.compiler.operators.normalization import POWERS as POWERS_OF_FOUR
from amaranth_vta.sw.compiler.operators.softmax import GREATEST, POWERS, RECIPROCALS

Apply = Callable[..., str]
Integers = npt.NDArray[np.int64]
# The scale of the results of a Softmax whose zero point is the least integer, and of one whose zero
# point is 0.
SHARE, SYMMETRIC_SHARE = 2.0**-8, 2.0**-7
_INT32 = TensorProto.INT32


def exponentials(scale: float) -> Integers:
    """int32 (256,): exp(-scale · d) · `GREATEST` of the differences d from 0 to 255."""
    return np.rint(np.exp(-scale * np.arange(256.0)) * GREATEST).astype(np.int32)


class IntegerSteps:
    """Appends operators on int32. ``apply`` appends an operator and returns its result;
    ``constant`` adds a constant of int64 or of a given dtype.
    """

    def __init__(self, apply: Apply, constant: Callable[..., str]) -> None:
        self._apply, self._constant = apply, constant

    def __call__(self, operator: str, *operands: str | int | Integers, **given: object) -> str:
        """Append an ``operator``; operands that are not names are constants."""
        return self._apply(operator, *self._names(operands, np.int32), **given)

    def integers(self, name: str) -> str:
        """``name`` as int32."""
        return self("Cast", name, to=_INT32)

    def wide(self, operator: str, *operands: str | int) -> str:
        """Append an ``operator`` on int64."""
        return self._apply(operator, *self._names(operands, np.int64))

    def _names(self, operands: Iterable[str | int | Integers], dtype: type) -> Iterator[str]:
        """The names of ``operands``; numbers are added as constants."""
        for item in operands:
            yield item if isinstance(item, str) else self._constant(item, dtype)

    def bytes_from(self, name: str, dtype: np.dtype) -> str:
        """``name``, 8-bit integers, as numbers from 0 to 255."""
        whole = self.integers(name)
        return self("Add", whole, 128) if dtype == np.int8 else whole

    def reduced(self, operator: str, name: str) -> str:
        """``name`` reduced over its last axis, which stays with one element."""
        return self._apply(operator, name, self._constant([-1], np.int64), keepdims=1)

    def rounded(self, name: str, operands: Mapping[str, str], result: tuple[str, np.dtype]) -> None:
        """Append the last step, from ``name``, int32, to ``result``, a name with its type; the
        ``operands`` are constants of `line_constants`.
        """
        wide = self("Cast", name, to=TensorProto.INT64)
        scaled = self.wide("Add", self.wide("Mul", wide, operands["factor"]), operands["half"])
        quotient = self.wide("Sub", self.wide("Div", scaled, operands["divisor"]), operands["less"])
        made, dtype = result
        limits = np.iinfo(dtype)
        clipped = self.wide("Max", self.wide("Min", quotient, int(limits.max)), int(limits.min))
        self("Cast", clipped, result=made, to=int(helper.np_dtype_to_tensor_dtype(dtype)))


def append_softmax(
    step: IntegerSteps,
    operands: tuple[str, str, str],
    symmetric: bool,
    result: tuple[str, np.dtype],
) -> None:
    """Append the operators from ``operands``, x, the table of `exponentials`, and a mask or "", to
    ``result``, a name with its type. With ``symmetric`` the zero point of an int8 is 0.
    """
    x, table, mask = operands
    integers = compared = step.integers(x)
    if mask:
        mask = step.integers(mask)
        compared = step("Add", integers, step("Sub", step("Mul", mask, 256), 256))
    greatest = step.reduced("ReduceMax", compared)
    # A negative difference, which only a masked element has, counts from the end of the table.
    e = step("Gather", table, step("Sub", greatest, integers))
    if mask:
        e = step("Mul", e, mask)
    total = step.reduced("ReduceSum", e)
    powers = []
    for _ in range(2):
        powers.append(step("Gather", POWERS, step("Div", total, 1 << 17)))
        total = step("Mul", total, powers[-1])
    u = step("Div", total, 1 << 8)
    r = step("Mul", step("Gather", RECIPROCALS, step("Div", total, 1 << 17)), 1 << 7)
    near = step("Div", step("Mul", u, r), 1 << 17)
    r = step("Div", step("Mul", r, step("Sub", 1 << 14, near)), 1 << 13)
    near = step("Div", step("Add", step("Mul", u, r), 1 << 13), 1 << 14)
    product = step("Mul", r, step("Sub", 1 << 17, near))
    r = step("Div", step("Add", product, 1 << 13), 1 << 14)
    divisor = step("Div", 1 << 17, step("Mul", *powers))
    share = step("Div", step("Mul", e, r), divisor)
    # Rounded half to even.
    bits = 16 if symmetric else 15
    odd = step("Mod", step("Div", share, 1 << bits), 2)
    nearly = step("Add", step("Add", share, odd), (1 << bits - 1) - 1)
    whole = step("Div", nearly, 1 << bits)
    name, dtype = result
    if dtype == np.int8 and not symmetric:
        whole = step("Sub", whole, 128)
    clipped = step("Min", whole, int(np.iinfo(dtype).max))
    step("Cast", clipped, result=name, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))


# Operands of a normalization after x: E, b, M, the addend and the divisor of the rounding, and the
# subtrahend of the quotient; without a mean also 2^f and the zero point.
NORMALIZATION_CONSTANTS = ("epsilon", "bias", "factor", "half", "divisor", "less")
# Makes a product with M positive.
_RAISED = 1 << 52


def line_constants(line: RowLine, dtype: np.dtype) -> dict[str, npt.NDArray[Any]]:
    """The constants of the last step of a normalization whose result is ``dtype``."""
    zero = line.zero_point + (128 if dtype == np.uint8 else 0)
    divisor = 1 << line.shift
    return {
        "bias": line.bias.astype(np.int32),
        "factor": line.factor.astype(np.int64),
        "half": np.array(_RAISED + divisor // 2, np.int64),
        "divisor": np.array(divisor, np.int64),
        "less": np.array(_RAISED // divisor - zero, np.int64),
    }


# Operands of a rotation after x, of which the last two, factors of x and x', may be computed.
ROTATION_OPERANDS = ("places", "signs", "factor", "half", "divisor", "less", "cosines", "sines")


def append_rotation(
    step: IntegerSteps, x: str, operands: Mapping[str, str], result: tuple[str, np.dtype]
) -> None:
    """Append the operators of a rotary position embedding from ``x``, int8, to ``result``, a name
    with its type. ``operands`` are the names of `ROTATION_OPERANDS`.
    """
    integers = step.integers(x)
    turned = step("Gather", integers, operands["places"], axis=-1)
    turned = step("Mul", turned, operands["signs"])
    terms = step("Mul", integers, operands["cosines"]), step("Mul", turned, operands["sines"])
    step.rounded(step("Add", *terms), operands, result)


def line_of(constants: Mapping[str, npt.NDArray[Any]], dtype: np.dtype) -> RowLine | None:
    """The line of `line_constants`; None if there is none."""
    divisor, less = int(constants["divisor"]), int(constants["less"])
    shift = divisor.bit_length() - 1
    if not 0 < shift <= SCALE_FRACTION or divisor != 1 << shift:
        return None
    zero = _RAISED // divisor - less - (128 if dtype == np.uint8 else 0)
    bias, factor = (constants[name].astype(np.int64) for name in ("bias", "factor"))
    fits = (
        -128 <= zero <= 127
        and int(constants["half"]) == _RAISED + divisor // 2
        and bias.shape == factor.shape
        and bias.ndim == 1
        and np.abs(bias).max() <= GREATEST_BIAS
        and np.abs(factor).max() < 1 << 27
    )
    return RowLine(bias, factor, shift, zero) if fits else None


def append_normalization(
    step: IntegerSteps,
    x: tuple[str, np.dtype],
    mean: Arithmetic | None,
    operands: Mapping[str, str],
    result: tuple[str, np.dtype],
) -> None:
    """Append the operators from ``x`` to ``result``, names with types. With a ``mean`` the mean is
    subtracted. ``operands`` are the names of `NORMALIZATION_CONSTANTS`, and of ``lift`` and
    ``zero`` without a mean.
    """
    integers = step.bytes_from(*x)
    rest = ""
    if mean is not None:
        total = step.reduced("ReduceSum", integers)
        centre = step("Div", step("Add", step("Mul", total, mean.mean), 1 << 21), 1 << 22)
        rest = step("Sub", total, step("Mul", centre, mean.elements))
        w = step("Sub", integers, centre)
    else:
        w = step("Sub", integers, operands["zero"])
    total = step.reduced("ReduceSum", step("Mul", w, w))
    total = step("Mul", total, operands["lift"] if mean is None else mean.lift)
    if mean is not None:
        square = step("Mul", step("Mul", rest, rest), mean.square)
        total = step("Sub", total, step("Div", square, 1 << mean.square_shift))
    total = step("Max", step("Add", total, operands["epsilon"]), LEAST)
    roots = []
    for _ in range(3):
        upper = step("Div", total, 1 << 23)
        roots.append(step("Gather", ROOTS, upper))
        total = step("Mul", total, step("Gather", POWERS_OF_FOUR, upper))
    r = _reciprocal_root(step, total)
    product = step("Mul", w, r)
    if mean is not None:
        part = step("Mul", step("Add", rest, mean.elements), mean.rest)
        part = step("Div", step("Add", part, 1 << 15), 1 << 16)
        part = step("Div", step("Mul", part, r), 1 << 14)
        product = step("Add", product, step("Sub", r, part))
    product = step("Mul", product, step("Mul", step("Mul", roots[0], roots[1]), roots[2]))
    raised = step("Div", step("Add", product, 1 << 30), 1 << DROPPED)
    h = step("Sub", raised, 1 << 30 - DROPPED)
    step.rounded(step("Add", h, operands["bias"]), operands, result)


def _reciprocal_root(step: IntegerSteps, total: str) -> str:
    u = step("Div", total, 1 << 15)
    guess = step("Gather", RECIPROCAL_ROOTS, step("Div", total, 1 << 23))
    r = step("Mul", guess, 1 << 7)
    square = step("Div", step("Mul", r, r), 1 << 12)
    near = step("Div", step("Mul", square, u), 1 << 17)
    r = step("Div", step("Mul", r, step("Sub", 3 << 13, near)), 1 << 14)
    square = step("Div", step("Add", step("Mul", r, r), 1 << 11), 1 << 12)
    near = step("Div", step("Add", step("Mul", square, u), 1 << 14), 1 << 15)
    product = step("Mul", r, step("Sub", 3 << 15, near))
    return step("Div", step("Add", product, 1 << 13), 1 << 14)
