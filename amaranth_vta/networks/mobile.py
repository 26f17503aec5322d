"""Networks of depthwise convolutions for phones."""

from __future__ import annotations

from .float_network import FloatNetwork, Value
from .residual import classifier

# Expansion, channels, blocks, stride of the first of them, kernel.
_MOBILE = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3)),
    *((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3)),
)


def mobilenetv2(net: FloatNetwork, size: int) -> list[Value]:
    """MobileNetV2 (Sandler et al., 2018, table 2)."""
    return _inverted_residuals(net, size, _MOBILE)


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
