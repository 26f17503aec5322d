"""Random graphs of fused layers, in one launch: convolutions with additions and poolings, inverted
residuals, and concatenations with a tensor that other layers read too. The weights of every third
graph have zero points."""

from __future__ import annotations

import random

import numpy as np

from .random_networks import Layer, QuantizedNetwork


def fused_graph(seed: int) -> QuantizedNetwork:
    """Convolutions followed by residual additions, poolings, both or neither, perhaps skipped by a
    concatenation, and perhaps an inverted residual."""
    choose, skips = random.Random(seed), random.Random(seed)
    shape = (choose.randint(1, 9), choose.randint(6, 9), choose.randint(6, 9))
    network = QuantizedNetwork(
        seed,
        choose.choice(["qdq", "qoperator"]),
        choose.choice([np.int8, np.uint8]),
        shape,
        asymmetric=seed % 3 == 0,
    )
    for _ in range(choose.randint(1, 2)):
        stride = 2 if min(network.shape[2:]) > 7 and choose.random() < 0.3 else 1
        network.layer(Layer(choose.randint(3, 12), choose.choice([1, 3]), stride))
        if choose.random() < 0.5:
            branch, deviation = network.dequantized(), network.deviation
            network.layer(Layer(network.shape[1], choose.choice([1, 3]), relu=False))
            network.add(branch, deviation, relu=choose.random() < 0.5)
        if skips.random() < 0.4:
            _skip_connection(network, skips)
        if min(network.shape[2:]) > 3 and choose.random() < 0.6:
            size = choose.randint(2, 3)
            pads = (choose.randint(0, size // 2),) * 4
            stride = choose.randint(size - 1, size + 1)
            network.pooling((size, size), (stride, stride), pads)
    if choose.random() < 0.4:
        _inverted_residual(network, choose)
    if choose.random() < 0.5:
        network.matrix_product(choose.randint(5, 12), relu=False)
    return network


def _skip_connection(network: QuantizedNetwork, choose: random.Random) -> None:
    """A convolution or a pooling, and a concatenation of its operand and its result."""
    branch, deviation, channels = network.dequantized(), network.deviation, network.shape[1]
    if choose.random() < 0.7:
        network.layer(Layer(choose.randint(3, 12), choose.choice([1, 3])))
    else:
        network.pooling((3, 3), (1, 1), (1, 1, 1, 1))
    network.join(branch, deviation, channels)


def _inverted_residual(network: QuantizedNetwork, choose: random.Random) -> None:
    """An expansion, a depthwise convolution and a projection, perhaps with a residual addition."""
    branch, deviation, channels = network.dequantized(), network.deviation, network.shape[1]
    stride, added = choose.randint(1, 2), choose.random() < 0.6
    network.layer(Layer(choose.randint(5, 12), 1))
    network.layer(Layer(network.shape[1], 3, stride, depthwise=True))
    network.layer(Layer(channels if added else choose.randint(3, 12), 1, relu=False))
    if added and stride == 1:
        network.add(branch, deviation, relu=False)
