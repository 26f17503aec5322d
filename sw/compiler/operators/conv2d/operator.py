"""The conv2d operator, with given knobs or with the tuner's choice."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.tuner.product_candidates import best_tilings
from amaranth_vta.sw.compiler.tuner.search import Choice
from amaranth_vta.sw.compiler.tuner.tiled_product import Tiling
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .sizes import Conv2dSizes
from .stages import scheduled


@dataclass(frozen=True)
class Conv2d(Conv2dSizes):
    """A convolution of these sizes as a workload for the tuner."""

    def scheduled(self, env: Environment, knobs: Tiling) -> Scheduled:
        return scheduled(self, env, knobs)

    def considered(self, config: Config) -> Choice[Tiling]:
        return best_tilings(self, config)


def conv2d(
    workload: Conv2d, env: Environment, knobs: Tiling | None = None, name: str = "conv2d"
) -> Function:
    """Build a function of input, weights, bias and output.

    Input is (batch, inputs, height, width, BATCH, BLOCK_IN) inp_dtype, weights are (outputs,
    inputs, kernel height, kernel width · terms, BLOCK_OUT, BLOCK_IN) wgt_dtype, bias is (outputs,
    BATCH, BLOCK_OUT) acc_dtype or requantization parameters (see `epilogue`), output is (batch,
    outputs, output height, output width, BATCH, BLOCK_OUT) out_dtype. Default knobs and exceptions:
    see `tuned`.
    """
    return tuned(workload, env, knobs, name)
