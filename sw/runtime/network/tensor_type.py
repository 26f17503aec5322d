"""Element type and shape of a network's tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor; the shape is None where it is known only at run time."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) if self.shape is not None else '[?]'}"
