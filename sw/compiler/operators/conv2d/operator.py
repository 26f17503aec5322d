"""The conv2d operator, with given knobs or with the tuner's choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.cost_model import Estimate
from amaranth_vta.sw.compiler.tuner.search import Choice, best_of
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .candidates import candidates
from .cost import estimated
from .sizes import Conv2dKnobs, Conv2dSizes
from .stages import scheduled


@dataclass(frozen=True)
class Conv2d(Conv2dSizes):
    """A convolution of these sizes as a workload for the tuner."""

    def scheduled(self, env: Environment, knobs: Conv2dKnobs) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Conv2dKnobs]:
        def walked(knobs: Conv2dKnobs, limit: float) -> Estimate:
            return estimated(self, config, knobs, limit)

        def variants(knobs: Conv2dKnobs) -> Iterable[Conv2dKnobs]:
            return knobs.with_more_copies(self, config)

        return best_of(candidates(self, config), walked, variants)


def conv2d(
    workload: Conv2d, env: Environment, knobs: Conv2dKnobs | None = None, name: str = "conv2d"
) -> Function:
    """Build a function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width · terms, BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs,
    BATCH, BLOCK_OUT) acc_dtype or requantization parameters (see `epilogue`), output is (batch,
    outputs, output height, output width, BATCH, BLOCK_OUT) out_dtype. Default knobs and exceptions:
    see `tuned`.
    """
    return tuned(workload, env, knobs, name)
