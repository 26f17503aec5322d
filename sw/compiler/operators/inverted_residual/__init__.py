"""A 1×1 convolution in the same tile as the depthwise one before it and the 1×1 one before that."""

from .operator import InvertedResidual, inverted_residual, is_possible
from .sizes import InvertedResidualKnobs

__all__ = ["InvertedResidual", "InvertedResidualKnobs", "inverted_residual", "is_possible"]
