"""ResNet-18 and ResNet-50 (He et al., 2015, table 1), with strides in 3×3 convolutions."""

from __future__ import annotations

from .float_network import FloatNetwork, Value


def resnet18(net: FloatNetwork, size: int) -> list[Value]:
    x = _stem(net, size)
    for stage, (channels, stride) in enumerate(((64, 1), (128, 2), (256, 2), (512, 2)), 1):
        for block, step in enumerate((stride, 1)):
            with net.part(f"stage{stage}.{block}"):
                wide = net.channels(channels)
                shortcut = _shortcut(net, x, wide, step)
                y = net.conv(net.conv(x, wide, 3, step), wide, 3, act="")
                x = net.activation(net.add(y, shortcut), "Relu")
    return [classifier(net, x, 1000)]


def resnet50(net: FloatNetwork, size: int) -> list[Value]:
    x = _stem(net, size)
    rows = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
    for stage, (channels, blocks, stride) in enumerate(rows, 1):
        for block in range(blocks):
            step = stride if block == 0 else 1
            with net.part(f"stage{stage}.{block}"):
                narrow, wide = net.channels(channels), 4 * net.channels(channels)
                shortcut = _shortcut(net, x, wide, step)
                y = net.conv(net.conv(net.conv(x, narrow), narrow, 3, step), wide, act="")
                x = net.activation(net.add(y, shortcut), "Relu")
    return [classifier(net, x, 1000)]


def classifier(net: FloatNetwork, x: Value, classes: int) -> Value:
    """Global average pooling, then a fully connected layer with a score per class."""
    x = net.node("Flatten", net.node("GlobalAveragePool", x, rms=0.5 * x.rms))
    return net.gemm(x, classes)


def _stem(net: FloatNetwork, size: int) -> Value:
    x = net.conv(net.image(3, size, size), net.channels(64), 7, 2)
    return net.max_pool(x, 3, 2, 1)


def _shortcut(net: FloatNetwork, x: Value, channels: int, stride: int) -> Value:
    """The input, projected by a 1×1 convolution if size or channels change."""
    if stride == 1 and x.shape[1] == channels:
        return x
    return net.conv(x, channels, 1, stride, act="")
