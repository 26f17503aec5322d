"""Builds float networks with random weights of realistic statistics: `FloatNetwork`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

Array = npt.NDArray[Any]

# Root mean square of the results of each activation for standard normal inputs.
_ACTIVATED = {"Relu": 0.7, "Relu6": 0.7, "HardSwish": 0.6, "Silu": 0.6, "Gelu": 0.65, "Erf": 0.65}
# Constants of up to this many elements are given to shape inference.
_SMALL = 16
_DEAD, _FADED = 0.02, (-30.0, -6.0)  # share of dead channels; log10 of their weight scale


@dataclass(frozen=True)
class Value:
    """A float tensor of the network; ``rms`` is its approximate root mean square."""

    name: str
    shape: tuple[int, ...]
    rms: float = 1.0


class FloatNetwork:
    """A builder of a float network; `model` returns it.

    Weights are scaled so that the results of all layers have about the same magnitude, as
    normalization ensures in training. They have long tails, channels differ in scale, and one in
    fifty is dead: its weights are nearly zero. ``width`` multiplies the number of channels. All
    random numbers derive from ``seed``.
    """

    def __init__(self, name: str, seed: int, opset: int = 17, width: float = 1.0) -> None:
        self._name, self._opset, self._width = name, opset, width
        self._rng = np.random.default_rng(seed)
        # Name, ONNX type, sizes, and by position the names of open dimensions.
        self._inputs: list[tuple[str, int, tuple[int, ...], Mapping[int, str]]] = []
        self._open_outputs: dict[str, Mapping[int, str]] = {}
        self._kinds: dict[str, int] = {}  # ONNX types by tensor
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}
        self._parts: list[str] = []
        self._taken: dict[str, int] = {}

    # Inputs and outputs.

    def image(self, *shape: int) -> Value:
        """The input ``image`` (N, *shape) with an open number of images."""
        return self._input("image", TensorProto.FLOAT, (1, *shape), {0: "n"})

    def tokens(self, name: str, length: int, dimension: str = "") -> Value:
        """An int64 input of shape (1, length); a named ``dimension`` is open in the model."""
        names = {1: dimension} if dimension else {}
        return self._input(name, TensorProto.INT64, (1, length), names)

    def past(self, name: str, dimension: str, *shape: int) -> Value:
        """A float input of shape (1, heads, length, width), a cache, whose length is an open
        ``dimension``.
        """
        return self._input(name, TensorProto.FLOAT, (1, *shape), {2: dimension})

    @property
    def dimensions(self) -> dict[str, int]:
        """The sizes of open dimensions for which the network was built."""
        return {
            name: shape[position]
            for *_, shape, names in self._inputs
            for position, name in names.items()
        }

    def named(self, name: str, x: Value, dimensions: Mapping[int, str] | None = None) -> Value:
        """Rename ``x`` to ``name``, for use as an output, with names of open ``dimensions``."""
        self._open_outputs[name] = dimensions or {}
        self._nodes.append(helper.make_node("Identity", [x.name], [name], name=name))
        self._kinds[name] = self._kinds[x.name]
        return Value(name, x.shape, x.rms)

    def channels(self, count: int) -> int:
        """``count`` times the width of the network, rounded to a multiple of eight, as is usual."""
        return count if self._width == 1 else max(8, round(count * self._width / 8) * 8)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A context that prefixes the names of operators with ``name``."""
        self._parts.append(name)
        yield
        self._parts.pop()

    def model(self, *outputs: Value) -> onnx.ModelProto:
        """The finished network with these ``outputs``, after ONNX's checker."""
        inputs = []
        for name, kind, shape, names in self._inputs:
            sizes: list[str | int | None] = [names.get(at, size) for at, size in enumerate(shape)]
            inputs.append(helper.make_tensor_value_info(name, kind, sizes))
        made = []
        for item in outputs:
            names = self._open_outputs.get(item.name, {})
            sizes = [names.get(at, size) for at, size in enumerate(item.shape)]
            known = sizes if names else None
            made.append(helper.make_tensor_value_info(item.name, TensorProto.FLOAT, known))
        constants = [numpy_helper.from_array(data, name) for name, data in self._constants.items()]
        graph = helper.make_graph(self._nodes, self._name, inputs, made, constants)
        opsets = [helper.make_opsetid("", self._opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        model = shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(model)
        return model

    # Operators.

    def node(
        self, operator: str, *inputs: Value | str, rms: float = 0.0, **attributes: Any
    ) -> Value:
        """The only result of an ONNX operator; ``rms`` is by default that of the first input.

        Inputs may also be names of constants, and "" for an absent optional input.
        """
        return self.nodes(operator, *inputs, rms=rms, **attributes)[0]

    def nodes(
        self,
        operator: str,
        *inputs: Value | str,
        results: int = 1,
        rms: float = 0.0,
        **attributes: Any,
    ) -> list[Value]:
        """All results of an operator."""
        names = [item.name if isinstance(item, Value) else item for item in inputs]
        own = self._unused(operator.lower())
        outputs = [f"{own}:{index}" if results > 1 else own for index in range(results)]
        node = helper.make_node(operator, names, outputs, name=own, **attributes)
        self._nodes.append(node)
        rms = rms or next(item.rms for item in inputs if isinstance(item, Value))
        return [Value(name, shape, rms) for name, shape in self._shapes(node, inputs)]

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        own = self._unused(name)
        self._constants[own] = np.asarray(value, dtype)
        return own

    def conv(
        self,
        x: Value,
        outputs: int,
        kernel: int | tuple[int, ...] = 1,
        stride: int | tuple[int, ...] = 1,
        act: str = "Relu",
        groups: int = 1,
        pads: int | None = None,
    ) -> Value:
        """A convolution with bias and an activation (none if ``act`` is empty). Default padding
        keeps the size at stride 1.
        """
        axes = len(x.shape) - 2
        kernels = (kernel,) * axes if isinstance(kernel, int) else kernel
        strides = (stride,) * axes if isinstance(stride, int) else stride
        edges = [k // 2 if pads is None else pads for k in kernels] * 2
        y = self.node(
            "Conv",
            x,
            self.weights(outputs, x.shape[1] // groups, *kernels, rms=x.rms),
            self._bias(outputs),
            rms=1.0,
            kernel_shape=kernels,
            strides=strides,
            pads=edges,
            group=groups,
        )
        return self.activation(y, act)

    def depthwise(self, x: Value, kernel: int, stride: int = 1, act: str = "Relu") -> Value:
        return self.conv(x, x.shape[1], kernel, stride, act, groups=x.shape[1])

    def conv_transpose(self, x: Value, outputs: int, act: str = "Relu") -> Value:
        """A transposed convolution with a 2×2 kernel that doubles height and width."""
        weights = self.weights(outputs, x.shape[1], 2, 2, rms=x.rms * 0.5)
        self._constants[weights] = self._constants[weights].swapaxes(0, 1).copy()
        sizes: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        y = self.node("ConvTranspose", x, weights, self._bias(outputs), rms=1.0, **sizes)
        return self.activation(y, act)

    def gemm(self, x: Value, outputs: int, act: str = "") -> Value:
        """A fully connected layer on rows, exported as Gemm."""
        weights = self.weights(outputs, x.shape[1], rms=x.rms)
        y = self.node("Gemm", x, weights, self._bias(outputs), rms=1.0, transB=1)
        return self.activation(y, act)

    def linear(self, x: Value, outputs: int, act: str = "") -> Value:
        """A fully connected layer on sequences, exported as MatMul, then Add."""
        y = self.node("Add", self.matmul(x, outputs), self._bias(outputs))
        return self.activation(y, act)

    def matmul(self, x: Value, outputs: int) -> Value:
        """Multiply by a constant matrix, without bias."""
        weights = self.weights(outputs, x.shape[-1], rms=x.rms)
        self._constants[weights] = self._constants[weights].T.copy()
        return self.node("MatMul", x, weights, rms=1.0)

    def activation(self, x: Value, act: str) -> Value:
        """An activation; composed of several ONNX operators if there is no single one."""
        rms = x.rms * _ACTIVATED.get(act, 1.0)
        match act:
            case "":
                return x
            case "Relu6":
                low, high = (self.constant(f"relu6_{bound}", bound) for bound in (0, 6))
                return self.node("Clip", x, low, high, rms=rms)
            case "Silu":
                return self.node("Mul", x, self.node("Sigmoid", x), rms=rms)
            case "Erf":  # Gelu before opset 20
                part = self.node("Erf", self.node("Div", x, self.constant("root2", 2**0.5)))
                grown = self.node("Mul", x, self.node("Add", part, self.constant("one", 1)))
                return self.node("Mul", grown, self.constant("half", 0.5), rms=rms)
        return self.node(act, x, rms=rms)

    def add(self, x: Value, y: Value) -> Value:
        return self.node("Add", x, y, rms=float(np.hypot(x.rms, y.rms)))

    def concat(self, parts: Sequence[Value], axis: int = 1) -> Value:
        rms = np.sqrt(np.mean([part.rms**2 for part in parts]))
        return self.node("Concat", *parts, axis=axis, rms=float(rms))

    def max_pool(
        self, x: Value, kernel: int | tuple[int, int], stride: int | tuple[int, int], pads: int = 0
    ) -> Value:
        kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
        strides = (stride, stride) if isinstance(stride, int) else stride
        return self.node("MaxPool", x, kernel_shape=kernels, strides=strides, pads=[pads] * 4)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.node("Reshape", x, self.constant("shape", shape, np.int64))

    def norm(self, x: Value) -> Value:
        """LayerNormalization over the last dimension."""
        size = x.shape[-1]
        scale = self.scales(size)
        bias = self.constant("bias", self._rng.normal(0, 0.1, size))
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5, rms=1.0)

    # Numbers.

    def scales(self, count: int) -> str:
        """A constant of scales per channel, around 1."""
        return self.constant("scale", self._rng.lognormal(0, 0.2, count))

    def weights(self, outputs: int, *shape: int, rms: float) -> str:
        """A constant (outputs, *shape), scaled so that inputs with ``rms`` lead to results with an
        rms of about 1.
        """
        tails = self._rng.standard_t(6, (outputs, *shape)) * np.sqrt(4 / 6)
        spread = self._rng.lognormal(0, 0.3, outputs)
        dead = self._rng.random(outputs) < _DEAD
        spread[dead] *= 10.0 ** self._rng.uniform(*_FADED, dead.sum())
        scaled = tails * spread.reshape(-1, *[1] * len(shape))
        return self.constant("weight", scaled / (rms * prod(shape) ** 0.5))

    def normal(self, name: str, *shape: int, deviation: float = 1.0) -> str:
        """A constant of normally distributed numbers."""
        return self.constant(name, self._rng.normal(0, deviation, shape))

    def _bias(self, outputs: int) -> str:
        return self.normal("bias", outputs, deviation=0.2)

    def _input(
        self, name: str, kind: int, shape: tuple[int, ...], names: Mapping[int, str]
    ) -> Value:
        self._inputs.append((name, kind, shape, names))
        self._kinds[name] = kind
        return Value(name, shape)

    def _unused(self, name: str) -> str:
        whole = ".".join([*self._parts, name])
        number = self._taken[whole] = self._taken.get(whole, 0) + 1
        return whole if number == 1 else f"{whole}{number}"

    def _shapes(
        self, node: onnx.NodeProto, inputs: Sequence[Value | str]
    ) -> list[tuple[str, tuple[int, ...]]]:
        types, data = {}, {}
        for item in inputs:
            if isinstance(item, Value):
                kind = self._kinds[item.name]
                types[item.name] = helper.make_tensor_type_proto(kind, item.shape)
            elif item:
                value = self._constants[item]
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                types[item] = helper.make_tensor_type_proto(kind, value.shape)
                if value.size <= _SMALL:
                    data[item] = numpy_helper.from_array(value, item)
        schema = defs.get_schema(node.op_type, self._opset, "")
        opsets = [helper.make_opsetid("", self._opset)]
        found = shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets)
        self._kinds |= {name: found[name].tensor_type.elem_type for name in node.output}
        return [
            (name, tuple(size.dim_value for size in found[name].tensor_type.shape.dim))
            for name in node.output
        ]
