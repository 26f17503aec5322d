"""Mobile networks with depthwise convolutions."""

from __future__ import annotations

from .float_network import FloatNetwork, Value
from .residual import classifier

# By stage: expansion, channels, blocks, stride of the first block, kernel.
_MOBILE = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)),
    *((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)),
)


_EFFICIENT = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)


def mobilenetv2(net: FloatNetwork, size: int) -> list[Value]:
    """MobileNetV2 (Sandler et al., 2018, table 2)."""
    return _inverted_residuals(net, size, _MOBILE)


def efficientnet_lite(net: FloatNetwork, size: int) -> list[Value]:
    """EfficientNet-Lite0 (Google, 2020): EfficientNet-B0 without gates, with ReLU6."""
    return _inverted_residuals(net, size, _EFFICIENT)


def shufflenet(net: FloatNetwork, size: int) -> list[Value]:
    """ShuffleNetV2 1.0 (Ma et al., 2018, table 5)."""
    x = net.conv(net.image(3, size, size), net.channels(24), 3, 2)
    x = net.max_pool(x, 3, 2, 1)
    for stage, (channels, blocks) in enumerate(((116, 4), (232, 8), (464, 4)), 2):
        half = net.channels(channels) // 2
        for block in range(blocks):
            with net.part(f"stage{stage}.{block}"):
                stride = 1 if block else 2
                left, right = _halves(net, x) if block else (x, x)
                if stride == 2:
                    left = net.conv(net.depthwise(left, 3, 2, ""), half)
                right = net.depthwise(net.conv(right, half), 3, stride, "")
                x = _shuffled(net, net.concat([left, net.conv(right, half)]))
    return [classifier(net, net.conv(x, net.channels(1024)), 1000)]


def _halves(net: FloatNetwork, x: Value) -> tuple[Value, Value]:
    half = x.shape[1] // 2
    sizes = net.constant("halves", [half, half], "int64")
    left, right = net.nodes("Split", x, sizes, results=2, axis=1)
    return left, right


def _shuffled(net: FloatNetwork, x: Value) -> Value:
    """Interleaves the channels of both halves."""
    _, channels, height, width = x.shape
    pairs = net.reshape(x, 0, 2, channels // 2, height, width)
    turned = net.node("Transpose", pairs, perm=[0, 2, 1, 3, 4])
    return net.reshape(turned, 0, channels, height, width)


def _inverted_residuals(
    net: FloatNetwork, size: int, rows: tuple[tuple[int, int, int, int, int], ...]
) -> list[Value]:
    x = net.conv(net.image(3, size, size), net.channels(32), 3, 2, "Relu6")
    for stage, (expansion, channels, blocks, stride, kernel) in enumerate(rows, 1):
        for block in range(blocks):
            step = stride if block == 0 else 1
            with net.part(f"stage{stage}.{block}"):
                y = net.conv(x, expansion * x.shape[1], act="Relu6") if expansion > 1 else x
                y = net.depthwise(y, kernel, step, "Relu6")
                y = net.conv(y, net.channels(channels), act="")
                x = net.add(x, y) if y.shape == x.shape else y
    return [classifier(net, net.conv(x, net.channels(1280), act="Relu6"), 1000)]
