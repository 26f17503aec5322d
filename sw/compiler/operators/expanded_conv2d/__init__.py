"""A depthwise convolution fused with the 1×1 convolution before it."""

from .operator import ExpandedConv2d, expanded_conv2d, is_possible, runs_by_channel_tiles
from .sizes import ExpandedConv2dKnobs

__all__ = [
    "ExpandedConv2d",
    "ExpandedConv2dKnobs",
    "expanded_conv2d",
    "is_possible",
    "runs_by_channel_tiles",
]
