"""Element type and shape of a network's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor; the shape is None where it is known only at run time.

    A sequence of tensors, a list of arrays, has the dtype object, no shape, and ``member``, the
    element type of its tensors.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    member: np.dtype[Any] | None = None

    @classmethod
    def sequence(cls, member: np.dtype[Any]) -> TensorType:
        return cls(np.dtype(object), None, member)

    def __str__(self) -> str:
        if self.member is not None:
            return f"sequence of {self.member}"
        return f"{self.dtype}{list(self.shape) if self.shape is not None else '[?]'}"
