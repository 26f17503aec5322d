"""Two-dimensional convolution with bias and requantization."""

from __future__ import annotations

from .operator import Conv2d, conv2d
from .sizes import Conv2dKnobs

__all__ = ["Conv2d", "Conv2dKnobs", "conv2d"]
