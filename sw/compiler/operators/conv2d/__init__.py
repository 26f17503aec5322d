"""Two-dimensional convolution with bias and requantization."""

from __future__ import annotations

from .operator import Conv2d, conv2d

__all__ = ["Conv2d", "conv2d"]
