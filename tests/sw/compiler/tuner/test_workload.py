"""Workloads that differ only in constants share their schedules and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.lower import lower
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import PerChannelScale
from amaranth_vta.sw.compiler.operators.building_blocks.pooling import Pooling
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.depthwise_chain import DepthwiseChain
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.workload import Workload, choose, schedule_of

ENV = Environment(PRESETS["tiny-extended"])


def convolution(wraps: bool) -> Conv2d:
    return Conv2d(1, 2, 2, 6, 6, (1, 1), PerChannelScale(wraps=wraps))


def grouped(wraps: bool) -> GroupedConv2d:
    group = Conv2d(1, 1, 1, 6, 6, (3, 3), PerChannelScale(wraps=wraps), pads=(1, 1, 1, 1))
    return GroupedConv2d(2, group)


def expanded(wraps: bool) -> DepthwiseChain:
    return DepthwiseChain(convolution(wraps), grouped(wraps))


def inverted_residual(wraps: bool) -> DepthwiseChain:
    return replace(expanded(wraps), projection=convolution(wraps))


def pooled(wraps: bool) -> Conv2d:
    return replace(convolution(wraps), pooling=Pooling((3, 3), (2, 2), (2, 2)))


def lowered(workload: Workload[Any]) -> str:
    schedule, args = workload.scheduled(ENV, choose(workload, ENV.config).best)
    return str(lower(schedule, args, env=ENV))


@pytest.mark.parametrize("make", [convolution, grouped, expanded, inverted_residual, pooled])
def test_workloads_share_a_function_if_their_loop_nests_are_equal(
    make: Callable[[bool], Workload[Any]],
) -> None:
    first, second = make(False), make(True)
    assert (schedule_of(first) == schedule_of(second)) == (lowered(first) == lowered(second))
    assert (schedule_of(first) == schedule_of(second)) == (make is not pooled)
