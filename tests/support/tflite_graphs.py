"""Random TensorFlow Lite networks of about 5 to 12 operators, and networks that keep state:
`random_graph`, `stateful_graph`, `in_sequence`, `kept_by_host`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amaranth_vta.networks.tflite_file import TfliteFile, TfliteTensor
from amaranth_vta.sw.compiler.graph.load.tflite.reference_kernels import open_reference

from .tflite_files import DrawnNetwork, TfliteCase, case

_LEAST, _MOST = 5, 12  # a step may add up to four operators to the last


def random_graph(seed: int) -> TfliteCase:
    """Convolutions, branches that an operator joins, poolings and functions of an image, then
    perhaps a classifier."""
    net = DrawnNetwork(seed, "uint8" if seed % 8 == 7 else "int8")
    graph = _Graph(net)
    x = net.given(1, net.integer(6, 12), net.integer(6, 12), net.integer(1, 8))
    is_classifier = net.chance(0.6)
    operators = net.integer(_LEAST, _MOST) - 3 * is_classifier
    x = graph.conv(x)
    while graph.operators < operators:
        x = net.choose.choice(graph.steps)(x)
    outputs = [x]
    if is_classifier:
        outputs = [graph.classifier(x), *([x] if net.chance(0.2) else [])]
    return case(net, "graph", f"graph {seed}: {' '.join(graph.names)}", outputs)


class _Graph:
    """Steps from an image (N, H, W, C) to an image; ``names`` are the operators so far."""

    def __init__(self, net: DrawnNetwork) -> None:
        self.net = net
        self.names: list[str] = []
        common = (self.conv, self.depthwise, self.residual, self.concat)
        self.steps: tuple[Callable[[TfliteTensor], TfliteTensor], ...] = (
            *(*common, *common, self.pool, self.pool, self.gated, self.padded),
            *(self.function, self.function, self.function),
            *(self.resized, self.product, self.halves, self.flattened),
        )

    @property
    def operators(self) -> int:
        return len(self.names)

    def apply(self, operator: str, *inputs: TfliteTensor, **settings: object) -> TfliteTensor:
        self.names.append(operator)
        return self.net.apply(operator, *inputs, **settings)

    def conv(
        self, x: TfliteTensor, outputs: int = 0, at: tuple[float, int] | None = None, act: str = ""
    ) -> TfliteTensor:
        """A convolution that keeps height and width if ``outputs`` are given."""
        net, kernel = self.net, self.net.choose.choice((1, 1, 3))
        stride = 2 if not outputs and min(x.shape[1:3]) > 5 and net.chance(0.3) else 1
        outputs = outputs or net.integer(2, 16)
        weights = net.weights((outputs, kernel, kernel, x.shape[3]), 0, net.rms(x))
        return self.apply(
            "CONV_2D",
            *(x, weights, net.bias(x, weights, outputs)),
            at=at,
            padding="SAME",
            stride_w=stride,
            stride_h=stride,
            fused_activation_function=act or net.activation(),
        )

    def depthwise(self, x: TfliteTensor) -> TfliteTensor:
        net, size = self.net, self.net.choose.choice((2, 3, 5))
        fits = min(x.shape[1:3]) > size
        stride = 2 if min(x.shape[1:3]) > 5 and net.chance(0.3) else 1
        weights = net.weights((1, size, size, x.shape[3]), 3, net.rms(x))
        return self.apply(
            "DEPTHWISE_CONV_2D",
            *(x, weights, net.bias(x, weights, x.shape[3])),
            padding="VALID" if fits and net.chance(0.3) else "SAME",
            stride_w=stride,
            stride_h=stride,
            depth_multiplier=1,
            fused_activation_function=net.activation(),
        )

    def residual(self, x: TfliteTensor) -> TfliteTensor:
        y = self.conv(x, x.shape[3], act="NONE")
        pair = [x, y] if self.net.chance(0.5) else [y, x]
        operator = self.net.choose.choice(("ADD", "ADD", "SUB"))
        return self.apply(operator, *pair, fused_activation_function=self.net.activation())

    def concat(self, x: TfliteTensor) -> TfliteTensor:
        """Two or three convolutions of one tensor, at the same scale."""
        net = self.net
        parts = [self.conv(x, net.integer(1, 8))]
        first = parts[0]
        assert first.scale is not None
        assert first.zero_point is not None
        at = float(first.scale[0]), int(first.zero_point[0])
        for _ in range(net.integer(1, 2)):
            parts.append(self.conv(x, net.integer(1, 8), at))
        return self.apply("CONCATENATION", *parts, axis=net.choose.choice((3, -1)))

    def pool(self, x: TfliteTensor) -> TfliteTensor:
        net, size = self.net, self.net.integer(2, 3)
        fits = min(x.shape[1:3]) > size
        return self.apply(
            net.choose.choice(("MAX_POOL_2D", "AVERAGE_POOL_2D")),
            x,
            padding=net.choose.choice(("SAME", "VALID")) if fits else "SAME",
            stride_w=net.integer(1, 2),
            stride_h=net.integer(1, 2),
            filter_width=size,
            filter_height=size,
        )

    def function(self, x: TfliteTensor) -> TfliteTensor:
        operators = ("HARD_SWISH", "LEAKY_RELU", "LOGISTIC", "TANH", "RELU6", "QUANTIZE", "PRELU")
        operator = self.net.choose.choice(operators)
        if operator == "PRELU":
            alpha = self.net.factors(self.net.rng.normal(0.2, 0.2, (1, 1, x.shape[3])))
            return self.apply(operator, x, alpha)
        return self.apply(operator, x, **({"alpha": 0.1} if operator == "LEAKY_RELU" else {}))

    def gated(self, x: TfliteTensor) -> TfliteTensor:
        """Channels weighted by a function of their means (squeeze and excitation)."""
        y = self.apply("MEAN", x, self.net.values([1, 2]), fit=True, keep_dims=True)
        y = self.apply("LOGISTIC", self.conv(y, x.shape[3], act="NONE"))
        return self.apply("MUL", x, y)

    def padded(self, x: TfliteTensor) -> TfliteTensor:
        ends = [[0, 0], [self.net.integer(0, 2), 1], [1, self.net.integer(0, 2)], [0, 0]]
        return self.conv(self.apply("PAD", x, self.net.constant(np.array(ends, np.int32))))

    def resized(self, x: TfliteTensor) -> TfliteTensor:
        if max(x.shape[1:3]) > 8:
            return self.conv(x)
        operator = self.net.choose.choice(("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR"))
        sizes = self.net.values([2 * x.shape[1], 2 * x.shape[2]])
        return self.apply(operator, x, sizes, half_pixel_centers=self.net.chance(0.5))

    def product(self, x: TfliteTensor) -> TfliteTensor:
        y = self.conv(x, x.shape[3], act="NONE")
        return self.apply("MUL", x, y, fused_activation_function=self.net.activation())

    def halves(self, x: TfliteTensor) -> TfliteTensor:
        """The channels in two halves, of which one passes a convolution."""
        half = x.shape[3] // 2
        if half < 1:
            return self.conv(x)
        ends = [0, 0, 0, half], [0, 0, 0, x.shape[3]]
        ranges = [([0] * 4, [*x.shape[:3], half]), (ends[0], list(x.shape))]
        parts = []
        for begin, end in ranges:
            given = [self.net.values(items) for items in (begin, end, [1] * 4)]
            parts.append(self.apply("STRIDED_SLICE", x, *given))
        assert x.scale is not None
        assert x.zero_point is not None
        at = float(x.scale[0]), int(x.zero_point[0])
        parts[1] = self.conv(parts[1], parts[1].shape[3], at)
        return self.apply("CONCATENATION", *parts, axis=3)

    def flattened(self, x: TfliteTensor) -> TfliteTensor:
        """Height and width transposed, by way of a matrix."""
        images, height, width, channels = x.shape
        y = self.apply("RESHAPE", x, self.net.values([images, height * width, channels]))
        y = self.apply("TRANSPOSE", y, self.net.values([0, 2, 1]))
        shape = self.net.values([images, channels, height, width])
        y = self.apply("RESHAPE", y, shape)
        return self.apply("TRANSPOSE", y, self.net.values([0, 3, 2, 1]))

    def classifier(self, x: TfliteTensor) -> TfliteTensor:
        net = self.net
        if net.chance(0.5):
            x = self.apply("MEAN", x, net.values([1, 2]), fit=net.chance(0.7), keep_dims=False)
        else:
            x = self.apply("RESHAPE", x, net.values([-1, int(np.prod(x.shape[1:]))]))
        self.names.append("FULLY_CONNECTED")
        x = net.dense(x, net.integer(6, 20), net.activation(), rms=2.0)
        return self.apply("SOFTMAX", x, beta=1.0) if net.chance(0.7) else x


def stateful_graph(seed: int) -> TfliteCase:
    """A convolution over a window of the last frames: a variable keeps all but the newest, and a
    subgraph that runs once fills it."""
    net = DrawnNetwork(seed)
    frames, channels = net.integer(2, 6), net.integer(2, 9)
    x = net.given(1, net.integer(1, frames), 1, channels)
    fresh = x.shape[1]
    assert x.scale is not None
    assert x.zero_point is not None
    scale, zero_point = float(x.scale[0]), int(x.zero_point[0])
    names = {"container": "", "shared_name": "window"}
    with net.subgraph("fill") as fill:
        start = net.constant(
            np.full((1, frames, 1, channels), zero_point, np.int8), scale, zero_point
        )
        place = net.tensor((), dtype="resource")
        net.operator("VAR_HANDLE", [], [place], **names)
        net.operator("ASSIGN_VARIABLE", [place, start], [])
    net.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
    place = net.tensor((), dtype="resource")
    net.operator("VAR_HANDLE", [], [place], **names)
    old = net.tensor((1, frames, 1, channels), scale, zero_point)
    net.operator("READ_VARIABLE", [place], [old])
    net.keep(old, old.real(net.rng.integers(-128, 128, old.shape)))
    window = net.apply("CONCATENATION", old, x, axis=1)
    given = [net.values([0, fresh, 0, 0]), net.values([1, frames, 1, channels])]
    kept = net.apply("SLICE", window, *given, shape=old.shape)
    net.operator("ASSIGN_VARIABLE", [place, kept], [])
    y = net.depthwise(window, (window.shape[1], 1), act="NONE", padding="VALID")
    y = net.conv(y, net.integer(2, 9))
    net.output(y)
    model = net.bytes()
    runs = [net.random_inputs(uniform=True) for _ in range(6)]
    return in_sequence(f"state {seed}", model, runs)


def in_sequence(name: str, model: bytes, runs: list[list[np.ndarray]]) -> TfliteCase:
    """A file with variables, one input and one output, and its results for ``runs``, one after
    another."""
    interpreter, wanted = open_reference(model), []
    for run in runs:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], run[0])
        interpreter.invoke()
        wanted.append([interpreter.get_tensor(interpreter.get_output_details()[0]["index"])])
    return TfliteCase("state", name, model, runs, wanted)


def kept_by_host() -> bytes:
    """A file with a variable whose new value the host computes, while a layer reads the old one."""
    file = TfliteFile()
    shape, scale, zero = (1, 6), 1 / 256, -128
    with file.subgraph("fill") as fill:
        start = file.constant(np.zeros(shape, np.int8), scale, zero)
        place = file.tensor((), dtype="resource")
        file.operator("VAR_HANDLE", [], [place], container="", shared_name="window")
        file.operator("ASSIGN_VARIABLE", [place, start], [])
    file.operator("CALL_ONCE", [], [], init_subgraph_index=fill)
    x, place = file.input(shape, scale, zero), file.tensor((), dtype="resource")
    file.operator("VAR_HANDLE", [], [place], container="", shared_name="window")
    old, total, shares = (file.tensor(shape, scale, zero) for _ in range(3))
    file.operator("READ_VARIABLE", [place], [old])
    file.operator("ADD", [old, x], [total])
    file.operator("SOFTMAX", [total], [shares], beta=1.0)
    file.operator("ASSIGN_VARIABLE", [place, shares], [])
    file.output(total)
    return file.bytes()
