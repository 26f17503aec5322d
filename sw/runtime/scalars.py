"""Packs arrays of scalars into bytes of memory, where two 4-bit scalars share a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def pack(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Pack ``array`` in the machine's layout of ``dtype``: uint8 (bytes,)."""
    data = np.ascontiguousarray(array).reshape(-1)
    if dtype in ("int4", "uint4"):
        low, high = (data[start::2].view(np.uint8) & 15 for start in (0, 1))
        return (low | high << 4).astype(np.uint8)
    return data.view(np.uint8)


def unpack(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Unpack ``data`` to a one-dimensional array of ``dtype``."""
    if dtype in ("int4", "uint4"):
        nibbles = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
        return nibbles if dtype == "uint4" else ((nibbles.astype(np.int8) + 8) & 15) - 8
    return data.view(dtype)
