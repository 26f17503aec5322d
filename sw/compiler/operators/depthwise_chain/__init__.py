"""A depthwise convolution fused with the 1×1 convolutions before and after it."""

from .operator import DepthwiseChain, depthwise_chain, is_possible
from .sizes import DepthwiseChainKnobs

__all__ = ["DepthwiseChain", "DepthwiseChainKnobs", "depthwise_chain", "is_possible"]
