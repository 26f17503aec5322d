"""A depthwise convolution fused with the 1×1 convolution before it.

The 1×1 convolution expands an image to many channels, and the depthwise convolution reads each
channel tile separately. A channel tile is expanded, requantized and forwarded to the input
scratchpad, where the depthwise convolution reads it: the expanded image never goes to memory. The
halo of output tiles is expanded twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale, Step
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .cost import candidates, estimated
from .sizes import ExpandedConv2dKnobs, ExpandedSizes
from .stages import scheduled


@dataclass(frozen=True)
class ExpandedConv2d(ExpandedSizes):
    """An `ExpandedSizes` as an operator."""

    def without_parameters(self) -> ExpandedConv2d:
        """The same workload with placeholders for constants that are arguments."""
        expansion, depthwise = self.expansion, self.depthwise
        return replace(
            self,
            expansion=expansion.without_parameters(),
            depthwise=depthwise.without_parameters(),
        )

    def followed_by(self, step: Step) -> ExpandedConv2d | None:
        """This workload with a ``step`` at its end; None if that is impossible."""
        depthwise = self.depthwise.followed_by(step)
        return None if depthwise is None else replace(self, depthwise=depthwise)

    def scheduled(self, env: Environment, knobs: ExpandedConv2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[ExpandedConv2dKnobs]:
        def walked(knobs: ExpandedConv2dKnobs, limit: float) -> Estimate:
            return estimated(self, config, knobs, limit)

        return best_of(candidates(self, config), walked)


def is_possible(workload: ExpandedConv2d, config: Config) -> bool:
    """Whether the machine can run the fused operator: it can run the depthwise convolution on
    forwarded results, and REQUANTIZE requantizes the expansion.
    """
    a, b = workload.expansion, workload.depthwise.group
    plain = a.kernel == (1, 1) and a.strides == (1, 1) and not any(a.pads)
    alone = a.addition is None and a.pooling is None and not a.row_sums
    same = (a.batch, a.outputs, a.height, a.width) == (
        b.batch,
        workload.depthwise.groups,
        b.height,
        b.width,
    )
    scaled = isinstance(a.requantize, PerChannelScale)
    return plain and alone and same and scaled and runs_by_channel_tiles(workload.depthwise, config)


def runs_by_channel_tiles(depthwise: GroupedConv2d, config: Config) -> bool:
    """Whether a depthwise convolution can be fused with the convolutions before or after it: the
    machine forwards results to the input scratchpad, GEMM and ALU overlap, and REQUANTIZE
    requantizes the results.
    """
    b = depthwise.group
    scaled = isinstance(b.requantize, PerChannelScale) and b.addition is None and b.pooling is None
    padded = max(b.pads) < 1 << isa.PAD_WIDTH  # by one instruction
    each = (b.inputs, b.outputs) == (1, 1) and not b.row_sums
    return bool(config.forward and config.overlap) and scaled and padded and each


def expanded_conv2d(
    workload: ExpandedConv2d,
    env: Environment,
    knobs: ExpandedConv2dKnobs | None = None,
    name: str = "expanded_conv2d",
) -> Function:
    """Build a function of input, weights and parameters of the expansion, weights and parameters of
    the depthwise convolution, and output. Layouts are as in `conv2d` and `grouped_conv2d`, except
    that the weights of the expansion are (outputs, inputs, terms, BLOCK_OUT, BLOCK_IN). Default
    knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
