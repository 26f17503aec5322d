"""Builds the networks of MLPerf Tiny as TensorFlow Lite files: `tiny_model`.

The published files are in the repository mlcommons/tiny; here weights are random. Inputs have an
open number of images, activations are int8, convolutions have a scale per channel.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from .tflite_file import Array, TfliteTensor
from .tflite_network import TfliteNetwork


def tiny_model(name: str, what: str) -> bytes:
    """The network ``name`` of `MLPERF_TINY` with random weights, the same at each call."""
    net = TfliteNetwork(crc32(name.encode()), description=what)
    net.output(_NETWORKS[name](net))
    return net.bytes()


def keywords(net: TfliteNetwork) -> TfliteTensor:
    """Depthwise separable convolutions on a spectrogram."""
    x = net.example_input(_smooth(net, 1, 49, 10, 1), "spectrogram", is_open=True)
    x = net.conv(x, 64, (10, 4), 2, name="conv")
    for block in range(1, 5):
        x = net.depthwise(x, (3, 3), name=f"depthwise{block}")
        x = net.conv(x, 64, name=f"pointwise{block}")
    return _classes(net, x, 12)


def wake_words(net: TfliteNetwork) -> TfliteTensor:
    """MobileNetV1 with a quarter of the channels."""
    x = net.example_input(_photograph(net, 1, 96, 96, 3), "image", is_open=True)
    x = net.conv(x, 8, (3, 3), 2, name="conv")
    blocks = [(1, 16), (2, 32), (1, 32), (2, 64), (1, 64), (2, 128), *[(1, 128)] * 5]
    for block, (stride, channels) in enumerate([*blocks, (2, 256), (1, 256)], 1):
        x = net.depthwise(x, (3, 3), stride, name=f"depthwise{block}")
        x = net.conv(x, channels, name=f"pointwise{block}")
    return _classes(net, x, 2)


def resnet(net: TfliteNetwork) -> TfliteTensor:
    """ResNet of three blocks with 16, 32 and 64 channels."""
    x = net.example_input(_photograph(net, 1, 32, 32, 3) * 255, "image", is_open=True)
    x = net.conv(x, 16, (3, 3), name="conv")
    for block, (stride, channels) in enumerate(((1, 16), (2, 32), (2, 64)), 1):
        y = net.conv(x, channels, (3, 3), stride, name=f"block{block}/conv1")
        y = net.conv(y, channels, (3, 3), act="NONE", name=f"block{block}/conv2")
        if stride > 1:
            x = net.conv(x, channels, stride=stride, act="NONE", name=f"block{block}/shortcut")
        name = f"block{block}/add"
        x = net.apply("ADD", x, y, name=name, fused_activation_function="RELU")
    return _classes(net, x, 10)


def anomaly(net: TfliteNetwork) -> TfliteTensor:
    """Autoencoder of fully connected layers."""
    x = net.example_input(_smooth(net, 1, 640), "frames", is_open=True)
    for layer, outputs in enumerate((128, 128, 128, 128, 8, 128, 128, 128, 128), 1):
        x = net.dense(x, outputs, "RELU", name=f"dense{layer}")
    return net.dense(x, 640, name="dense10")


def streaming(net: TfliteNetwork) -> TfliteTensor:
    """Separable convolutions along time, of the wake word that a stream of features contains."""
    x = net.example_input(_photograph(net, 1, 30, 1, 40), "features", is_open=True)
    for block, (length, channels) in enumerate(((3, 128), (5, 128), (10, 128), (15, 32)), 1):
        x = net.depthwise(x, (length, 1), act="NONE", padding="VALID", name=f"depthwise{block}")
        x = net.conv(x, channels, padding="VALID", name=f"pointwise{block}")
    return _probabilities(net, net.apply("RESHAPE", x, net.values([-1, 32]), name="flatten"), 3)


_NETWORKS = {
    "mlperf-keywords": keywords,
    "mlperf-wake-words": wake_words,
    "mlperf-resnet": resnet,
    "mlperf-anomaly": anomaly,
    "mlperf-streaming": streaming,
}


def _classes(net: TfliteNetwork, x: TfliteTensor, count: int) -> TfliteTensor:
    """The probabilities of classes: the average of all pixels, a dense layer and SOFTMAX."""
    _, height, width, channels = x.shape
    x = net.apply(
        "AVERAGE_POOL_2D",
        x,
        name="average",
        padding="VALID",
        filter_height=height,
        filter_width=width,
        stride_h=height,
        stride_w=width,
    )
    x = net.apply("RESHAPE", x, net.values([-1, channels]), name="flatten")
    return _probabilities(net, x, count)


def _probabilities(net: TfliteNetwork, x: TfliteTensor, count: int) -> TfliteTensor:
    """A dense layer, whose biases bring all classes near 0 for the example, and SOFTMAX."""
    weights = net.weights((count, x.shape[1]), 0, net.rms(x) / 8, per_channel=False, name="dense/w")
    middles = net.example(weights) @ net.example(x)[0]
    bias = net.bias(x, weights, net.rng.normal(0, 1, count) - middles, "dense/b")
    x = net.apply("FULLY_CONNECTED", x, weights, bias, at=(0.125, 0), name="dense")
    return net.apply("SOFTMAX", x, name="probabilities", beta=1.0)


def _smooth(net: TfliteNetwork, *shape: int) -> Array:
    """Normally distributed numbers, correlated with their neighbours along the second axis and the
    third.
    """
    values = net.rng.normal(0, 1, shape)
    for axis in range(1, min(len(shape), 3)):
        for step in (1, 2, 4):
            values = (values + np.roll(values, step, axis)) / 2**0.5
    return np.asarray(values / values.std(), np.float32)


def _photograph(net: TfliteNetwork, *shape: int) -> Array:
    """Correlated numbers from 0 to 1."""
    values = _smooth(net, *shape)
    return (values - values.min()) / (values.max() - values.min())
