"""What requantization means, in NumPy, and how its parameters are laid out for the machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def requantized(value: Array, bias: Array, scale: Array, bounds: Array) -> Array:
    """clip(rint(float32(float32(value + bias) · scale)) + zero_point, low, high), int32.

    All are int32 and broadcast. The sum wraps; both roundings to float32 and that to a whole
    number are half to even. ``scale`` and ``bounds`` are as `requantization_parameters` has them.
    Equal to onnxruntime's QLinearConv and QLinearMatMul for scale = s_x · s_w / s_y in float32.
    """
    total = (value + bias).astype(np.int32).astype(np.float32)
    factor = (scale & 0x7FFFFFFF).astype(np.int32).view(np.float32)
    with np.errstate(over="ignore", under="ignore"):  # to infinity, which is clipped; and to 0
        whole = np.rint(total * factor).astype(np.float64)
    zero_point, low, high = (_signed_byte(bounds, number) for number in range(3))
    return np.clip(whole + zero_point, low, high).astype(np.int32)


def requantization_parameters(
    bias: npt.ArrayLike, scale: npt.ArrayLike, zero_point: int, low: int, high: int
) -> Array:
    """int32 (channels, 3): for each channel bias, the bits of its scale, and the bounds.

    ``bias`` is int32 (channels,); ``scale`` float32 (channels,) or one for all, positive and not
    subnormal; ``zero_point``, ``low`` and ``high`` are int8, put into the bounds from bit 0 up.
    Raises `ValueError` for others.
    """
    biases = np.asarray(bias)
    scales = np.broadcast_to(np.asarray(scale, np.float32), biases.shape)
    if not (np.isfinite(scales) & (scales >= np.finfo(np.float32).tiny)).all():
        raise ValueError("a scale is not a positive normal float32")
    if not -128 <= low <= high <= 127 or not -128 <= zero_point <= 127:
        raise ValueError(
            f"zero point {zero_point} and bounds {low} to {high} are not int8, in this order"
        )
    bounds = zero_point % 256 | low % 256 << 8 | high % 256 << 16
    bits = np.ascontiguousarray(scales).view(np.int32)
    return np.stack((biases.astype(np.int32), bits, np.full_like(bits, bounds)), axis=-1)


def _signed_byte(bits: Array, number: int) -> Array:
    return (((bits >> 8 * number) & 255 ^ 128) - 128).astype(np.float64)
