"""TensorFlow Lite files of one operator each, with random shapes, options, scales and types:
`operator_cases`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from amaranth_vta.networks.tflite_file import TfliteTensor

from .tflite_files import DrawnNetwork, TfliteCase, case

Draw = Callable[[DrawnNetwork], list[TfliteTensor]]

# Draws of each operator, for each one draw of an operator with few options.
_PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_WEIGHTS = {**dict.fromkeys(_PRODUCTS, 5), "TRANSPOSE_CONV": 3, "ADD": 3, "MUL": 3, "SUB": 2}
_UINT8 = 0.2  # share of files with activations of uint8
_ATTEMPTS = 50


def operator_cases(seed: int, count: int) -> Iterator[TfliteCase]:
    """``count`` files that LiteRT's reference kernels accept; the operators take turns."""
    turns = [name for name in OPERATORS for _ in range(_WEIGHTS.get(name, 1))]
    random.Random(seed).shuffle(turns)
    for index in range(count):
        yield operator_case(turns[index % len(turns)], seed * 1_000_000 + index * _ATTEMPTS)


def operator_case(operator: str, seed: int) -> TfliteCase:
    """The first file of ``operator`` from ``seed`` on that LiteRT's reference kernels accept."""
    refusal = ""
    for attempt in range(seed, seed + _ATTEMPTS):
        dtype = "uint8" if random.Random(attempt).random() < _UINT8 else "int8"
        net = DrawnNetwork(attempt, dtype)
        try:
            return case(net, operator, f"{operator} {attempt}", OPERATORS[operator](net))
        except (RuntimeError, ValueError) as error:
            refusal = str(error)
    raise AssertionError(f"{operator}: LiteRT refuses {_ATTEMPTS} files; the last: {refusal}")


# Products.


def _sliding(net: DrawnNetwork) -> dict[str, object]:
    is_dilated = net.chance(0.2)
    return {
        "padding": net.choose.choice(("SAME", "VALID")),
        "stride_w": net.integer(1, 3),
        "stride_h": net.integer(1, 3),
        "dilation_w_factor": net.integer(1, 3) if is_dilated else 1,
        "dilation_h_factor": net.integer(1, 3) if is_dilated else 1,
        "fused_activation_function": net.activation(),
    }


def _part(net: DrawnNetwork) -> float:
    """The part of the results' range that does not saturate."""
    return net.choose.choice((1.0, 1.0, 0.5, 2.0))


def _weights_of(
    net: DrawnNetwork, x: TfliteTensor, shape: tuple[int, ...], axis: int, count: int
) -> list[TfliteTensor]:
    """Weights, with a scale for each channel or one, and usually a bias."""
    weights = net.weights(shape, axis, net.rms(x), per_channel=net.chance(0.7), dead=0.1)
    return [weights] if net.chance(0.15) else [weights, net.bias(x, weights, count)]


