"""A depthwise convolution fused with the 1×1 convolutions before and after it.

The first, an expansion, computes the channels that the depthwise convolution filters; the second, a
projection, reads all filtered channels. With both it is an inverted residual; either may be absent.

The layer runs by channel tiles. An expanded channel tile is requantized and forwarded to the input
scratchpad, where the depthwise convolution reads it, and a filtered channel tile likewise to the
projection, which adds its contribution to the sums of the output tile: only image and result are in
memory. Without an expansion, the depthwise convolution reads channel tiles of the image. The halo
of output tiles is expanded twice, unless tiles carry it. Another tensor may be added to the results
of a projection, as in `conv2d`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale, Step
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .cost import candidates, estimated, with_each_kind_in_front
from .sizes import DepthwiseChainKnobs, DepthwiseChainSizes
from .stages import scheduled


@dataclass(frozen=True)
class DepthwiseChain(DepthwiseChainSizes):
    """A `DepthwiseChainSizes` as an operator."""

    def without_parameters(self) -> DepthwiseChain:
        """The same workload with placeholders for constants that are arguments."""
        first, last = self.expansion, self.projection
        return replace(
            self,
            expansion=None if first is None else first.without_parameters(),
            depthwise=self.depthwise.without_parameters(),
            projection=None if last is None else last.without_parameters(),
        )

    def followed_by(self, step: Step) -> DepthwiseChain | None:
        """This workload with a ``step`` at its end; None if that is impossible."""
        if self.projection is None:
            depthwise = self.depthwise.followed_by(step)
            return None if depthwise is None else replace(self, depthwise=depthwise)
        projection = self.projection.followed_by(step)
        return None if projection is None else replace(self, projection=projection)

    def scheduled(self, env: Environment, knobs: DepthwiseChainKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[DepthwiseChainKnobs]:
        def walked(knobs: DepthwiseChainKnobs, limit: float) -> Estimate:
            return estimated(self, config, knobs, limit)

        walks, found = with_each_kind_in_front(candidates(self, config))
        return best_of(found, walked, walks=walks)


def is_possible(workload: DepthwiseChain, config: Config) -> bool:
    """Whether the machine can run the fused operator: it forwards results to the input scratchpad,
    GEMM and ALU overlap, REQUANTIZE requantizes all results, and expansion and projection are plain
    1×1 convolutions whose sizes match.
    """
    first, last, channels = workload.expansion, workload.projection, workload.depthwise.groups
    b = workload.depthwise.group
    scaled = isinstance(b.requantize, PerChannelScale) and b.addition is None and b.pooling is None
    padded = max(b.pads) < 1 << isa.PAD_WIDTH  # by one instruction
    each = (b.inputs, b.outputs) == (1, 1) and not b.row_sums
    if not (config.forward and config.overlap and scaled and padded and each):
        return False
    image, filtered = (b.height, b.width), (b.output_height, b.output_width)
    if first is not None and (not _is_plain(first, b.batch, image) or first.outputs != channels):
        return False
    if last is not None and (not _is_plain(last, b.batch, filtered) or last.inputs != channels):
        return False
    return first is None or first.addition is None


def _is_plain(c: Conv2d, batch: int, image: tuple[int, int]) -> bool:
    """Whether ``c`` is a 1×1 convolution of an image of this size that REQUANTIZE requantizes."""
    plain = c.kernel == (1, 1) and c.strides == (1, 1) and not any(c.pads) and c.pooling is None
    same = (c.batch, c.height, c.width) == (batch, *image)
    return plain and same and isinstance(c.requantize, PerChannelScale) and not c.row_sums


def depthwise_chain(
    workload: DepthwiseChain,
    env: Environment,
    knobs: DepthwiseChainKnobs | None = None,
    name: str = "depthwise_chain",
) -> Function:
    """Build a function of input, the other operand of an addition if there is one, weights and
    parameters of each convolution in their order, the arguments of the addition, and output.
    Layouts are as in `conv2d` and `grouped_conv2d`, except that the weights of expansion and
    projection are (outputs, inputs, terms, BLOCK_OUT, BLOCK_IN). Default knobs and exceptions: see
    `tuned`.
    """
    return tuned(workload, env, knobs, name)
