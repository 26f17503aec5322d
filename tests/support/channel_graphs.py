"""Random graphs whose channels are shuffled, split, selected and concatenated between layers."""

from __future__ import annotations

import random
from math import sqrt
from typing import Any

import numpy as np
from onnx import helper

from tests.sw.compiler.graph.conftest import Qdq

_SIZE = 7


class _Graph:
    """A graph of images of one size. ``values`` has their names with channels and deviations."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        is_signed = self.choose.random() < 0.5
        self.dtype: type[np.integer[Any]] = np.int8 if is_signed else np.uint8
        self.middle = 0 if is_signed else 128
        channels = self.choose.randint(1, 5)
        self.graph = Qdq((1, channels, _SIZE, _SIZE), self.dtype)
        self.graph.rng = np.random.default_rng(seed)
        self.values: list[tuple[str, int, float]] = []
        self.quantized(channels, 1.5)

    def quantized(self, channels: int, deviation: float) -> None:
        """Quantize the last value, and keep it."""
        scale = 6 * deviation / 255 * self.choose.uniform(0.8, 1.2)
        self.graph.qdq(scale, self.choose.randint(-9, 9) + self.middle)
        self.values.append((self.graph.value, channels, deviation))

    def taken(self) -> tuple[int, float]:
        """Continue with a value, mostly with a late one; return its channels and deviation."""
        late = min(len(self.values), 4)
        values = self.values[-late:] if self.choose.random() < 0.8 else self.values
        self.graph.value, channels, deviation = self.choose.choice(values)
        return channels, deviation

    def convolution(self, outputs: int = 0) -> None:
        channels, deviation = self.taken()
        size = self.choose.choice([1, 1, 3])
        outputs = outputs or self.choose.randint(2, 22)
        each = self.choose.random() < 0.7
        scale = self.graph.rng.uniform(0.01, 0.03, outputs) if each else 0.02
        weights = self.graph.weights(outputs, channels, size, size, scale=scale)
        self.graph.node("Conv", weights, pads=[size // 2] * 4)
        self.quantized(outputs, deviation * 1.15 * size * sqrt(channels))

    def depthwise(self) -> None:
        channels, deviation = self.taken()
        weights = self.graph.weights(channels, 1, 3, 3, scale=0.02)
        self.graph.node("Conv", weights, pads=[1] * 4, group=channels)
        self.quantized(channels, deviation * 3.5)

    def function(self) -> None:
        channels, deviation = self.taken()
        operator = self.choose.choice(["LeakyRelu", "Relu", "MaxPool", "HardSwish", "Identity"])
        attributes: dict[str, Any] = {}
        if operator == "MaxPool":
            attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
        self.graph.node(operator, **attributes)
        self.quantized(channels, deviation)

    def addition(self) -> None:
        channels, deviation = self.taken()
        others = [item for item in self.values if item[1] == channels]
        other = self.choose.choice(others)
        self.graph.node("Add", other[0])
        self.quantized(channels, deviation + other[2])

    def concatenation(self) -> None:
        parts = [self.choose.choice(self.values[-6:]) for _ in range(self.choose.randint(2, 3))]
        self.graph.value = parts[0][0]
        self.graph.node("Concat", *(name for name, _, _ in parts[1:]), axis=1)
        self.quantized(sum(part[1] for part in parts), max(part[2] for part in parts))

    def split(self) -> None:
        channels, deviation = self.taken()
        if channels < 2:
            return
        first = (
            channels // 2 if self.choose.random() < 0.6 else self.choose.randint(1, channels - 1)
        )
        sizes, given = [first, channels - first], self.graph.value
        names = [f"part{len(self.graph.nodes)}_{number}" for number in range(2)]
        constant = self.graph.constant(sizes, np.int64)
        self.graph.nodes.append(helper.make_node("Split", [given, constant], names, axis=1))
        for name, size in zip(names, sizes, strict=True):
            self.graph.value = name
            self.quantized(size, deviation)

    def shuffle(self) -> None:
        channels, deviation = self.taken()
        groups = self.choose.choice([number for number in (1, 2, 3, 4, 5) if not channels % number])
        parts = [1, groups, channels // groups, _SIZE, _SIZE]
        self.graph.node("Reshape", self.graph.constant(parts, np.int64))
        self.graph.node("Transpose", perm=[0, 2, 1, 3, 4])
        self.graph.node("Reshape", self.graph.constant([1, -1, _SIZE, _SIZE], np.int64))
        self.quantized(channels, deviation)

    def gather(self) -> None:
        channels, deviation = self.taken()
        count = self.choose.randint(1, channels)
        again = self.choose.random() < 0.2
        numbers = [self.choose.randrange(channels) for _ in range(count)]
        if not again:
            numbers = self.choose.sample(range(channels), count)
        self.graph.node("Gather", self.graph.constant(numbers, np.int64), axis=1)
        self.quantized(count, deviation)

    def unit(self) -> None:
        """A unit of ShuffleNetV2: half of the channels bypasses two convolutions."""
        self.split()
        (_, half, _) = kept = self.values[-2]
        self.convolution(half)
        made, channels, deviation = self.values[-1]
        self.graph.value = kept[0]
        self.graph.node("Concat", made, axis=1)
        self.quantized(half + channels, max(kept[2], deviation))
        self.shuffle()


def channel_graph(seed: int) -> Qdq:
    """A convolution, up to nine operators, and a convolution of their last results."""
    made = _Graph(seed)
    made.convolution()
    kinds = [made.convolution, made.depthwise, made.function, made.concatenation, made.split]
    kinds += [made.shuffle, made.gather, made.unit, made.unit]
    if made.choose.random() < 0.3:
        kinds.append(made.addition)
    for _ in range(made.choose.randint(3, 9)):
        made.choose.choice(kinds)()
    made.concatenation()
    made.values = made.values[-1:]
    made.convolution(5)
    return made.graph
