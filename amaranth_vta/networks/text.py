"""Text recognition in images."""

from __future__ import annotations

from .float_network import FloatNetwork, Value


def ocr(net: FloatNetwork, size: int) -> list[Value]:
    """Recognizes a line of text of 32 × ``size`` pixels: the convolutions of CRNN (Shi et al.,
    2015), which reduce the image to one row, two fully connected layers instead of the recurrent
    layers, and probabilities of 96 characters and a blank, for CTC.
    """
    x = net.image(1, 32, size)
    for level, (channels, convolutions, pool) in enumerate(
        ((64, 1, (2, 2)), (128, 1, (2, 2)), (256, 2, (2, 1)), (512, 2, (2, 1)))
    ):
        with net.part(f"level{level}"):
            for _ in range(convolutions):
                x = net.conv(x, net.channels(channels), 3)
            x = net.max_pool(x, pool, pool)
    x = net.conv(x, net.channels(512), (2, 1), pads=0)
    x = net.node("Squeeze", x, net.constant("rows", [2], "int64"))
    x = net.node("Transpose", x, perm=[0, 2, 1])
    x = net.linear(net.linear(x, net.channels(256), "HardSwish"), 97)
    return [net.node("Softmax", x, axis=-1)]
