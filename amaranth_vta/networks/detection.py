"""Detection of objects, and recognition of text, in images."""

from __future__ import annotations

from .float_network import FloatNetwork, Value


def yolo(net: FloatNetwork, size: int) -> list[Value]:
    """A detector like YOLOv5 nano: SiLU after each convolution, CSP blocks, spatial pyramid
    pooling, and three scales joined top-down and bottom-up.
    """

    def conv(x: Value, channels: int, kernel: int = 1, stride: int = 1) -> Value:
        return net.conv(x, channels, kernel, stride, "Silu")

    def block(name: str, x: Value, channels: int, depth: int = 1, residual: bool = True) -> Value:
        with net.part(name):
            half = channels // 2
            y, side = conv(x, half), conv(x, half)
            for _ in range(depth):
                z = conv(conv(y, half), half, 3)
                y = net.add(y, z) if residual else z
            return conv(net.concat([y, side]), channels)

    def joined(name: str, x: Value, other: Value, channels: int) -> Value:
        return block(name, net.concat([x, other]), channels, residual=False)

    def doubled(x: Value) -> Value:
        scales = net.constant("scales", [1, 1, 2, 2])
        return net.node(
            "Resize",
            x,
            "",
            scales,
            coordinate_transformation_mode="asymmetric",
            mode="nearest",
            nearest_mode="floor",
        )

    wide = [net.channels(count) for count in (16, 32, 64, 128, 256)]
    x = conv(conv(net.image(3, size, size), wide[0], 3, 2), wide[1], 3, 2)
    x = conv(block("down1", x, wide[1]), wide[2], 3, 2)
    small = block("down2", x, wide[2], 2)
    middle = block("down3", conv(small, wide[3], 3, 2), wide[3], 3)
    x = block("down4", conv(middle, wide[4], 3, 2), wide[4])
    with net.part("pyramid"):
        pools = [conv(x, wide[3])]
        for _ in range(3):
            pools.append(net.max_pool(pools[-1], 5, 1, 2))
        large = conv(conv(net.concat(pools), wide[4]), wide[3])
    middle = conv(joined("up1", doubled(large), middle, wide[3]), wide[2])
    small = joined("up2", doubled(middle), small, wide[2])
    middle = joined("down5", conv(small, wide[2], 3, 2), middle, wide[3])
    large = joined("down6", conv(middle, wide[3], 3, 2), large, wide[4])
    # Three boxes of four coordinates, a confidence and 80 class scores each.
    return [net.conv(x, 255, act="") for x in (small, middle, large)]


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
