"""Networks as exported after quantization-aware training: values of few bits by QuantizeLinear,
Clip and DequantizeLinear, and products followed by BatchNormalization or with a bias in float.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

_CHANNELS, _PIXELS, _INNER = 8, 4, 16


@dataclass(frozen=True)
class FewBits:
    """Two convolutions and a matrix product with ``classes`` results; ``weights`` and
    ``activations`` are bit widths. ``normalized`` networks have BatchNormalization with factors of
    both signs, others a float bias. ``depthwise`` adds a convolution; ``shifts`` makes all scales
    powers of two.
    """

    weights: int
    activations: int
    normalized: bool = True
    depthwise: bool = False
    per_channel: bool = False
    shifts: bool = False
    classes: int = 200

    def model(self) -> onnx.ModelProto:
        return _Writer(self).model()

    def images(self, count: int) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng(1)
        return rng.normal(0, 1, (count, _CHANNELS, _PIXELS, _PIXELS)).astype(np.float32)


@dataclass
class _Writer:
    form: FewBits
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def model(self) -> onnx.ModelProto:
        last = 2 ** (self.form.activations - 1) - 1
        scale = 2.5 / last
        name = self._quantized("x", scale)
        name = self._quantized(self._convolution(name, _CHANNELS, _INNER, 3), scale)
        if self.form.depthwise:
            name = self._quantized(self._convolution(name, _INNER, _INNER, 3, _INNER), scale)
        name = self._quantized(self._convolution(name, _INNER, _CHANNELS, 1), scale)
        flat = self._node("Flatten", name)
        weights = self._weights(self.form.classes, _CHANNELS * _PIXELS**2)
        name = self._node("Gemm", flat, weights, self._bias(self.form.classes), transB=1)
        name = self._quantized(name, 0.06, bits=8)
        given: list[str | int | None] = ["N", _CHANNELS, _PIXELS, _PIXELS]
        made: list[str | int | None] = ["N", self.form.classes]
        graph = helper.make_graph(
            self.nodes,
            "few_bits",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, given)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, made)],
            self.constants,
        )
        opsets = [helper.make_opsetid("", 13)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = f"{operator}{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [f"{result}_out"], name=result, **attributes)
        )
        return f"{result}_out"

    def _constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def _scale(self, value: npt.ArrayLike) -> str:
        scale = np.asarray(value, np.float64)
        return self._constant(np.exp2(np.round(np.log2(scale))) if self.form.shifts else scale)

    def _quantized(self, name: str, scale: float, bits: int | None = None) -> str:
        bits = bits or self.form.activations
        given = self._scale(scale), self._constant(0, np.int8)
        name = self._node("QuantizeLinear", name, *given)
        if bits < 8:
            limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            name = self._node("Clip", name, *(self._constant(end, np.int8) for end in limits))
        return self._node("DequantizeLinear", name, *given)

    def _weights(self, *shape: int) -> str:
        end = 2 ** (self.form.weights - 1)
        values = self._constant(self.rng.integers(1 - end, end, shape), np.int8)
        scale = np.float64(2 / end / np.sqrt(np.prod(shape[1:]) / 3))
        if not self.form.per_channel:
            return self._node("DequantizeLinear", values, self._scale(scale))
        of_channels = scale * self.rng.uniform(0.5, 1.5, shape[0])
        return self._node("DequantizeLinear", values, self._scale(of_channels), axis=0)

    def _bias(self, channels: int) -> str:
        return self._constant(self.rng.normal(0, 0.7, channels))

    def _convolution(self, name: str, given: int, made: int, size: int, groups: int = 1) -> str:
        weights = self._weights(made, given // groups, size, size)
        attributes: dict[str, Any] = {"group": groups, "pads": [size // 2] * 4}
        if not self.form.normalized:
            biased = self._node("Conv", name, weights, self._bias(made), **attributes)
            return self._node("Relu", biased)
        plain = self._node("Conv", name, weights, **attributes)
        gamma = self.rng.uniform(0.5, 1.5, made) * self.rng.choice([-1, 1], made)
        values = gamma, self.rng.normal(0, 0.5, made), self.rng.normal(0, 0.5, made)
        constants = [self._constant(value) for value in (*values, self.rng.uniform(0.5, 2, made))]
        return self._node("Relu", self._node("BatchNormalization", plain, *constants))


def small_channel(
    convolves: bool = True, small: float = 5.7e-6, terms: int = 1000
) -> onnx.ModelProto:
    """A product of ``terms`` in which two channels have only positive weights and a ``small``
    scale.
    """
    writer = _Writer(FewBits(8, 8))
    rng, low = np.random.default_rng(0), -128
    weights = rng.integers(-127, 128, (16, terms)).astype(np.int8)
    weights[[3, 9]] = 127
    scale = np.full(16, 1e-3)
    scale[[3, 9]] = small
    ends = (writer._constant(0.02), writer._constant(low, np.int8))
    out = (writer._constant(0.05), writer._constant(low, np.int8))
    real = writer._node("DequantizeLinear", writer._node("QuantizeLinear", "x", *ends), *ends)
    values = weights.reshape(16, terms, 1, 1) if convolves else weights
    factor = writer._node(
        "DequantizeLinear", writer._constant(values, np.int8), writer._constant(scale), axis=0
    )
    product = (
        writer._node("Conv", real, factor)
        if convolves
        else writer._node("Gemm", real, factor, transB=1)
    )
    made = writer._node("QuantizeLinear", writer._node("Relu", product), *out)
    name = writer._node("DequantizeLinear", made, *out)
    pixels = [2, 2] if convolves else []
    graph = helper.make_graph(
        writer.nodes,
        "small_channel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, terms, *pixels])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, *pixels])],
        writer.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
