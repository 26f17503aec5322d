"""RESIZE_NEAREST_NEIGHBOR and RESIZE_BILINEAR."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import (
    BILINEAR_BITS,
    DOMAIN,
    RESIZE_BILINEAR,
)
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .file import Array, FileTensor, TfliteOperator
from .precision import require_bytes

# Rows or columns of a result.
_MOST_PIXELS = 1 << 16


def resize_nearest(operator: TfliteOperator, to: Conversion) -> None:
    """RESIZE_NEAREST_NEIGHBOR: the kernel's places, by a Gather along rows and columns, or a Resize
    where that is the same."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = _operands(operator, to)
    source, stored = to.name(number, True), to.put(result, True)
    factors = [y.shape[axis] / x.shape[axis] for axis in (1, 2)]
    places = [
        nearest(x.shape[axis], y.shape[axis], operator.option("alignCorners"), half)
        for axis in (1, 2)
        for half in (operator.option("halfPixelCenters"),)
    ]
    whole = [
        factor.is_integer()
        and np.array_equal(found, np.arange(y.shape[axis]) // max(int(factor), 1))
        for factor, found, axis in zip(factors, places, (1, 2), strict=True)
    ]
    if all(whole):
        scales = to.value(f"{operator.name}_scales", [1, 1, *factors], np.float32)
        to.add(
            "Resize",
            (source, "", scales),
            (stored,),
            operator.name,
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        return
    rows = to.inner(
        f"{operator.name}_rows", x.dtype, (x.shape[0], x.shape[3], y.shape[1], x.shape[2])
    )
    name = operator.name
    to.add("Gather", (source, to.value(f"{name}_y", places[0])), (rows,), f"{name}_rows", axis=2)
    to.add("Gather", (rows, to.value(f"{name}_x", places[1])), (stored,), name, axis=3)


def _operands(operator: TfliteOperator, to: Conversion) -> tuple[FileTensor, FileTensor]:
    """The image and the result, of which only rows and columns differ."""
    x, y = to.tensor(operator.inputs[0]), to.tensor(operator.outputs[0])
    if len(x.shape) != 4 or (x.shape[0], x.shape[3]) != (y.shape[0], y.shape[3]):
        raise ModelError(f"{operator.name} resizes {x.shape} to {y.shape}")
    if max(y.shape[1:3]) > _MOST_PIXELS:
        raise ModelError(f"{operator.name} has more than {_MOST_PIXELS:,} rows or columns")
    return x, y


def nearest(size: int, results: int, align_corners: bool, half_pixels: bool) -> np.ndarray:
    """The place in an axis of ``size`` that each of ``results`` is copied from, in float32 as the
    kernel computes it."""
    scale = np.float32(size) / np.float32(results)
    if align_corners and results > 1:
        scale = np.float32(size - 1) / np.float32(results - 1)
    offset = np.float32(0.5 if half_pixels else 0)
    values = (np.arange(results).astype(np.float32) + offset) * scale
    found = np.floor(values + np.float32(0.5)) if align_corners else np.floor(values)
    return np.clip(found, 0, size - 1).astype(np.int64)


def resize_bilinear(operator: TfliteOperator, to: Conversion) -> None:
    """RESIZE_BILINEAR, with weights of 10 bits."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = _operands(operator, to)
    require_bytes(operator, x, y)
    if not x.is_quantized_as(y):
        raise ModelError(f"{operator.name} changes the scale, which TensorFlow Lite does not")
    if x.dtype != np.int8:
        raise ModelError(f"{operator.name}: TensorFlow Lite interpolates uint8 in float32")
    corners, half = (
        operator.option("alignCorners", False),
        operator.option("halfPixelCenters", False),
    )
    rows, columns = (_weights(x.shape[axis], y.shape[axis], corners, half) for axis in (1, 2))
    to.add(
        RESIZE_BILINEAR,
        (to.name(number, True),),
        (to.put(result, True),),
        operator.name,
        DOMAIN,
        rows=rows[0].tolist(),
        rows_weights=rows[1].tolist(),
        columns=columns[0].tolist(),
        columns_weights=columns[1].tolist(),
    )


def _weights(
    size: int, results: int, align_corners: bool, half_pixels: bool
) -> tuple[Array, Array]:
    """For each of ``results`` the first of the two places in an axis of ``size`` between which it
    lies, and the weight of the second."""
    scale = ((size << BILINEAR_BITS) + results // 2) // results
    if align_corners and results > 1:
        scale = ((size - 1 << BILINEAR_BITS) + (results - 1) // 2) // (results - 1)
    places = np.arange(results) * scale
    if half_pixels:
        places = np.maximum(places + scale // 2 - (1 << BILINEAR_BITS - 1), 0)
    return places >> BILINEAR_BITS, places & (1 << BILINEAR_BITS) - 1
