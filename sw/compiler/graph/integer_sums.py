"""Arithmetic of the sums of an integer product, per output channel, as ONNX Runtime defines it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .network import Array

Integers = npt.NDArray[np.int64]


def is_of_channels(bias: Array, channels: int) -> bool:
    """Whether a bias is one number, or one per channel along its last axis. The bias of a matrix
    product may also differ per row."""
    return bias.size == 1 or bias.shape[-1:] == (channels,) == (bias.size,)


def along_channels(of_channels: Array, values: Array) -> Array:
    """Reshape one number, or one per channel, so that it broadcasts over ``values``, whose first
    axis is the channels."""
    if of_channels.size == 1:
        return of_channels.reshape(())
    return of_channels.reshape(-1, *[1] * (values.ndim - 1))


def scale_of_results(x_scale: Array, w_scale: Array, y_scale: Array) -> npt.NDArray[np.float32]:
    """The factor from sums to results, float32 (1,) or (channels,), rounded after each operation
    as in ONNX Runtime."""
    return ((x_scale * w_scale).astype(np.float32) / y_scale).astype(np.float32).reshape(-1)


def range_of_sums(weights: Array, low: int, high: int, bias: Integers) -> tuple[Integers, Integers]:
    """The least and the greatest sum per channel, ``bias`` included, for inputs from ``low`` to
    ``high``. ``weights`` are (channels, terms); weights and inputs are less their zero points."""
    total, magnitude = (part.sum(axis=1, dtype=np.int64) for part in (weights, np.abs(weights)))
    ups, downs = (total + magnitude) // 2, (total - magnitude) // 2
    return ups * low + downs * high + bias, ups * high + downs * low + bias
