"""An inverted residual in one tile: 1×1 expansion, depthwise convolution, 1×1 projection."""

from .operator import InvertedResidual, inverted_residual, is_possible
from .sizes import InvertedResidualKnobs

__all__ = ["InvertedResidual", "InvertedResidualKnobs", "inverted_residual", "is_possible"]
