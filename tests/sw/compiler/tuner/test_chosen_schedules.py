"""The schedules chosen for the layers of known networks: tests/golden/schedules.

Cycles of whole networks depend on them. The golden schedules come from complete walks of all
candidates. The tuner walks fewer candidates and abandons some walks early, but must choose the
same schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import pytest

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sw.compiler.operators.building_blocks.epilogue import (
    PerChannelScale,
    RoundingShift,
)
from amaranth_vta.sw.compiler.operators.conv2d import Conv2d
from amaranth_vta.sw.compiler.operators.dense import Dense
from amaranth_vta.sw.compiler.operators.grouped_conv2d import GroupedConv2d
from amaranth_vta.sw.compiler.tuner.product_walk import estimated
from amaranth_vta.sw.compiler.tuner.tiles import parts
from amaranth_vta.sw.compiler.tuner.workload import Workload, choose
from tests.support.golden import Golden


class Layer(NamedTuple):
    """A convolution padded by half its kernel, or with size 0 a fully connected layer."""

    inputs: int
    outputs: int
    size: int
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False

    def workload(self, config: Config) -> Workload[Any]:
        inputs = parts(self.inputs, config.block_in)
        outputs = parts(self.outputs, config.block_out)
        requantize = PerChannelScale() if config.requantize else RoundingShift(6, -128, 127)
        if self.size == 0:
            return Dense(1, inputs, outputs, requantize)
        moved: dict[str, Any] = {
            "height": self.size,
            "width": self.size,
            "kernel": (self.kernel, self.kernel),
            "requantize": requantize,
            "strides": (self.stride, self.stride),
            "pads": (self.kernel // 2,) * 4,
        }
        if self.depthwise:
            return GroupedConv2d(inputs, Conv2d(1, 1, 1, **moved))
        return Conv2d(1, inputs, outputs, **moved)


def resnet18() -> Iterator[Layer]:
    yield Layer(3, 64, 224, 7, 2)
    channels, size = 64, 56
    for width, first in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first, 1):
            yield Layer(channels, width, size, 3, stride)
            if stride > 1:
                yield Layer(channels, width, size, 1, stride)
            size //= stride
            yield Layer(width, width, size, 3)
            channels = width
    yield Layer(512, 1000, 0)


def resnet50() -> Iterator[Layer]:
    yield Layer(3, 64, 224, 7, 2)
    channels, size = 64, 56
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for stride in (first, *[1] * (blocks - 1)):
            yield Layer(channels, width, size)
            yield Layer(width, width, size, 3, stride)
            if channels != 4 * width:
                yield Layer(channels, 4 * width, size, 1, stride)
            size //= stride
            yield Layer(width, 4 * width, size)
            channels = 4 * width
    yield Layer(2048, 1000, 0)


def mobilenet_v2() -> Iterator[Layer]:
    yield Layer(3, 32, 224, 3, 2)
    channels, size = 32, 112
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    blocks += [(6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for factor, width, count, first in blocks:
        for stride in (first, *[1] * (count - 1)):
            hidden = factor * channels
            if factor > 1:
                yield Layer(channels, hidden, size)
            yield Layer(hidden, hidden, size, 3, stride, depthwise=True)
            size //= stride
            yield Layer(hidden, width, size)
            channels = width
    yield Layer(320, 1280, 7)
    yield Layer(1280, 1000, 0)


@pytest.mark.parametrize(
    ("config", "network"),
    [
        ("pynq-extended", resnet18),
        ("pynq-extended", resnet50),
        ("pynq-extended", mobilenet_v2),
        ("pynq", resnet18),
    ],
)
def test_layers_are_scheduled_as_they_were(
    config: str, network: Callable[[], Iterator[Layer]], golden: Golden
) -> None:
    lines = []
    for layer in dict.fromkeys(network()):
        knobs = asdict(choose(layer.workload(PRESETS[config]), PRESETS[config]).best)
        sizes = " ".join(f"{name}={value}" for name, value in layer._asdict().items())
        lines.append(f"{sizes}: " + " ".join(f"{name}={value}" for name, value in knobs.items()))
    name = f"schedules/{network.__name__}-{config}.txt"
    golden.check_text(name, "\n".join(lines) + "\n")


def test_a_walk_that_ends_early_is_of_what_cannot_take_less() -> None:
    """Knobs whose walk was abandoned cost at least as much as the best knobs."""
    shift, scale = RoundingShift(5, -128, 127), PerChannelScale()
    passed = 0
    for name, workload in (
        ("tiny-extended", Conv2d(1, 4, 4, 14, 14, (3, 3), scale, pads=(1, 1, 1, 1))),
        ("tiny-extended", Conv2d(1, 4, 8, 14, 14, (1, 1), scale, strides=(2, 2))),
        ("tiny-extended", Conv2d(1, 6, 4, 12, 12, (1, 1), shift)),
        ("tiny", Conv2d(1, 6, 4, 12, 12, (1, 1), shift)),
        ("tiny-extended", Dense(1, 32, 12, scale)),
        ("tiny", Dense(3, 8, 6, shift)),
        ("pynq", Dense(1, 32, 12, shift)),
    ):
        config = PRESETS[name]
        choice = choose(workload, config)
        best = choice.estimates[0][0].cost
        for about, knobs in choice.passed:
            found = estimated(workload, config, knobs)
            assert found.cost >= best
            assert about >= min(found.cycles, best)
            passed += 1
        for estimate, knobs in choice.estimates:
            assert estimate == estimated(workload, config, knobs)
    assert passed > 30
