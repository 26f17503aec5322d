"""Random products followed by chains of element-wise operators between quantizations."""

from __future__ import annotations

import random
from math import sqrt
from typing import Any

import numpy as np

from tests.sw.compiler.graph.conftest import Qdq

# Functions whose results are within these bounds, and functions that keep the size of values.
_BOUNDED = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "Erf": (-1.0, 1.0)}
_OTHERS = ("Elu", "HardSwish", "LeakyRelu", "Relu", "Neg")
_LONGEST = 5


class _Chain:
    """A graph with the deviation of its last value."""

    def __init__(self, seed: int) -> None:
        self.choose, self.rng = random.Random(seed), np.random.default_rng(seed)
        is_signed = self.choose.random() < 0.5
        self.dtype: type[np.integer[Any]] = np.int8 if is_signed else np.uint8
        self.middle = 0 if is_signed else 128
        self.rows = self.choose.randint(2, 9)
        self.channels = self.choose.choice([5, 8, 12])
        self.graph = Qdq((1, self.rows, self.channels), self.dtype)
        self.deviation = 1.5
        self.quantize()

    def quantize(self, low: float | None = None, high: float | None = None) -> None:
        """Quantize the last value, whose bounds default to three deviations."""
        low = -3 * self.deviation if low is None else low
        high = 3 * self.deviation if high is None else high
        scale = (high - low) / 255 * self.choose.uniform(0.8, 1.2)
        zero = round(-low / scale) - 128 + self.choose.randint(-3, 3)
        self.graph.qdq(scale, int(np.clip(zero, -128, 127)) + self.middle)

    def product(self, outputs: int) -> None:
        zero = self.choose.choice([0, self.choose.randint(-80, 80)])
        weights = self.graph.weights(self.channels, outputs, scale=0.02, zero=zero)
        self.graph.node("MatMul", weights)
        self.deviation *= 1.15 * sqrt(self.channels)
        self.channels = outputs
        self.quantize()

    def step(self, before: tuple[str, float] | None) -> None:
        """An element-wise operator; an addition of the value ``before``, if there is one."""
        graph, kind = self.graph, self.choose.random()
        if kind < 0.4:
            per_channel = self.choose.random() < 0.8
            values = self.rng.uniform(0.5, 1.5, self.channels if per_channel else ())
            if self.choose.random() < 0.6:
                signs = self.rng.choice([-1, 1], values.shape)
                graph.node("Add", graph.constant(self.deviation * values * signs, np.float32))
                self.deviation *= 1.3
            else:
                sign = self.choose.choice([-1, 1])
                graph.node("Mul", graph.constant(sign * values, np.float32))
            self.quantize()
        elif kind < 0.55 and before is not None:
            graph.node("Add", before[0])
            self.deviation = sqrt(self.deviation**2 + before[1] ** 2)
            self.quantize()
        elif kind < 0.75:
            operator = self.choose.choice(list(_BOUNDED))
            graph.node(operator)
            self.deviation = min(self.deviation, 0.5)
            self.quantize(*_BOUNDED[operator])
        else:
            graph.node(self.choose.choice(_OTHERS))
            self.quantize()


def step_chain(seed: int) -> Qdq:
    """One to three products, each followed by up to five element-wise operators."""
    chain = _Chain(seed)
    for _ in range(chain.choose.randint(1, 3)):
        before = chain.graph.value, chain.deviation
        same = chain.choose.random() < 0.6
        size = chain.channels if same else chain.choose.choice([3, 8, 12])
        usable = size == chain.channels and before[0] != "x"
        chain.product(size)
        for _ in range(chain.choose.randint(1, _LONGEST)):
            chain.step(before if usable else None)
    return chain.graph
