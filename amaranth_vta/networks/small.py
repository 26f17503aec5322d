"""Small networks, for microcontrollers and for getting started."""

from __future__ import annotations

from .float_network import FloatNetwork, Value


def mlp(net: FloatNetwork, size: int) -> list[Value]:
    """A multilayer perceptron on ``size`` features with 3 hidden layers, as Gemm and Relu."""
    x = net.image(size)
    for outputs in (256, 256, 128):
        x = net.gemm(x, net.channels(outputs), "Relu")
    return [net.gemm(x, 10)]


def keywords(net: FloatNetwork, size: int) -> list[Value]:
    """Keyword spotting with separable convolutions along time (after Choi et al., 2019): ``size``
    frames of 40 coefficients, 12 words.
    """
    x = net.conv(net.image(40, size), net.channels(64), 3)
    for block, (channels, stride) in enumerate(((64, 1), (96, 2), (96, 1), (128, 2), (128, 1))):
        with net.part(f"block{block}"):
            wide = net.channels(channels)
            y = net.conv(net.conv(x, x.shape[1], 9, stride, groups=x.shape[1]), wide, act="")
            x = net.activation(net.add(y, x) if y.shape == x.shape else y, "Relu")
    mean = net.node("ReduceMean", x, axes=[2], keepdims=0, rms=0.5)
    return [net.gemm(mean, 12)]


def digits(net: FloatNetwork, size: int) -> list[Value]:
    """The network of examples/digits, here untrained: three convolutions, max pooling, and a fully
    connected layer.
    """
    x = net.conv(net.conv(net.image(1, size, size), net.channels(16), 3), net.channels(32), 3)
    x = net.conv(net.max_pool(x, 2, 2), net.channels(32), 3)
    return [net.gemm(net.node("Flatten", x), 10)]
