"""Networks with branches joined by Concat."""

from __future__ import annotations

from .float_network import FloatNetwork, Value
from .residual import classifier

# Channels of the branches: 1×1; 1×1 then 3×3; 1×1 then 5×5; 1×1 after pooling.
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def squeezenet(net: FloatNetwork, size: int) -> list[Value]:
    """SqueezeNet 1.1 (Iandola et al., 2016): the last convolution has one channel per class,
    averaged over all pixels.
    """

    def fire(name: str, x: Value, narrow: int, wide: int) -> Value:
        with net.part(name):
            x = net.conv(x, net.channels(narrow))
            branches = [net.conv(x, net.channels(wide), kernel) for kernel in (1, 3)]
            return net.concat(branches)

    x = net.conv(net.image(3, size, size), net.channels(64), 3, 2)
    for stage, narrow in enumerate(((16, 16), (32, 32), (48, 48, 64, 64)), 2):
        x = net.max_pool(x, 3, 2)
        for number, channels in enumerate(narrow):
            x = fire(f"fire{stage}.{number}", x, channels, 4 * channels)
    x = net.conv(x, 1000)
    return [net.node("Flatten", net.node("GlobalAveragePool", x))]


def inception(net: FloatNetwork, size: int) -> list[Value]:
    """Inception v1 (Szegedy et al., 2014, table 1)."""
    x = net.conv(net.image(3, size, size), net.channels(64), 7, 2)
    x = net.conv(net.max_pool(x, 3, 2, 1), net.channels(64))
    x = net.conv(x, net.channels(192), 3)
    stage = ""
    for name, counts in _INCEPTION.items():
        if name[0] != stage:
            x, stage = net.max_pool(x, 3, 2, 1), name[0]
        one, narrow3, wide3, narrow5, wide5, behind = map(net.channels, counts)
        with net.part(f"inception{name}"):
            branches = [
                net.conv(x, one),
                net.conv(net.conv(x, narrow3), wide3, 3),
                net.conv(net.conv(x, narrow5), wide5, 5),
                net.conv(net.max_pool(x, 3, 1, 1), behind),
            ]
            x = net.concat(branches)
    return [classifier(net, x, 1000)]


def unet(net: FloatNetwork, size: int) -> list[Value]:
    """U-Net (Ronneberger et al., 2015) with 4 levels, the first with 32 channels, with padding, and
    with transposed convolutions for upsampling; the result is a mask.
    """

    def twice(name: str, x: Value, channels: int) -> Value:
        with net.part(name):
            return net.conv(net.conv(x, channels, 3), channels, 3)

    widths = [net.channels(count) for count in (32, 64, 128, 256)]
    x, skipped = net.image(3, size, size), []
    for level, channels in enumerate(widths):
        x = twice(f"down{level}", x, channels)
        if channels != widths[-1]:
            skipped.append(x)
            x = net.max_pool(x, 2, 2)
    for level in (2, 1, 0):
        with net.part(f"up{level}"):
            x = net.conv_transpose(x, widths[level], "")
        x = twice(f"join{level}", net.concat([skipped[level], x]), widths[level])
    return [net.node("Sigmoid", net.conv(x, 1, act=""))]
