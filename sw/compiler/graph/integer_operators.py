"""Integer operators that ONNX does not have, and the operators of ONNX with the same results.

A QLinearConv whose attribute `ROUNDING` is set has the results of TensorFlow Lite's reference
kernels:

- ``twice`` multiplies a sum by ``multipliers`` · 2^(``shifts`` - 31) in two steps
  (MultiplyByQuantizedMultiplier): the upper half of the doubled product, rounded to nearest, then a
  right shift that rounds half away from zero.
- ``once`` multiplies likewise and rounds once, half away from zero.
- ``quotient`` divides a sum by ``count`` and rounds half away from zero, as averages do.
- ``steps`` is any monotone function: ``lowest``, and 1 more from each of the sums ``begins`` on.

A QLinearMatMul has the first two.

Operators of `DOMAIN`:

- ``Lookup`` (x, table, zero_point): the result for each of 256 values of ``x``, from the least one.
  ``table`` is (256,), or (channels, 256) along ``axis``, -1 for the last.
- ``LookupPair`` (a, b, table, zero_point): (256, 256) results for the values of both operands.
- ``Softmax`` (x) over the last axis, of 8-bit integers at ``scale``, in fixed point.
- ``ResizeBilinear`` (x) of images, with weights of `BILINEAR_BITS`.
- ``Quantize`` (x, scale, zero_point), which rounds half away from zero.
- ``RowSoftmax`` (x, table, mask) over the last axis, of `integer_rows`; the mask may be absent.
  With the attribute ``symmetric`` the zero point of the result is 0.
- ``RowLayerNorm`` and ``RowRMSNorm`` (x, `NORMALIZATION_OPERANDS`) over the last axis, of
  `integer_rows`.
- ``RowRotation`` (x, `ROTATION_OPERANDS`), of `integer_rows`.
- ``Requantize`` (sums, zero_point) with a rounding ``twice`` or ``once``, and channels along
  ``axis``.

The zero point belongs to the result. ONNX Runtime runs all of these as the primitive operators of
`expanded`. Sums are exact in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from amaranth_vta.sw.compiler.operators.normalization import Arithmetic
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_rows import (
    NORMALIZATION_CONSTANTS,
    ROTATION_OPERANDS,
    IntegerSteps,
    append_normalization,
    append_rotation,
)
from .integer_rows import append_softmax as append_softmax_of_rows
from .integer_softmax import append_softmax, exponentials
from .nodes import Node

Array = npt.NDArray[Any]

ROUNDING = "rounding"
TWICE, ONCE, QUOTIENT, STEPS = "twice", "once", "quotient", "steps"
MULTIPLIER_ATTRIBUTES = ("multipliers", "shifts")
_ROUNDING_ATTRIBUTES = (*MULTIPLIER_ATTRIBUTES, "count", "lowest", "begins")
# Domain of the operators that ONNX does not have.
DOMAIN = "amaranth_vta"
LOOKUP, LOOKUP_PAIR, SOFTMAX = "Lookup", "LookupPair", "Softmax"
# Part of the names of nodes and constants that replace an operator.
REPLACED = "/rounding/"
# Fraction bits of the weights of a ResizeBilinear.
BILINEAR_BITS = 10
RESIZE_BILINEAR, QUANTIZE, REQUANTIZE = "ResizeBilinear", "Quantize", "Requantize"
ROW_SOFTMAX, LAYER_NORMALIZATION, RMS_NORMALIZATION = "RowSoftmax", "RowLayerNorm", "RowRMSNorm"
ROW_ROTATION, SYMMETRIC = "RowRotation", "symmetric"
# The operands behind x of both normalizations.
NORMALIZATION_OPERANDS = {
    LAYER_NORMALIZATION: NORMALIZATION_CONSTANTS,
    RMS_NORMALIZATION: (*NORMALIZATION_CONSTANTS, "lift", "zero"),
}


@dataclass
class _Builder:
    """The nodes and constants that replace nodes with a rounding."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def constant(self, node: Node, value: Any, dtype: type = np.int64) -> str:
        name = f"{node.name}{REPLACED}{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def apply(self, node: Node, operator: str, *inputs: str, result: str = "", **given: Any) -> str:
        """Append an ``operator`` and return the name of its result."""
        name = f"{node.name}{REPLACED}{operator}{len(self.nodes)}"
        result = result or name
        self.nodes.append(Node(operator, name, inputs, (result,), given))
        return result

    def cast(self, node: Node, name: str, dtype: npt.DTypeLike, result: str = "") -> str:
        """Append a Cast and return the name of its result."""
        wanted = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        return self.apply(node, "Cast", name, result=result, to=wanted)

    def rounded_quotient(self, node: Node, dividend: str, divisor: Array | np.int64) -> str:
        """``dividend`` divided by positive integers, rounded half away from zero: ONNX's Div of
        integers truncates."""
        half = self.constant(node, divisor // 2)
        zero = self.constant(node, 0)
        negative = self.apply(node, "Less", dividend, zero)
        minus = self.constant(node, -(divisor // 2))
        moved = self.apply(node, "Add", dividend, self.apply(node, "Where", negative, minus, half))
        return self.apply(node, "Div", moved, self.constant(node, divisor))

    def steps(self, node: Node, sums: str) -> str:
        """The number of ``begins`` that ``sums`` reach, plus ``lowest``."""
        last = self.constant(node, [-1])
        wide = self.apply(node, "Unsqueeze", sums, last)
        reached = self.apply(
            node, "GreaterOrEqual", wide, self.constant(node, node.attributes["begins"])
        )
        whole = self.cast(node, reached, np.int64)
        count = self.apply(node, "ReduceSum", whole, last, keepdims=0)
        return self.apply(node, "Add", count, self.constant(node, node.attributes["lowest"]))

    def scaled(self, node: Node, sums: str, along: tuple[int, ...] = ()) -> str:
        """``sums``, int64, times the multipliers of ``node``, whose channels are ``along`` an axis
        of the sums."""
        multipliers, shifts = (item.reshape(along or item.shape) for item in multipliers_of(node))
        if node.attributes[ROUNDING] == TWICE:
            return self._scaled_twice(node, sums, multipliers, shifts)
        product = self.apply(node, "Mul", sums, self.constant(node, multipliers))
        return self.rounded_quotient(node, product, np.int64(1) << (31 - shifts))

    def _scaled_twice(self, node: Node, sums: str, multipliers: Array, shifts: Array) -> str:
        """``sums``, int64, times multipliers · 2^(shifts - 31), rounded in two steps."""
        if (shifts > 0).any():
            left = self.constant(node, np.int64(1) << np.maximum(shifts, 0))
            sums = self.apply(node, "Mul", sums, left)
        product = self.apply(node, "Mul", sums, self.constant(node, multipliers))
        negative = self.apply(node, "Less", product, self.constant(node, 0))
        nudges = (self.constant(node, value) for value in (1 - (1 << 30), 1 << 30))
        nudged = self.apply(node, "Add", product, self.apply(node, "Where", negative, *nudges))
        upper = self.apply(node, "Div", nudged, self.constant(node, 1 << 31))
        if not (shifts < 0).any():
            return upper
        return self.rounded_quotient(node, upper, np.int64(1) << np.maximum(-shifts, 0))

    def saturated(self, node: Node, steps: str, zero_point: str, dtype: np.dtype) -> None:
        """The last nodes: add the zero point to ``steps``, saturate, and store the result."""
        zero = self.cast(node, zero_point, np.int64)
        total = self.apply(node, "Add", steps, zero)
        limits = np.iinfo(dtype)
        bounds = (self.constant(node, value) for value in (limits.min, limits.max))
        clipped = self.apply(node, "Clip", total, *bounds)
        self.cast(node, clipped, dtype, node.outputs[0])

    def steps_of(self, node: Node) -> IntegerSteps:
        """Appends operators on int32."""
        return IntegerSteps(partial(self.apply, node), partial(self.constant, node))

    def index(self, node: Node, name: str, types: Mapping[str, TensorType]) -> str:
        """int64: the numbers of 8-bit values, from the least one."""
        wide = self.cast(node, name, np.int64)
        signed = types[name].dtype == np.int8
        return self.apply(node, "Add", wide, self.constant(node, 128)) if signed else wide


def expanded(
    nodes: Iterable[Node], types: Mapping[str, TensorType]
) -> tuple[list[Node], dict[str, Array]]:
    """Replace nodes that have a `ROUNDING`, and `Lookup`, by primitive integer operators of ONNX.
    Returns the nodes and the constants that they add."""
    made = _Builder()
    for node in nodes:
        expand = _expansion(node)
        if expand is None:
            made.nodes.append(node)
        else:
            expand(made, node, types)
    return made.nodes, made.constants


def _expansion(node: Node) -> Callable[[_Builder, Node, Mapping[str, TensorType]], None] | None:
    if node.domain == DOMAIN:
        return _EXPANSIONS[node.operator]
    return _EXPANSIONS[node.operator] if ROUNDING in node.attributes else None


def _convolution(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    kept = {
        name: value
        for name, value in node.attributes.items()
        if name not in (ROUNDING, *_ROUNDING_ATTRIBUTES)
    }
    x, _, x_zero, weights, _, w_zero, _, y_zero = node.inputs[:8]
    sums = made.apply(node, "ConvInteger", x, weights, x_zero, w_zero, **kept)
    rank = len(types[node.outputs[0]].shape or (0, 0, 0, 0))
    along = (-1, *[1] * (rank - 2))
    if node.input(8):
        shape = made.constant(node, along)
        sums = made.apply(node, "Add", sums, made.apply(node, "Reshape", node.input(8), shape))
    sums = made.cast(node, sums, np.int64)
    rounding = node.attributes[ROUNDING]
    if rounding == QUOTIENT:
        steps = made.rounded_quotient(node, sums, np.int64(node.attributes["count"]))
    elif rounding == STEPS:
        steps = made.steps(node, sums)
    else:
        steps = made.scaled(node, sums, along)
    made.saturated(node, steps, y_zero, types[node.outputs[0]].dtype)


def _matrix_product(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    a, _, a_zero, b, _, b_zero, _, y_zero = node.inputs
    sums = made.apply(node, "MatMulInteger", a, b, a_zero, b_zero)
    sums = made.cast(node, sums, np.int64)
    made.saturated(node, made.scaled(node, sums), y_zero, types[node.outputs[0]].dtype)


def _requantize(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    sums, zero = node.inputs
    rank = len(types[node.outputs[0]].shape or ())
    along = (-1, *[1] * (rank - 1 - node.attributes["axis"]))
    wide = made.cast(node, sums, np.int64)
    steps = made.scaled(node, wide, along)
    made.saturated(node, steps, zero, types[node.outputs[0]].dtype)


def _resize_bilinear(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    """``rows`` and ``columns`` are the first of two pixels, and the weights of the second out of
    2^`BILINEAR_BITS`."""
    wide = made.cast(node, node.inputs[0], np.int64)
    for axis, what in ((2, "rows"), (3, "columns")):
        size = (types[node.inputs[0]].shape or ())[axis]
        begins, weights = (
            np.array(node.attributes[name], np.int64) for name in (what, f"{what}_weights")
        )
        along = (-1, *[1] * (3 - axis))
        parts = []
        for places, factors in (
            (begins, (1 << BILINEAR_BITS) - weights),
            (np.minimum(begins + 1, size - 1), weights),
        ):
            part = made.apply(node, "Gather", wide, made.constant(node, places), axis=axis)
            factor = made.constant(node, factors.reshape(along))
            parts.append(made.apply(node, "Mul", part, factor))
        wide = made.apply(node, "Add", *parts)
    steps = made.rounded_quotient(node, wide, np.int64(1 << 2 * BILINEAR_BITS))
    dtype = types[node.outputs[0]].dtype
    made.cast(node, steps, dtype, node.outputs[0])


def _quantize(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    """Float32 values divided by the scale, rounded half away from zero."""
    x, scale, zero = node.inputs
    steps = made.apply(node, "Div", x, scale)
    magnitude = made.apply(node, "Abs", steps)
    whole = made.apply(node, "Floor", magnitude)
    rest = made.apply(node, "Sub", magnitude, whole)
    half = made.constant(node, 0.5, np.float32)
    reached = made.apply(node, "GreaterOrEqual", rest, half)
    up = made.cast(node, reached, np.float32)
    rounded = made.apply(node, "Add", whole, up)
    signed = made.apply(node, "Mul", rounded, made.apply(node, "Sign", steps))
    limits = (made.constant(node, sign * 1024, np.float32) for sign in (-1, 1))
    near = made.apply(node, "Clip", signed, *limits)
    integers = made.cast(node, near, np.int64)
    made.saturated(node, integers, zero, types[node.outputs[0]].dtype)


def _lookup(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    x, table, _ = node.inputs
    shape = types[table].shape or (256,)
    index = made.index(node, x, types)
    if len(shape) > 1:
        along = np.arange(shape[0]).reshape(-1, *[1] * (-1 - node.attributes["axis"]))
        index = made.apply(node, "Add", index, made.constant(node, 256 * along))
        table = made.apply(node, "Reshape", table, made.constant(node, [-1]))
    made.apply(node, "Gather", table, index, result=node.outputs[0])


def _lookup_pair(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    a, b, table, _ = node.inputs
    rows, columns = (made.index(node, name, types) for name in (a, b))
    rows = made.apply(node, "Mul", rows, made.constant(node, 256))
    flat = made.apply(node, "Reshape", table, made.constant(node, [-1]))
    index = made.apply(node, "Add", rows, columns)
    made.apply(node, "Gather", flat, index, result=node.outputs[0])


def _softmax(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    (x,) = node.inputs
    table = exponentials(node.attributes["scale"], node.attributes["beta"])
    wide = made.cast(node, x, np.int64)
    greatest = made.apply(node, "ReduceMax", wide, made.constant(node, [-1]))
    differences = made.apply(node, "Sub", greatest, wide)
    steps = append_softmax(
        partial(made.apply, node), partial(made.constant, node), differences, table
    )
    dtype = types[node.outputs[0]].dtype
    made.saturated(node, steps, made.constant(node, np.iinfo(dtype).min), dtype)


def _row_softmax(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    result = node.outputs[0]
    operands = node.input(0), node.input(1), node.input(2)
    symmetric = bool(node.attributes[SYMMETRIC])
    append_softmax_of_rows(made.steps_of(node), operands, symmetric, (result, types[result].dtype))


def _row_normalization(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    x, *others = node.inputs
    result = node.outputs[0]
    mean = None
    if node.operator == LAYER_NORMALIZATION:
        mean = Arithmetic.of_mean((types[x].shape or (0,))[-1])
    operands = dict(zip(NORMALIZATION_OPERANDS[node.operator], others, strict=True))
    ends = ((name, types[name].dtype) for name in (x, result))
    append_normalization(made.steps_of(node), next(ends), mean, operands, next(ends))


def _row_rotation(made: _Builder, node: Node, types: Mapping[str, TensorType]) -> None:
    x, *others = node.inputs
    result = node.outputs[0]
    operands = dict(zip(ROTATION_OPERANDS, others, strict=True))
    append_rotation(made.steps_of(node), x, operands, (result, types[result].dtype))


def multipliers_of(node: Node) -> tuple[Array, Array]:
    """``multipliers`` and ``shifts`` of a node, int64."""
    return (
        np.array(node.attributes["multipliers"], np.int64),
        np.array(node.attributes["shifts"], np.int64),
    )


_EXPANSIONS = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _matrix_product,
    LOOKUP: _lookup,
    LOOKUP_PAIR: _lookup_pair,
    SOFTMAX: _softmax,
    ROW_SOFTMAX: _row_softmax,
    LAYER_NORMALIZATION: _row_normalization,
    RMS_NORMALIZATION: _row_normalization,
    ROW_ROTATION: _row_rotation,
    RESIZE_BILINEAR: _resize_bilinear,
    QUANTIZE: _quantize,
    REQUANTIZE: _requantize,
}
