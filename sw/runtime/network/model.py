"""What is said of a network's tensors, and of a network that cannot be run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


class ModelError(ValueError):
    """A model that is damaged or that cannot be run; the message says what is wrong and where."""


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor; the shape is None where only the run will tell."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) if self.shape is not None else '[?]'}"
