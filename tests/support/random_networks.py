"""Quantized networks with random weights, as costly as trained networks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layer:
    """A convolution with a square kernel, padded so that a stride of 1 keeps the size."""

    outputs: int
    kernel: int
    stride: int = 1
    relu: bool = True
    depthwise: bool = False


class QuantizedNetwork:
    """A builder of a network with random weights; ``value`` is the last result.

    ``form`` is ``qdq`` or ``qoperator``; ``dtype`` is the type of all activations. With ``steady``,
    weights are scaled so that activations keep their magnitude from layer to layer, as deep
    networks need. With ``moved``, operators between DequantizeLinear and the product move weights;
    with ``small``, weights have four bits. Both require the form ``qdq``. With ``asymmetric``, most
    weights have zero points off the middle of their range, all of which they use.
    """

    def __init__(
        self,
        seed: int,
        form: str,
        dtype: Any,
        shape: tuple[int, int, int],
        steady: bool = False,
        moved: bool = False,
        small: bool = False,
        asymmetric: bool = False,
    ) -> None:
        self._steady, self._small = steady, small
        # Separate generators keep networks without moves and zero points unchanged.
        self._moves = random.Random(seed) if moved else None
        self._zeros = np.random.default_rng(seed) if asymmetric else None
        self.choose = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.form, self.dtype = form, np.dtype(dtype)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shape: tuple[int, ...] = (1, *shape)
        self.input_shape = self.shape
        # Standard deviation of the values, and their quantization.
        self.deviation = 1.0
        self.scale, self.zero = self.quantization(relu=False)
        self.value = self.node("QuantizeLinear", "x", *self.parameters("x", self.scale, self.zero))

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def constant(self, what: str, value: Any, dtype: Any = None) -> str:
        name = f"{what}_{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def parameters(self, what: str, scale: Any, zero: Any, dtype: Any = None) -> tuple[str, str]:
        self.last = (
            self.constant(f"{what}_scale", scale, np.float32),
            self.constant(f"{what}_zero_point", zero, dtype or self.dtype),
        )
        return self.last

    def quantization(self, relu: bool) -> tuple[float, int]:
        limits = np.iinfo(self.dtype)
        scale = self.deviation * (3 if relu else 6) / 255 * self.choose.uniform(0.5, 1.3)
        middle = limits.min if relu else (limits.min + limits.max + 1) // 2
        zero = self.choose.choice([middle, middle, middle + self.choose.randint(-40, 40)])
        return scale, int(np.clip(zero, limits.min, limits.max))

    def weights(self, outputs: int, *shape: int) -> tuple[Array, Array, Array, Array]:
        """Weights, their scales, their zero points, and an integer bias."""
        # ONNX Runtime has no QLinearConv of int8 with uint8 weights.
        known = self.form == "qdq" or self.dtype == np.uint8
        unsigned = known and self.choose.random() < 0.3
        signed = self.numbers.integers(-127, 128, (outputs, *shape))
        # 73 is the standard deviation of the weights in integers.
        usual = 1 / (73 * np.prod(shape) ** 0.5)
        low, high = (0.2 * usual, 1.8 * usual) if self._steady else (0.002, 0.02)
        scale = self.numbers.uniform(low, high, outputs if self.choose.random() < 0.6 else ())
        dtype = np.uint8 if unsigned else np.int8
        middle = 128
        if self._small:
            dtype = ml_dtypes.uint4 if unsigned else ml_dtypes.int4
            signed, scale, middle = signed // 16, scale * 16, 8
        zero = np.full(scale.shape, middle if unsigned else 0, dtype)
        if self._zeros is not None and self._zeros.random() < 0.8:
            moved = self._zeros.integers(-50, 50, scale.shape)
            zero = (zero + moved).astype(dtype)
            # From -128 to 127 with the zero point subtracted from both.
            moved = moved.reshape(*moved.shape, *[1] * (signed.ndim - moved.ndim))
            signed = np.where(signed < 0, signed * (128 + moved), signed * (127 - moved)) // 127
            signed = (signed + moved).clip(-128, 127)
        bias = self.numbers.integers(-4000, 4000, outputs).astype(np.int32)
        weights = (signed + middle if unsigned else signed).astype(dtype)
        self.deviation *= 73 * scale.mean() * np.prod(shape) ** 0.5
        return weights, scale.astype(np.float32), zero, bias

    def anchor(self, operator: str, data: tuple[Array, ...], relu: bool, **attributes: Any) -> None:
        """A quantized Conv or Gemm with ``data`` as returned by `weights`."""
        weights, w_scale, w_zero, bias = data
        source, x_scale, x_zero = self.value, self.scale, self.zero
        self.scale, self.zero = self.quantization(relu)
        x = self.parameters("x", x_scale, x_zero)
        b_name = self.constant("bias", bias)
        if self.form == "qoperator" and operator == "Conv":
            w_name = self.constant("weight", weights)
            w = self.parameters("weight", w_scale, w_zero, w_zero.dtype)
            y = self.parameters("y", self.scale, self.zero)
            inputs = (source, *x, w_name, *w, *y, b_name)
            self.value = self.node("QLinearConv", *inputs, **attributes)
            return
        b_scale = self.constant("bias_scale", np.float32(x_scale) * w_scale)
        axis: dict[str, Any] = {"axis": 0} if w_scale.ndim else {}
        value = self.node(
            operator,
            self.node("DequantizeLinear", source, *x),
            self._dequantized_weights(weights, w_scale, w_zero),
            self.node("DequantizeLinear", b_name, b_scale, **axis),
            **attributes,
        )
        if relu:
            value = self.node("Relu", value)
        elif self.choose.random() < 0.3:
            bounds = (-2 * self.deviation, self.deviation)
            value = self.node("Clip", value, *(self.constant("c", b, np.float32) for b in bounds))
        y = self.parameters("y", self.scale, self.zero)
        self.value = self.node("QuantizeLinear", value, *y)

    def _dequantized_weights(self, weights: Array, scale: Array, zero: Array) -> str:
        """Dequantize weights; they may be stored in another layout, followed by operators that
        restore it.
        """
        shape, rank = weights.shape, weights.ndim

        def dequantized(values: Array, rows: slice = slice(None), axis: int = 0) -> str:
            own = [item[rows] if item.ndim else item for item in (scale, zero)]
            w = self.parameters("weight", *own, zero.dtype)
            along: dict[str, Any] = {"axis": axis} if scale.ndim else {}
            return self.node("DequantizeLinear", self.constant("weight", values), *w, **along)

        def sizes(*numbers: int) -> str:
            return self.constant("sizes", numbers, np.int64)

        move = (
            self._moves.choice(["Transpose", "Reshape", "Concat", "Slice"]) if self._moves else ""
        )
        match move:
            case "Transpose":
                assert self._moves is not None
                order = self._moves.sample(range(rank), rank)
                stored = np.ascontiguousarray(weights.transpose(order))
                back = [order.index(axis) for axis in range(rank)]
                return self.node("Transpose", dequantized(stored, axis=back[0]), perm=back)
            case "Reshape":
                flat = dequantized(weights.reshape(shape[0], -1))
                return self.node("Reshape", flat, sizes(*shape))
            case "Concat" if shape[0] > 1:
                half = shape[0] // 2
                parts = [
                    dequantized(weights[rows], rows) for rows in (slice(half), slice(half, None))
                ]
                return self.node("Concat", *parts, axis=0)
            case "Slice":
                wide = dequantized(np.concatenate([weights, weights], axis=rank - 1))
                end = shape[-1]
                return self.node("Slice", wide, sizes(0), sizes(end), sizes(rank - 1))
        return dequantized(weights)

    def in_float(self, operator: str, *inputs: str, relu: bool, **attributes: Any) -> None:
        """A float operator whose result is quantized."""
        value = self.node(operator, *inputs, **attributes)
        if relu:
            value = self.node("Relu", value)
        self.scale, self.zero = self.quantization(relu)
        y = self.parameters("y", self.scale, self.zero)
        self.value = self.node("QuantizeLinear", value, *y)

    def dequantized(self) -> str:
        x = self.parameters("x", self.scale, self.zero)
        return self.node("DequantizeLinear", self.value, *x)

    def convolution(
        self,
        outputs: int,
        kernel: tuple[int, int],
        strides: tuple[int, int],
        pads: tuple[int, int, int, int],
        relu: bool,
        groups: int = 1,
    ) -> None:
        data = self.weights(outputs, self.shape[1] // groups, *kernel)
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "group": groups}
        self.anchor("Conv", data, relu, **attributes)
        self.shape = (1, outputs, *self.size(kernel, strides, pads))

    def layer(self, layer: Layer) -> None:
        kernel, strides = (layer.kernel, layer.kernel), (layer.stride, layer.stride)
        pad = layer.kernel // 2
        groups = self.shape[1] if layer.depthwise else 1
        self.convolution(layer.outputs, kernel, strides, (pad, pad, pad, pad), layer.relu, groups)

    def size(
        self, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int, int, int]
    ) -> list[int]:
        return [
            (extent + pads[axis] + pads[2 + axis] - kernel[axis]) // strides[axis] + 1
            for axis, extent in enumerate(self.shape[2:])
        ]

    def add(self, branch: str, deviation: float, relu: bool) -> None:
        """Adds ``branch``, in float."""
        # Operands of about the same magnitude, so that neither is lost in rounding.
        self.deviation = max(self.deviation, deviation)
        self.in_float("Add", branch, self.dequantized(), relu=relu)

    def join(self, branch: str, deviation: float, channels: int) -> None:
        """Concatenate ``branch``, float with this many ``channels``, and the last result."""
        self.deviation = max(self.deviation, deviation)
        self.in_float("Concat", branch, self.dequantized(), relu=False, axis=1)
        self.shape = (1, channels + self.shape[1], *self.shape[2:])

    def average(self) -> None:
        self.in_float("GlobalAveragePool", self.dequantized(), relu=False)
        self.shape = (*self.shape[:2], 1, 1)

    def pooling(
        self,
        kernel: tuple[int, int],
        strides: tuple[int, int],
        pads: tuple[int, int, int, int],
        rounded_up: bool = False,
    ) -> None:
        """A MaxPool. If ``rounded_up``, its last windows extend beyond the padding, unless they
        would begin outside of the image.
        """
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
        self.value = self.node("MaxPool", self.value, **attributes, ceil_mode=int(rounded_up))  # type: ignore[arg-type]
        sizes = self.size(kernel, strides, pads)
        for axis, extent in enumerate(self.shape[2:]):
            next_window = sizes[axis] * strides[axis]
            padded = extent + pads[axis] + pads[2 + axis]
            rest = next_window - strides[axis] + kernel[axis] < padded
            sizes[axis] += rounded_up and rest and next_window < extent + pads[axis]
        self.shape = (1, self.shape[1], *sizes)

    def matrix_product(self, outputs: int, relu: bool) -> None:
        features = int(np.prod(self.shape[1:]))
        self.value = self.node("Flatten", self.value)
        data = self.weights(outputs, features)
        if self.form == "qdq":
            self.anchor("Gemm", data, relu, transB=1)
            return
        x = self.parameters("x", self.scale, self.zero)
        weights, w_scale, w_zero, _ = data
        w = self.parameters("weight", w_scale, w_zero, w_zero.dtype)
        self.scale, self.zero = self.quantization(relu=False)
        y = self.parameters("y", self.scale, self.zero)
        w_name = self.constant("weight", np.ascontiguousarray(weights.T))
        self.value = self.node("QLinearMatMul", self.value, *x, w_name, *w, *y)

    # Operators that only move elements.

    def move(self) -> None:
        """Append one data-movement operator, on integers or, in a QDQ file, perhaps on floats."""
        kinds = [self._slice, self._flip, self._pad, self._wrap, self._gather]
        channels, height, width = self.shape[1:]
        if channels % 4 == 0:
            kinds += [self._depth_to_space, self._pixel_shuffle]
        if height % 2 == 0 and width % 2 == 0:
            kinds += [self._space_to_depth, self._focus]
        in_float = self.form == "qdq" and self.choose.random() < 0.5
        if in_float:
            self.value = self.dequantized()
        self.choose.choice(kinds)()
        if in_float:
            x = self.parameters("x", self.scale, self.zero)
            self.value = self.node("QuantizeLinear", self.value, *x)

    def _moved(
        self, shape: tuple[int, ...], operator: str, *inputs: str, **attributes: Any
    ) -> None:
        self.value = self.node(operator, self.value, *inputs, **attributes)
        self.shape = shape

    def _integers(self, *values: Any) -> list[str]:
        return [self.constant("i", value, np.int64) for value in values]

    def _sliced(self, axis: int, start: int, end: int, step: int) -> None:
        bounds = self._integers(*([value] for value in (start, end, axis, step)))
        shape = list(self.shape)
        shape[axis] = len(range(shape[axis])[start:end:step])
        self._moved(tuple(shape), "Slice", *bounds)

    def _slice(self) -> None:
        axis = self.choose.choice([1, 2, 3])
        size, step = self.shape[axis], self.choose.choice([1, 2, 3, -1, -2])
        low = self.choose.randrange(max(size // 2, 1))
        start, end = (low, 10**6) if step > 0 else (size - 1 - low, -(10**6))
        self._sliced(axis, start, end, step)

    def _flip(self) -> None:
        self._sliced(self.choose.choice([2, 3]), -1, -(10**6), -1)

    def _pad(self) -> None:
        mode = self.choose.choice(["reflect", "edge", "constant"])
        room = min(2, *(extent - 1 for extent in self.shape[2:]))
        least = -1 if min(self.shape[2:]) > 3 else 0
        amounts = [self.choose.randint(least, max(room, 0)) for _ in range(4)]
        pads = [0, 0, *amounts[:2], 0, 0, *amounts[2:]]
        top, left, bottom, right = amounts
        shape = *self.shape[:2], self.shape[2] + top + bottom, self.shape[3] + left + right
        value = [self.constant("v", 0, np.float32)] if self._is_float() else []
        value = value or [self.constant("v", self.zero, self.dtype)]
        given = value if mode == "constant" else []
        self._moved(shape, "Pad", *self._integers(pads), *given, mode=mode)

    def _is_float(self) -> bool:
        return self.nodes[-1].op_type == "DequantizeLinear"

    def _wrap(self) -> None:
        """Circular padding, written as Slice and Concat."""
        axis, whole = self.choose.choice([2, 3]), (self.value, self.shape)
        count = self.choose.randint(1, self.shape[axis])
        self._sliced(axis, -count, 10**6, 1)
        before = self.value
        self.value, self.shape = whole
        self._sliced(axis, 0, 1, 1)
        after = self.value
        self.value, self.shape = before, whole[1]
        shape = list(self.shape)
        shape[axis] += count + 1
        self._moved(tuple(shape), "Concat", whole[0], after, axis=axis)

    def _gather(self) -> None:
        axis = self.choose.choice([1, 2, 3])
        chosen = [self.choose.randrange(self.shape[axis]) for _ in range(self.choose.randint(1, 6))]
        shape = list(self.shape)
        shape[axis] = len(chosen)
        self._moved(tuple(shape), "Gather", *self._integers(chosen), axis=axis)

    def _depth_to_space(self) -> None:
        _, c, h, w = self.shape
        mode = self.choose.choice(["DCR", "CRD"])
        self._moved((1, c // 4, 2 * h, 2 * w), "DepthToSpace", blocksize=2, mode=mode)

    def _space_to_depth(self) -> None:
        _, c, h, w = self.shape
        self._moved((1, 4 * c, h // 2, w // 2), "SpaceToDepth", blocksize=2)

    def _pixel_shuffle(self) -> None:
        _, c, h, w = self.shape
        before, after = self._integers([0, c // 4, 2, 2, h, w], [0, c // 4, 2 * h, 2 * w])
        self.value = self.node("Reshape", self.value, before)
        self.value = self.node("Transpose", self.value, perm=[0, 1, 4, 2, 5, 3])
        self._moved((1, c // 4, 2 * h, 2 * w), "Reshape", after)

    def _focus(self) -> None:
        _, c, h, w = self.shape
        image, parts = self.value, []
        for row, column in self.choose.sample([(0, 0), (0, 1), (1, 0), (1, 1)], 4):
            bounds = self._integers([row, column], [10**6, 10**6], [2, 3], [2, 2])
            parts.append(self.node("Slice", image, *bounds))
        self.value = parts[0]
        self._moved((1, 4 * c, h // 2, w // 2), "Concat", *parts[1:], axis=1)

    def model(self) -> onnx.ModelProto:
        """Ends the network."""
        self.node("DequantizeLinear", self.value, *self.last, output="y")
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *self.input_shape[1:]])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(data, name) for name, data in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 21 if self._small else 17)]
        version = 10 if self._small else 8
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        output = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
        model.graph.output[0].type.tensor_type.shape.CopyFrom(output.shape)
        return model

    def images(self, count: int) -> Array:
        return self.numbers.normal(0, 1, (count, *self.input_shape[1:])).astype(np.float32)


def residual_network(
    dtype: Any, shape: tuple[int, int, int], blocks: list[tuple[int, int]], classes: int
) -> QuantizedNetwork:
    """A ResNet: a 7×7 first layer, pooling, basic blocks, an average and a product.

    ``shape`` is the shape of an image (channels, height, width); ``blocks`` lists the channels and
    stride of each block. A block with a stride has a 1×1 convolution on its shortcut.
    """
    network = _stem(QuantizedNetwork(1, "qdq", dtype, shape), blocks[0][0])
    for channels, stride in blocks:
        first, second = Layer(channels, 3, stride), Layer(channels, 3, relu=False)
        _residual(network, [first, second], relu=True)
    return _classifier(network, classes)


def _stem(network: QuantizedNetwork, channels: int) -> QuantizedNetwork:
    """The beginning of a ResNet."""
    network.layer(Layer(channels, 7, 2))
    network.pooling((3, 3), (2, 2), (1, 1, 1, 1))
    return network


def _residual(network: QuantizedNetwork, body: list[Layer], relu: bool) -> None:
    """Add the results of ``body`` to its input, which passes through a 1×1 convolution if its size
    or number of channels differs.
    """
    begin = network.value, network.scale, network.zero, network.deviation, network.shape
    branch = network.dequantized()
    stride = max(layer.stride for layer in body)
    if stride > 1 or network.shape[1] != body[-1].outputs:
        network.layer(Layer(body[-1].outputs, 1, stride, relu=False))
        branch = network.dequantized()
    deviation = network.deviation
    network.value, network.scale, network.zero, network.deviation, network.shape = begin
    for layer in body:
        network.layer(layer)
    network.add(branch, deviation, relu=relu)


def _classifier(network: QuantizedNetwork, classes: int) -> QuantizedNetwork:
    network.average()
    network.matrix_product(classes, relu=False)
    return network