def _conv_2d(net: DrawnNetwork) -> list[TfliteTensor]:
    x, groups = net.image(), 1
    outputs = net.integer(1, 20)
    if net.chance(0.1):
        groups = net.integer(2, 4)
        outputs *= groups
        x = net.given(1, net.integer(3, 9), net.integer(3, 9), groups * net.integer(1, 5))
    shape = (outputs, net.integer(1, 5), net.integer(1, 5), x.shape[3] // groups)
    parts = _weights_of(net, x, shape, 0, outputs)
    return [net.apply("CONV_2D", x, *parts, part=_part(net), **_sliding(net))]


def _depthwise_conv_2d(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.image()
    multiplier = net.choose.choice((1, 1, 1, 2, 3))
    outputs = x.shape[3] * multiplier
    shape = (1, net.integer(1, 5), net.integer(1, 5), outputs)
    options = {**_sliding(net), "depth_multiplier": multiplier}
    if net.chance(0.8):  # LiteRT computes other strides too, but converters never write them.
        options["stride_h"] = options["stride_w"]
    parts = _weights_of(net, x, shape, 3, outputs)
    return [net.apply("DEPTHWISE_CONV_2D", x, *parts, part=_part(net), **options)]


def _fully_connected(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything(2, 4)
    keeps = net.chance(0.3)
    size = x.shape[-1] if keeps else int(np.prod(x.shape[1:]))
    outputs = net.integer(1, 40)
    parts = _weights_of(net, x, (outputs, size), 0, outputs)
    activation = net.activation()
    return [
        net.apply(
            "FULLY_CONNECTED",
            x,
            *parts,
            part=_part(net),
            keep_num_dims=keeps,
            fused_activation_function=activation,
        )
    ]


def _transpose_conv(net: DrawnNetwork) -> list[TfliteTensor]:
    x, outputs = net.image(most=6), net.integer(1, 12)
    kernels, strides = (
        (net.integer(1, 4), net.integer(1, 4)),
        (net.integer(1, 3), net.integer(1, 3)),
    )
    padding = net.choose.choice(("SAME", "VALID"))
    sizes = [
        size * stride if padding == "SAME" else (size - 1) * stride + kernel
        for size, kernel, stride in zip(x.shape[1:3], kernels, strides, strict=True)
    ]
    weights, *bias = _weights_of(net, x, (outputs, *kernels, x.shape[3]), 0, outputs)
    activation = net.activation()
    given = [net.values([x.shape[0], *sizes, outputs]), weights, x, *bias]
    return [
        net.apply(
            "TRANSPOSE_CONV",
            *given,
            part=_part(net),
            version=3 if activation == "NONE" else 4,
            padding=padding,
            stride_h=strides[0],
            stride_w=strides[1],
            fused_activation_function=activation,
        )
    ]


def _batch_matmul(net: DrawnNetwork) -> list[TfliteTensor]:
    rows, depth, columns = (net.integer(1, 12) for _ in range(3))
    adj_x, adj_y = net.chance(0.3), net.chance(0.3)
    batches = [net.integer(1, 3) for _ in range(net.integer(0, 2))]
    x = net.given(*batches, *((depth, rows) if adj_x else (rows, depth)))
    shape = (*batches, *((columns, depth) if adj_y else (depth, columns)))
    y = net.factors(net.rng.normal(0, 1, shape)) if net.chance(0.3) else net.given(*shape)
    return [net.apply("BATCH_MATMUL", x, y, adj_x=adj_x, adj_y=adj_y, part=_part(net))]


# Element-wise operators of two tensors.


def _other(net: DrawnNetwork, x: TfliteTensor) -> TfliteTensor:
    """A second operand: of the same shape or one that is broadcast, an input or a constant."""
    if net.chance(0.1):
        return x
    shape = _broadcast(net, x)
    if net.chance(0.3):
        return net.factors(np.asarray(net.rng.normal(0, net.rms(x) + 0.01, shape)))
    return net.given(*shape)


def _broadcast(net: DrawnNetwork, x: TfliteTensor) -> tuple[int, ...]:
    drawn = net.choose.random()
    if drawn < 0.6:
        return x.shape
    if drawn < 0.75:
        return x.shape[-1:]
    return tuple(size if net.chance(0.5) else 1 for size in x.shape)


def _of_two(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.anything()
        pair = [x, _other(net, x)]
        if net.chance(0.3):
            pair.reverse()
        activation = net.activation()
        return [net.apply(operator, *pair, part=_part(net), fused_activation_function=activation)]

    return draw


def _extreme(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.anything()
        y = net.like(x, *_broadcast(net, x), is_constant=net.chance(0.4))
        return [net.apply(operator, x, y)]

    return draw


# Pooling and reductions.


def _pool(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        height, width = net.integer(1, 4), net.integer(1, 4)
        x = net.image(least=max(height, width), most=9)
        if net.chance(0.15):
            _, height, width, _ = x.shape
        return [
            net.apply(
                operator,
                x,
                padding=net.choose.choice(("SAME", "VALID")),
                stride_w=net.integer(1, 3),
                stride_h=net.integer(1, 3),
                filter_width=width,
                filter_height=height,
                fused_activation_function=net.activation(),
            )
        ]

    return draw


def _reduction(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.anything(2, 4)
        axes = [1, 2] if len(x.shape) == 4 and net.chance(0.5) else _axes(net, x)
        if net.chance(0.3):
            axes = [axis - len(x.shape) for axis in axes]
        fit = operator != "REDUCE_MAX" and net.chance(0.7)
        given = net.values(axes)
        return [net.apply(operator, x, given, fit=fit, keep_dims=net.chance(0.5))]

    return draw


def _axes(net: DrawnNetwork, x: TfliteTensor) -> list[int]:
    count = net.integer(1, len(x.shape))
    return sorted(net.choose.sample(range(len(x.shape)), count))


def _arg_max(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    axis = net.integer(0, len(x.shape) - 1)
    kind = net.choose.choice(("INT32", "INT64"))
    return [net.apply("ARG_MAX", x, net.values(axis), output_type=kind)]


# Operators that move elements.


def _pad(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.anything(2, 4)
        ends = [[net.integer(0, 3), net.integer(0, 3)] for _ in x.shape]
        options = {}
        if operator == "MIRROR_PAD":
            options["mode"] = net.choose.choice(("REFLECT", "SYMMETRIC"))
            less = options["mode"] == "REFLECT"
            ends = [
                [min(end, size - less) for end in pair]
                for pair, size in zip(ends, x.shape, strict=True)
            ]
        elif len(x.shape) == 4:
            ends[0] = [0, 0]
        given = [net.constant(np.asarray(ends, net.choose.choice(("int32", "int64"))))]
        if operator == "PADV2":
            given.append(net.like(x, is_constant=True))
        return [net.apply(operator, x, *given, **options)]

    return draw


def _concatenation(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    axis = net.integer(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(net.integer(1, 3)):
        shape = [net.integer(1, 9) if other == axis else n for other, n in enumerate(x.shape)]
        if net.dtype == "uint8" and net.chance(0.5):
            parts.append(net.given(*shape))
        else:
            parts.append(net.like(x, *shape, is_constant=net.chance(0.15)))
    net.choose.shuffle(parts)
    axis -= len(x.shape) if net.chance(0.3) else 0
    return [net.apply("CONCATENATION", *parts, axis=axis)]


def _split(net: DrawnNetwork) -> list[TfliteTensor]:
    count, axis = net.integer(1, 4), net.integer(0, 3)
    sizes = [net.integer(1, 5) * (count if other == axis else 1) for other in range(4)]
    x = net.given(*sizes)
    given = net.values(axis - (4 if net.chance(0.3) else 0))
    return net.apply_all("SPLIT", given, x, count=count, num_splits=count)


def _split_v(net: DrawnNetwork) -> list[TfliteTensor]:
    axis = net.integer(0, 2)
    parts = [net.integer(1, 4) for _ in range(net.integer(1, 4))]
    x = net.given(*[sum(parts) if other == axis else net.integer(1, 6) for other in range(3)])
    if net.chance(0.3):
        parts[net.integer(0, len(parts) - 1)] = -1
    given = [x, net.values(parts), net.values(axis)]
    return net.apply_all("SPLIT_V", *given, count=len(parts), num_splits=len(parts))


def _slice(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    begins = [net.integer(0, size - 1) for size in x.shape]
    sizes = [net.integer(1, size - begin) for size, begin in zip(x.shape, begins, strict=True)]
    rests = [net.chance(0.3) for _ in sizes]
    given = [-1 if rest else size for size, rest in zip(sizes, rests, strict=True)]
    shape = [
        whole - begin if rest else size
        for whole, begin, size, rest in zip(x.shape, begins, sizes, rests, strict=True)
    ]
    return [net.apply("SLICE", x, net.values(begins), net.values(given), shape=shape)]


def _strided_slice(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    begins, ends, strides, masks = [], [], [], [0, 0, 0]
    for axis, size in enumerate(x.shape):
        stride = net.choose.choice((1, 1, 2, 3, -1, -2))
        first, last = net.integer(0, size - 1), net.integer(0, size - 1)
        first, last = min(first, last), max(first, last)
        if stride < 0:
            first, last = last, first
        end = last + (1 if stride > 0 else -1)
        for mask in range(2):
            masks[mask] |= (1 << axis) * net.chance(0.2)
        if end < 0:
            masks[1] |= 1 << axis
        if axis and net.chance(0.1):
            stride, end = 1, first + 1
            masks[2] |= 1 << axis
            masks[:2] = [mask & ~(1 << axis) for mask in masks[:2]]
        begins.append(first - (size if net.chance(0.2) else 0))
        ends.append(end)
        strides.append(stride)
    given = [net.values(items) for items in (begins, ends, strides)]
    names = ("begin_mask", "end_mask", "shrink_axis_mask")
    return [net.apply("STRIDED_SLICE", x, *given, **dict(zip(names, masks, strict=True)))]


def _reshape(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    count = int(np.prod(x.shape))
    factor = net.choose.choice([n for n in range(1, count + 1) if count % n == 0])
    shape = net.choose.choice(([factor, count // factor], [1, factor, -1], [-1], [count]))
    return [net.apply("RESHAPE", x, net.values(shape))]


def _squeeze(net: DrawnNetwork) -> list[TfliteTensor]:
    shape = [1 if net.chance(0.5) else net.integer(1, 9) for _ in range(4)]
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    chosen = ones if net.chance(0.6) else [axis - 4 for axis in ones]
    chosen = [] if net.chance(0.2) else chosen
    return [net.apply("SQUEEZE", net.given(*shape), squeeze_dims=chosen)]


def _expand_dims(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything(1, 3)
    return [net.apply("EXPAND_DIMS", x, net.values(net.integer(-1, len(x.shape))))]


def _transpose(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything(2, 4)
    order = list(range(len(x.shape)))
    net.choose.shuffle(order)
    return [net.apply("TRANSPOSE", x, net.values(order))]


def _pack(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything(1, 3)
    parts = [x, *(net.like(x, *x.shape) for _ in range(net.integer(0, 3)))]
    axis = net.integer(-1, len(x.shape))
    return [net.apply("PACK", *parts, values_count=len(parts), axis=axis)]


def _unpack(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.given(*(net.integer(1, 4) for _ in range(net.integer(2, 4))))
    axis = net.integer(0, len(x.shape) - 1)
    return net.apply_all("UNPACK", x, count=x.shape[axis], num=x.shape[axis], axis=axis)


def _gather(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.anything()
    axis = net.integer(0, len(x.shape) - 1)
    shape = [net.integer(1, 5) for _ in range(net.integer(0, 2))]
    indices = net.constant(net.rng.integers(0, x.shape[axis], shape).astype(np.int32))
    return [net.apply("GATHER", x, indices, axis=axis, batch_dims=0)]


def _resize(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.image(most=6)
        if net.chance(0.5):
            factor = net.integer(2, 3)
            sizes = [size * factor for size in x.shape[1:3]]
        else:
            sizes = [net.integer(1, 12), net.integer(1, 12)]
        corners = net.chance(0.3)
        centers = not corners and net.chance(0.5)
        given = net.values(sizes)
        return [net.apply(operator, x, given, align_corners=corners, half_pixel_centers=centers)]

    return draw


def _depth_to_space(net: DrawnNetwork) -> list[TfliteTensor]:
    block = net.integer(2, 3)
    x = net.image(net.integer(1, 5) * block**2, most=6)
    return [net.apply("DEPTH_TO_SPACE", x, block_size=block)]


def _space_to_depth(net: DrawnNetwork) -> list[TfliteTensor]:
    block = net.integer(2, 3)
    height, width = net.integer(1, 4) * block, net.integer(1, 4) * block
    x = net.given(1, height, width, net.integer(1, 6))
    return [net.apply("SPACE_TO_DEPTH", x, block_size=block)]


# Functions of one tensor.


def _function(operator: str) -> Draw:
    def draw(net: DrawnNetwork) -> list[TfliteTensor]:
        x = net.anything()
        options: dict[str, object] = {}
        if operator == "LEAKY_RELU":
            options["alpha"] = net.choose.choice((0.1, 0.01, 0.3, 0.5, 1.5))
        elif operator == "GELU":
            options["approximate"] = net.chance(0.5)
        elif operator == "SOFTMAX":
            options["beta"] = net.choose.choice((1.0, 1.0, 0.5, 2.0))
        return [net.apply(operator, x, part=_part(net), **options)]

    return draw


def _prelu(net: DrawnNetwork) -> list[TfliteTensor]:
    x = net.image()
    shape = (1, 1, x.shape[3]) if net.chance(0.7) else x.shape[1:]
    alpha = net.factors(net.rng.normal(0.2, 0.2, shape))
    return [net.apply("PRELU", x, alpha, part=_part(net))]


def _quantize(net: DrawnNetwork) -> list[TfliteTensor]:
    if net.chance(0.3):
        shape = [net.integer(1, 9) for _ in range(net.integer(1, 4))]
        x = net.input(shape, dtype="float32")
        net.inputs.append(x)
        net.keep(x, np.asarray(net.rng.normal(0, 1, shape), np.float32))
    else:
        x = net.anything()
    kind = net.choose.choice(("int8", "int8", "uint8"))
    return [net.apply("QUANTIZE", x, dtype=kind, part=_part(net))]


def _dequantize(net: DrawnNetwork) -> list[TfliteTensor]:
    return [net.apply("DEQUANTIZE", net.anything(), dtype="float32")]


_FUNCTIONS = (
    *("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU", "HARD_SWISH", "LOGISTIC"),
    *("TANH", "ELU", "GELU", "SOFTMAX"),
)
OPERATORS: dict[str, Draw] = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "FULLY_CONNECTED": _fully_connected,
    "TRANSPOSE_CONV": _transpose_conv,
    "BATCH_MATMUL": _batch_matmul,
    **{name: _of_two(name) for name in ("ADD", "SUB", "MUL")},
    **{name: _extreme(name) for name in ("MINIMUM", "MAXIMUM")},
    **{name: _pool(name) for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")},
    **{name: _reduction(name) for name in ("MEAN", "SUM", "REDUCE_MAX")},
    "ARG_MAX": _arg_max,
    **{name: _pad(name) for name in ("PAD", "PADV2", "MIRROR_PAD")},
    "CONCATENATION": _concatenation,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "TRANSPOSE": _transpose,
    "PACK": _pack,
    "UNPACK": _unpack,
    "GATHER": _gather,
    **{name: _resize(name) for name in ("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR")},
    "DEPTH_TO_SPACE": _depth_to_space,
    "SPACE_TO_DEPTH": _space_to_depth,
    **{name: _function(name) for name in _FUNCTIONS},
    "PRELU": _prelu,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
}
