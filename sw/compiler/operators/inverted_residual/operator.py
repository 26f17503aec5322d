"""An inverted residual: expansion, depthwise convolution and projection in one layer.

Expansion and depthwise convolution run as in `expanded_conv2d`. Filtered channel tiles are again
forwarded to the input scratchpad, where the projection reads them and adds their contribution to
the tile's sums. Only the image and the result are in memory. Tiles may carry halo rows, so that
each row is expanded once. An addition of the image, or of another tensor, may be fused, as in
`conv2d`. Without an expansion, the depthwise convolution reads channel tiles of the image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale, Step
from amaranth_vta.sw.compiler.operators.expanded_conv2d import (
    ExpandedConv2d,
    runs_by_channel_tiles,
)
from amaranth_vta.sw.compiler.operators.expanded_conv2d import is_possible as is_expansion_possible
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .cost import candidates, estimated, with_each_kind_in_front
from .sizes import InvertedResidualKnobs, InvertedResidualSizes
from .stages import scheduled


@dataclass(frozen=True)
class InvertedResidual(InvertedResidualSizes):
    """An `InvertedResidualSizes` as an operator."""

    expanded: ExpandedConv2d | GroupedConv2d

    def without_parameters(self) -> InvertedResidual:
        """The same workload with placeholders for constants that are arguments."""
        return replace(
            self,
            expanded=self.expanded.without_parameters(),
            projection=self.projection.without_parameters(),
        )

    def followed_by(self, step: Step) -> InvertedResidual | None:
        """This workload with a ``step`` at its end; None if that is impossible."""
        projection = self.projection.followed_by(step)
        return None if projection is None else replace(self, projection=projection)

    def scheduled(self, env: Environment, knobs: InvertedResidualKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[InvertedResidualKnobs]:
        def walked(knobs: InvertedResidualKnobs, limit: float) -> Estimate:
            return estimated(self, config, knobs, limit)

        walks, found = with_each_kind_in_front(candidates(self, config))
        return best_of(found, walked, walks=walks)


def is_possible(workload: InvertedResidual, config: Config) -> bool:
    """Whether the machine can run the fused operator: it can run the depthwise convolution, with
    its expansion if there is one, and the projection is a plain 1×1 convolution whose results
    REQUANTIZE requantizes.
    """
    b, c = workload.depthwise.group, workload.projection
    plain = c.kernel == (1, 1) and c.strides == (1, 1) and not any(c.pads) and c.pooling is None
    same = (b.batch, workload.depthwise.groups, b.output_height, b.output_width) == (
        c.batch,
        c.inputs,
        c.height,
        c.width,
    )
    scaled = isinstance(c.requantize, PerChannelScale) and not c.row_sums
    if isinstance(workload.expanded, GroupedConv2d):
        filters = runs_by_channel_tiles(workload.expanded, config)
    else:
        filters = is_expansion_possible(workload.expanded, config)
    return plain and same and scaled and filters


def inverted_residual(
    workload: InvertedResidual,
    env: Environment,
    knobs: InvertedResidualKnobs | None = None,
    name: str = "inverted_residual",
) -> Function:
    """Build a function of input, the other operand of an addition if there is one, weights and
    parameters of the expansion if there is one, of the depthwise convolution and of the projection,
    the arguments of the addition, and output. Layouts are as in `expanded_conv2d`,
    `grouped_conv2d` and `conv2d`, except that the weights of the projection are (outputs, inputs,
    terms, BLOCK_OUT, BLOCK_IN). Default knobs and exceptions: see `tuned`.
    """
    return tuned(workload, env, knobs, name)
