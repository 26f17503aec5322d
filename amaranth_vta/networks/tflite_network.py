"""Builds quantized TensorFlow Lite networks with random weights: `TfliteNetwork`, `reference`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.load.tflite import ReferenceModel

from .tflite_file import Array, TfliteFile, TfliteTensor

# Operators whose result has the scale and zero point of their first quantized input, or must have.
_KEEPING = frozenset(
    (
        *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SPLIT", "SPLIT_V", "SLICE", "PACK"),
        *("STRIDED_SLICE", "UNPACK", "GATHER", "PAD", "PADV2", "MIRROR_PAD", "DEPTH_TO_SPACE"),
        *("SPACE_TO_DEPTH", "RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR", "MAX_POOL_2D"),
        *("AVERAGE_POOL_2D", "REDUCE_MAX", "MINIMUM", "MAXIMUM", "CONCATENATION"),
    )
)
# Scale and int8 zero point that the results of these operators must have.
_FIXED = {"SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
_MOST_BIAS = 1 << 24  # of dead channels, whose scales are tiny
_NARROWEST = 1e-3  # range; at smaller scales the kernel of SOFTMAX stops the process
_DEAD = 0.02  # share of dead channels


def reference(model: bytes, *inputs: Array) -> list[Array]:
    """The outputs of LiteRT's reference kernels for ``inputs``, in the order of the file (see
    `open_reference`).

    Raises `ModelError` if LiteRT refuses the model.
    """
    return ReferenceModel(model)(inputs)


class TfliteNetwork(TfliteFile):
    """A builder of a network that runs an example through each operator as it is added: in float,
    by LiteRT's reference kernels. The shape and range of the result determine the shape, scale and
    zero point of its tensor.

    Activations are of ``dtype``, int8 or uint8 as in files before 2019; weights have long tails and
    scales per channel or per tensor. All random numbers derive from ``seed``.
    """

    # The least and the greatest log10 of the weight scale of dead channels, relative to others.
    FADED = (-9.0, -6.0)

    def __init__(self, seed: int, dtype: str = "int8", description: str = "") -> None:
        super().__init__(description)
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self._examples: dict[int, Array] = {}
        self._open: set[int] = set()  # indices of tensors with an open number of images

    # Tensors.

    def example_input(self, example: Array, name: str = "", is_open: bool = False) -> TfliteTensor:
        """An input whose scale fits the float ``example``."""
        scale, zero_point = self.fitted(example)
        tensor = self.input(example.shape, scale, zero_point, self.dtype, name, is_open)
        if is_open:
            self._open.add(tensor.index)
        self.keep(tensor, example)
        return tensor

    def values(self, array: Sequence[int] | int, dtype: str = "int32") -> TfliteTensor:
        """A constant of integers, such as a shape or axes."""
        return self.constant(np.asarray(array, dtype))

    def factors(self, real: Array, axis: int | None = None, name: str = "") -> TfliteTensor:
        """A constant of ``real`` numbers of 8 bits, with one scale or one for each channel along
        ``axis``: symmetric for int8, asymmetric for uint8.
        """
        if self.dtype == "uint8":
            scale, zero_point = self.fitted(real)
            levels = np.clip(np.rint(real / scale) + zero_point, 0, 255).astype(np.uint8)
            return self.constant(levels, scale, zero_point, name=name)
        others = tuple(other for other in range(real.ndim) if other != axis)
        reach = np.abs(real).max(axis=None if axis is None else others)
        scales = np.asarray([self.rounded(max(one, 1e-30) / 127) for one in np.atleast_1d(reach)])
        along = [-1 if other == axis else 1 for other in range(real.ndim)]
        spread = scales.reshape(() if axis is None else along)
        levels = np.clip(np.rint(real / spread), -127, 127).astype(np.int8)
        return self.constant(levels, scales, 0, axis or 0, name)

    def weights(
        self,
        shape: Sequence[int],
        axis: int,
        rms: float,
        per_channel: bool = True,
        name: str = "",
        dead: float = _DEAD,
    ) -> TfliteTensor:
        """Random weights, scaled so that inputs with ``rms`` lead to results with an rms of about
        1. Channels are along ``axis`` and differ in scale; a share of them is ``dead``: its weights
        are nearly zero.
        """
        channels = shape[axis]
        spread = self.rng.lognormal(0, 0.3, channels)
        is_dead = self.rng.random(channels) < dead
        spread[is_dead] *= 10.0 ** self.rng.uniform(*self.FADED, is_dead.sum())
        along = [-1 if other == axis else 1 for other in range(len(shape))]
        tails = self.rng.standard_t(6, tuple(shape)) * np.sqrt(4 / 6) * spread.reshape(along)
        real = tails / (max(rms, 1e-6) * (prod(shape) / channels) ** 0.5)
        is_wide = per_channel and self.dtype == "int8"
        return self.factors(real, axis if is_wide else None, name)

    def bias(
        self, x: TfliteTensor, weights: TfliteTensor, real: Array | int, name: str = ""
    ) -> TfliteTensor:
        """The int32 constant of ``real`` numbers, or of as many random ones, that is added to
        products of ``x`` and ``weights``: its scale is the product of theirs.
        """
        assert x.scale is not None
        assert weights.scale is not None
        if isinstance(real, int):
            real = self.rng.normal(0, 0.2, real)
        scales = (x.scale * weights.scale).astype(np.float32)
        sums = np.clip(np.rint(real / scales.astype(np.float64)), -_MOST_BIAS, _MOST_BIAS)
        return self.constant(sums.astype(np.int32), scales, 0, name=name)

    def example(self, tensor: TfliteTensor) -> Array:
        """The float numbers of a constant, or those that the example has in ``tensor``."""
        if tensor.data is not None:
            return tensor.real(tensor.data)
        return self._examples[tensor.index]

    def rms(self, tensor: TfliteTensor) -> float:
        """The root mean square of the example in ``tensor``."""
        return float(np.sqrt(np.mean(np.square(self.example(tensor), dtype=np.float64))))

    def fitted(self, example: Array, part: float = 1.0, dtype: str = "") -> tuple[float, int]:
        """Scale and zero point of 8 bits for a ``part`` of the range of ``example``."""
        low, high = min(float(example.min()), 0.0) * part, max(float(example.max()), 0.0) * part
        scale = self.rounded(max(high - low, _NARROWEST) / 255)
        least = int(np.iinfo(dtype or self.dtype).min)
        return scale, round(min(max(least - low / scale, least), least + 255))

    def rounded(self, scale: float) -> float:
        """The number of the file for a ``scale``."""
        return float(np.float32(scale))

    # Operators.

    def apply(self, operator: str, *inputs: TfliteTensor | None, **settings: Any) -> TfliteTensor:
        """The only result of an operator; ``settings`` are the keywords of `apply_all`."""
        (tensor,) = self.apply_all(operator, *inputs, **settings)
        return tensor

    def apply_all(
        self,
        operator: str,
        *inputs: TfliteTensor | None,
        count: int = 1,
        part: float = 1.0,
        fit: bool = False,
        at: tuple[float, int] | None = None,
        dtype: str = "",
        shape: Sequence[int] = (1,),
        name: str = "",
        **options: Any,
    ) -> list[TfliteTensor]:
        """All ``count`` results of an operator, with scales for a ``part`` of their ranges.

        Operators that move elements keep the scale of their input unless they are to ``fit``;
        ``at`` gives scale and zero point. Float results are quantized to ``dtype``, by default the
        network's, or not if it is float32. Few kernels want to know the ``shape`` of the result.
        """
        examples = [self.example(item) for item in inputs if item is not None]
        if operator in ("QUANTIZE", "DEQUANTIZE"):
            results = examples
        else:
            results = _in_float(operator, inputs, examples, [shape] * count, options)
        is_open = inputs[0] is not None and inputs[0].index in self._open
        tensors = []
        for result in results:
            is_quantized = result.dtype == np.float32 and dtype != "float32"
            kind = (dtype or self.dtype) if is_quantized else result.dtype.name
            scale, zero_point = None, 0
            if is_quantized:
                scale, zero_point = at or self._scaling(operator, inputs, result, part, fit, kind)
            tensor = self.tensor(result.shape, scale, zero_point, kind, name, is_open=is_open)
            if is_open:
                self._open.add(tensor.index)
            self.keep(tensor, result)
            tensors.append(tensor)
        self.operator(operator, inputs, tensors, **options)
        return tensors

    def _scaling(
        self,
        operator: str,
        inputs: Sequence[TfliteTensor | None],
        result: Array,
        part: float,
        fit: bool,
        dtype: str,
    ) -> tuple[float, int]:
        """Scale and zero point of a ``result``."""
        if operator in _FIXED:
            scale, zero_point = _FIXED[operator]
            return scale, zero_point + (128 if dtype == "uint8" else 0)
        first = next((item for item in inputs if item is not None and item.scale is not None), None)
        if operator in _KEEPING and not fit and first is not None:
            assert first.scale is not None
            assert first.zero_point is not None
            return float(first.scale[0]), int(first.zero_point[0])
        return self.fitted(result, part, dtype)

    # Layers.

    def conv(
        self,
        x: TfliteTensor,
        outputs: int,
        kernel: tuple[int, int] = (1, 1),
        stride: int = 1,
        act: str = "RELU",
        padding: str = "SAME",
        name: str = "",
    ) -> TfliteTensor:
        """A convolution of ``x`` (N, H, W, C) with bias and an activation."""
        weights = self.weights((outputs, *kernel, x.shape[3]), 0, self.rms(x), name=f"{name}/w")
        return self._convolution("CONV_2D", x, weights, stride, act, padding, name)

    def depthwise(
        self,
        x: TfliteTensor,
        kernel: tuple[int, int],
        stride: int = 1,
        act: str = "RELU",
        padding: str = "SAME",
        name: str = "",
    ) -> TfliteTensor:
        """A depthwise convolution of ``x`` (N, H, W, C) with bias and an activation."""
        weights = self.weights((1, *kernel, x.shape[3]), 3, self.rms(x), name=f"{name}/w")
        return self._convolution(
            "DEPTHWISE_CONV_2D", x, weights, stride, act, padding, name, depth_multiplier=1
        )

    def dense(
        self, x: TfliteTensor, outputs: int, act: str = "NONE", name: str = "", rms: float = 1.0
    ) -> TfliteTensor:
        """A fully connected layer of ``x`` (N, C) with bias and one scale; its results have about
        this ``rms``.
        """
        weights = self.weights(
            (outputs, x.shape[1]), 0, self.rms(x) / rms, per_channel=False, name=f"{name}/w"
        )
        bias = self.bias(x, weights, outputs, f"{name}/b")
        return self.apply(
            "FULLY_CONNECTED", x, weights, bias, name=name, fused_activation_function=act
        )

    def _convolution(
        self,
        operator: str,
        x: TfliteTensor,
        weights: TfliteTensor,
        stride: int,
        act: str,
        padding: str,
        name: str,
        **options: Any,
    ) -> TfliteTensor:
        outputs = weights.shape[3 if operator.startswith("DEPTHWISE") else 0]
        bias = self.bias(x, weights, outputs, f"{name}/b")
        return self.apply(
            operator,
            x,
            weights,
            bias,
            name=name,
            padding=padding,
            stride_w=stride,
            stride_h=stride,
            dilation_w_factor=1,
            dilation_h_factor=1,
            fused_activation_function=act,
            **options,
        )

    # Examples.

    def keep(self, tensor: TfliteTensor, example: Array) -> None:
        """Remember the float ``example``, rounded to what ``tensor`` can hold."""
        is_quantized = tensor.scale is not None and example.dtype == np.float32
        self._examples[tensor.index] = (
            tensor.real(tensor.quantized(example)) if is_quantized else example
        )


def _in_float(
    operator: str,
    inputs: Sequence[TfliteTensor | None],
    examples: Sequence[Array],
    shapes: Sequence[Sequence[int]],
    options: dict[str, Any],
) -> list[Array]:
    """The results of an operator alone in float."""
    file, given, left = TfliteFile(), list[Array](), iter(examples)
    operands: list[TfliteTensor | None] = []
    for item in inputs:
        if item is None:
            operands.append(None)
            continue
        example = next(left)
        if item.data is not None:
            operands.append(file.constant(example))
        else:
            operands.append(file.input(example.shape, dtype=example.dtype.name))
            given.append(example)
    dtype = "int32" if operator == "ARG_MAX" else "float32"
    results = [file.tensor(shape, dtype=dtype) for shape in shapes]
    file.operator(operator, operands, results, **options)
    file.output(*results)
    return reference(file.bytes(), *given)
