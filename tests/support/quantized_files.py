"""Random float networks, quantized by ONNX Runtime's quantizer with random options.

A network is a list of steps, drawn from a seed. Any sublist is a network too, so a failing
network can be reduced.
"""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]

# Steps of networks of images, of sequences, and of rows, with their relative frequencies.
_IMAGES = {
    **{"conv": 6, "depthwise": 2, "grouped": 1, "activation": 4, "max_pool": 1, "average_pool": 1},
    **{"residual": 2, "concat": 1, "scale": 2, "batch_norm": 1, "pad": 1, "resize": 1},
    **{"gate": 1, "squeeze_excite": 1, "transposed": 1, "slice": 1, "split": 1},
}
_SEQUENCES = {
    **{"conv": 5, "depthwise": 2, "activation": 3, "max_pool": 1, "average_pool": 1},
    **{"residual": 2, "scale": 1, "batch_norm": 1, "concat": 1, "gate": 1},
}
_ROWS = {
    **{"linear": 5, "matmul_add": 4, "activation": 3, "residual": 1, "scale": 2, "gate": 1},
    **{"attention": 2, "norm": 1},
}
_ENDS = {"images": ("classifier", "none", "whole"), "sequences": ("none", "classifier")}
_ACTIVATIONS = (
    *("Relu", "Relu", "Clip", "LeakyRelu", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Elu"),
    *("silu", "PRelu"),
)


# A format of its own: scales are known only at run time.
DYNAMIC = "Dynamic"
_PRODUCTS = ["Conv", "Gemm", "MatMul"]


@dataclass(frozen=True)
class Case:
    """A test case drawn from a seed: the input shape, ``steps`` with a seed for each, and options
    of the quantizer.
    """

    seed: int
    kind: str
    shape: tuple[int, ...]
    opset: int
    steps: tuple[tuple[str, int], ...]
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def drawn(cls, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        kind = str(rng.choice(["images", "images", "images", "sequences", "rows"]))
        known = {"images": _IMAGES, "sequences": _SEQUENCES, "rows": _ROWS}[kind]
        weights = np.array(list(known.values()), float)
        names = rng.choice(list(known), int(rng.integers(1, 7)), p=weights / weights.sum())
        steps = [(str(name), int(rng.integers(1 << 30))) for name in names]
        if kind in _ENDS:
            steps.append((str(rng.choice(_ENDS[kind])), 0))
        sizes = {
            "images": (1, int(rng.integers(1, 20)), *map(int, rng.integers(6, 14, 2))),
            "sequences": (1, int(rng.integers(1, 20)), int(rng.integers(12, 40))),
            "rows": (*map(int, rng.integers(1, 5, rng.integers(1, 3))), int(rng.integers(4, 40))),
        }
        opset = int(rng.choice([13, 14, 17, 19, 21]))
        return cls(seed, kind, sizes[kind], opset, tuple(steps), _options(rng))

    def smaller(self) -> Iterator[Case]:
        """The cases with one step removed."""
        for index in range(len(self.steps)):
            steps = self.steps[:index] + self.steps[index + 1 :]
            yield Case(self.seed, self.kind, self.shape, self.opset, steps, self.options)

    def smallest(self, fails: Callable[[Case], bool]) -> Case:
        """A smallest case that fails, if this one fails."""
        for case in self.smaller():
            if fails(case):
                return case.smallest(fails)
        return self

    def float_model(self) -> onnx.ModelProto:
        network = _Network(self)
        for name, seed in self.steps:
            network.rng = np.random.default_rng(seed)
            getattr(network, name)()
        return network.model()

    def images(self, count: int = 1) -> list[Array]:
        rng = np.random.default_rng(self.seed)
        return [rng.normal(0, 1, self.shape).astype(np.float32) for _ in range(count)]

    def quantized(self) -> onnx.ModelProto:
        return quantized(self.float_model(), [{"x": item} for item in self.images(4)], self.options)


def _options(rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of `quantize_static`, with enum members by name; the format may be `DYNAMIC`."""
    form = str(rng.choice(["QDQ", "QDQ", "QOperator"]))
    extra: dict[str, Any] = {
        name: bool(rng.random() < 0.3)
        for name in ("ActivationSymmetric", "AddQDQPairToWeight", "DedicatedQDQPair")
    }
    extra["WeightSymmetric"] = bool(rng.random() < 0.6)
    extra["QuantizeBias"] = bool(rng.random() < 0.8)
    extra["ForceQuantizeNoInputCheck"] = bool(rng.random() < 0.2)
    activation = str(rng.choice(["QUInt8", "QInt8"]))
    # The quantizer has no uint8 weights under int8.
    signed = rng.random() < 0.5 or activation == "QInt8"
    options = {
        "quant_format": form,
        "activation_type": activation,
        "weight_type": "QInt8" if signed else "QUInt8",
        "per_channel": bool(rng.random() < 0.5),
        "reduce_range": bool(rng.random() < 0.2),
        "calibrate_method": str(rng.choice(["MinMax", "MinMax", "Percentile"])),
        "extra_options": extra,
    }
    if rng.random() < 0.1:
        options["quant_format"] = DYNAMIC
    elif form == "QDQ" and rng.random() < 0.2:
        extra["OpTypesToExcludeOutputQuantization"] = _PRODUCTS
    return options


def quantized(
    model: onnx.ModelProto, samples: Sequence[dict[str, Array]], options: dict[str, Any]
) -> onnx.ModelProto:
    """``model`` quantized by ONNX Runtime, calibrated with ``samples``."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> Any:
            return next(self.left, None)

    arguments = dict(options)
    dynamic = arguments["quant_format"] == DYNAMIC
    arguments["quant_format"] = None if dynamic else QuantFormat[arguments["quant_format"]]
    arguments["calibrate_method"] = CalibrationMethod[arguments["calibrate_method"]]
    for name in ("activation_type", "weight_type"):
        arguments[name] = QuantType[arguments[name]]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, source)
        # The quantizer writes to the terminal and to the log.
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                if dynamic:
                    kept = ("weight_type", "per_channel", "reduce_range")
                    given = {name: arguments[name] for name in kept}
                    quantize_dynamic(source, result, op_types_to_quantize=_PRODUCTS, **given)
                else:
                    quantize_static(source, result, Reader(), **arguments)
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(result)


class _Network:
    """A builder of a float network, with one method per step. ``value`` is the last result, with
    its ``shape``. A step that does not fit the shape is a no-op.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rng = np.random.default_rng(case.seed)
        self.shape = case.shape
        self.value = "x"
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    @property
    def spatial(self) -> int:
        return len(self.shape) - 2 if self.case.kind != "rows" and len(self.shape) > 2 else 0

    def node(self, operator: str, *inputs: str, results: int = 1, **attributes: Any) -> list[str]:
        names = [f"{operator.lower()}_{len(self.nodes)}_{index}" for index in range(results)]
        self.nodes.append(
            helper.make_node(operator, inputs, names, name=f"n{len(self.nodes)}", **attributes)
        )
        return names

    def then(self, operator: str, *inputs: str, **attributes: Any) -> None:
        (self.value,) = self.node(operator, self.value, *inputs, **attributes)

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weights(self, *shape: int) -> str:
        # Usually not centred on 0, and with one nearly dead channel.
        values = self.rng.normal(self.rng.uniform(-0.3, 0.3), 1, shape)
        if self.rng.random() < 0.2:
            values[self.rng.integers(shape[0])] *= 10.0 ** self.rng.uniform(-30, -6)
        return self.constant(values / np.sqrt(np.prod(shape[1:])))

    def model(self) -> onnx.ModelProto:
        self.node("Identity", self.value)
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.case.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", self.case.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)

    # Steps.

    def conv(self, groups: int = 1, outputs: int = 0) -> None:
        axes, channels = self.spatial, self.shape[1]
        if not axes:
            return
        kernel = [int(self.rng.integers(1, min(4, n) + 1)) for n in self.shape[2:]]
        dilations = [int(self.rng.integers(1, 3)) if k > 1 else 1 for k in kernel]
        strides = [int(self.rng.integers(1, 3)) for _ in kernel]
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = [int(self.rng.integers(0, r)) if self.rng.random() < 0.6 else 0 for r in reach * 2]
        spans = [n + pads[i] + pads[axes + i] - reach[i] for i, n in enumerate(self.shape[2:])]
        if min(spans) < 0:
            return
        outputs = outputs or groups * int(self.rng.integers(1, 24 // groups + 2))
        bias = [self.constant(self.rng.normal(0, 0.5, outputs))] if self.rng.random() < 0.7 else []
        self.then(
            "Conv",
            self.weights(outputs, channels // groups, *kernel),
            *bias,
            group=groups,
            kernel_shape=kernel,
            strides=strides,
            dilations=dilations,
            pads=pads,
        )
        sizes = (span // s + 1 for span, s in zip(spans, strides, strict=True))
        self.shape = (self.shape[0], outputs, *sizes)

    def depthwise(self) -> None:
        self.conv(self.shape[1], self.shape[1])

    def grouped(self) -> None:
        self.conv(2 if self.shape[1] % 2 == 0 else 1)

    def transposed(self) -> None:
        if not self.spatial or max(self.shape[2:]) > 16:
            return
        stride, kernel = int(self.rng.integers(1, 3)), int(self.rng.integers(2, 4))
        groups = 2 if self.shape[1] % 2 == 0 and self.rng.random() < 0.3 else 1
        each, dilation = int(self.rng.integers(1, 8)), int(self.rng.integers(1, 3))
        pads = [int(pad) for pad in self.rng.integers(0, 2, 4)]
        more = int(self.rng.integers(0, stride))
        self.then(
            "ConvTranspose",
            self.weights(self.shape[1], each, kernel, kernel),
            *([self.constant(self.rng.normal(0, 1, each * groups))] * int(self.rng.integers(2))),
            strides=[stride] * 2,
            kernel_shape=[kernel] * 2,
            dilations=[dilation] * 2,
            pads=pads,
            output_padding=[more] * 2,
            group=groups,
        )
        reach = (kernel - 1) * dilation + 1
        rows, columns = (
            (n - 1) * stride + reach + more - pads[axis] - pads[2 + axis]
            for axis, n in enumerate(self.shape[2:])
        )
        self.shape = (self.shape[0], each * groups, rows, columns)

    def activation(self) -> None:
        operator = str(self.rng.choice(_ACTIVATIONS))
        if operator == "silu":
            (gate,) = self.node("Sigmoid", self.value)
            self.then("Mul", gate)
        elif operator == "Clip":
            self.then("Clip", self.constant(0.0), self.constant(6.0))
        elif operator == "PRelu":
            self.then("PRelu", self.constant(np.full([1] * (len(self.shape) - 1), 0.25)))
        elif operator != "HardSwish" or self.case.opset >= 14:
            self.then(operator)

    def _window(self) -> tuple[list[int], list[int], list[int]] | None:
        if not self.spatial or min(self.shape[2:]) < 3:
            return None
        kernel = [int(self.rng.integers(2, 4))] * self.spatial
        strides = [int(self.rng.integers(1, 3))] * self.spatial
        pads = [int(self.rng.random() < 0.4)] * (2 * self.spatial)
        return kernel, strides, pads

    def _pool(self, operator: str, **attributes: Any) -> None:
        if not self.spatial or min(self.shape[2:]) < 3:
            return
        kernel = self.rng.integers(1, 4, self.spatial)
        strides = self.rng.integers(1, 4, self.spatial)
        begins, ends = self.rng.integers(0, kernel, (2, self.spatial))
        rounded_up = bool(self.rng.integers(0, 2)) and self.case.opset >= 10
        pads = np.concatenate([begins, ends])
        attributes |= {"kernel_shape": kernel.tolist(), "strides": strides.tolist()}
        attributes |= {"pads": pads.tolist()}
        self.then(operator, **attributes, **({"ceil_mode": 1} if rounded_up else {}))
        rest = np.array(self.shape[2:]) + begins + ends - kernel
        sizes = (-(-rest // strides) if rounded_up else rest // strides) + 1
        # No window may begin after the end of the image.
        sizes -= (sizes - 1) * strides >= np.array(self.shape[2:]) + begins
        self.shape = (*self.shape[:2], *(int(size) for size in sizes))

    def max_pool(self) -> None:
        self._pool("MaxPool")

    def average_pool(self) -> None:
        self._pool("AveragePool", count_include_pad=int(self.rng.integers(0, 2)))

    def residual(self) -> None:
        before, shape = self.value, self.shape
        if self.spatial:
            kernel = [1] * self.spatial
            self.then("Conv", self.weights(shape[1], shape[1], *kernel), kernel_shape=kernel)
        else:
            self.then("MatMul", self.weights(shape[-1], shape[-1]))
        self.then("Sum" if self.rng.random() < 0.2 else "Add", before)

    def concat(self) -> None:
        before, shape = self.value, self.shape
        self.conv(outputs=int(self.rng.integers(1, 20)))
        if self.shape[2:] == shape[2:] and self.value != before:
            self.then("Concat", before, axis=1)
            self.shape = (shape[0], shape[1] + self.shape[1], *shape[2:])

    def scale(self) -> None:
        """A sum or product with a constant, either one scalar or one per channel."""
        shape: tuple[int, ...] = ()
        if self.rng.random() < 0.6:
            shape = (self.shape[1], *[1] * self.spatial) if self.spatial else (self.shape[-1],)
        operator = str(self.rng.choice(["Add", "Sub", "Mul", "Div"]))
        self.then(operator, self.constant(self.rng.uniform(0.3, 2, shape)))

    def batch_norm(self) -> None:
        if self.spatial:
            given = [self.constant(self.rng.uniform(0.5, 1.5, self.shape[1])) for _ in range(4)]
            self.then("BatchNormalization", *given)

    def pad(self) -> None:
        if self.spatial == 2:
            self.then("Pad", self.constant([0, 0, 1, 2, 0, 0, 0, 1], np.int64))
            self.shape = (*self.shape[:2], self.shape[2] + 1, self.shape[3] + 3)

    def resize(self) -> None:
        if self.spatial == 2 and max(self.shape[2:]) < 16:
            scales = self.constant([1, 1, 2, 2])
            self.then(
                "Resize",
                "",
                scales,
                coordinate_transformation_mode="asymmetric",
                mode="nearest",
                nearest_mode="floor",
            )
            self.shape = (*self.shape[:2], 2 * self.shape[2], 2 * self.shape[3])

    def gate(self) -> None:
        before = self.value
        if self.spatial:
            kernel = [1] * self.spatial
            self.then("Conv", self.weights(self.shape[1], self.shape[1], *kernel))
        else:
            self.then("MatMul", self.weights(self.shape[-1], self.shape[-1]))
        self.then("HardSigmoid")
        self.then("Mul", before)

    def squeeze_excite(self) -> None:
        if self.spatial != 2:
            return
        before = self.value
        self.then("GlobalAveragePool")
        self.then("Conv", self.weights(self.shape[1], self.shape[1], 1, 1))
        self.then("HardSigmoid")
        self.then("Mul", before)

    def slice(self) -> None:
        if self.spatial == 2 and min(self.shape[2:]) > 3:
            bounds = [self.constant(value, np.int64) for value in ([1, 0], [9999, -1], [2, 3])]
            self.then("Slice", *bounds)
            self.shape = (*self.shape[:2], self.shape[2] - 1, self.shape[3] - 1)

    def split(self) -> None:
        if self.spatial == 2 and self.shape[1] > 1 and self.case.opset < 18:
            half = self.shape[1] // 2
            sizes = self.constant([half, self.shape[1] - half], np.int64)
            parts = self.node("Split", self.value, sizes, results=2, axis=1)
            self.value = parts[1]
            self.shape = (self.shape[0], self.shape[1] - half, *self.shape[2:])

    def linear(self) -> None:
        if len(self.shape) != 2:
            return self.matmul_add()
        outputs, bias = int(self.rng.integers(2, 40)), self.rng.random() < 0.7
        given = [self.constant(self.rng.normal(0, 0.5, outputs))] if bias else []
        self.then("Gemm", self.weights(outputs, self.shape[1]), *given, transB=1)
        self.shape = (self.shape[0], outputs)

    def matmul_add(self) -> None:
        outputs = int(self.rng.integers(2, 40))
        self.then("MatMul", self.weights(self.shape[-1], outputs))
        if self.rng.random() < 0.7:
            self.then("Add", self.constant(self.rng.normal(0, 0.5, outputs)))
        self.shape = (*self.shape[:-1], outputs)

    def attention(self) -> None:
        """Attention over the rows of each matrix, with one head, or perhaps two if the row size is
        even.
        """
        *stack, rows, size = (1, *self.shape) if len(self.shape) == 2 else self.shape
        heads = 2 if size % 2 == 0 and self.rng.random() < 0.5 else 1
        apart = self.constant([*stack, rows, heads, size // heads], np.int64)
        axes = list(range(len(stack)))
        last = len(axes)
        by_heads, by_columns = [last + 1, last, last + 2], [last + 1, last + 2, last]
        before, parts = self.value, []
        for order in (by_heads, by_columns, by_heads):
            self.value = before
            self.then("MatMul", self.weights(size, size))
            self.then("Reshape", apart)
            self.then("Transpose", perm=[*axes, *order])
            parts.append(self.value)
        query, key, value = parts
        self.value = query
        self.then("MatMul", key)
        self.then("Mul", self.constant((size // heads) ** -0.5))
        self.then("Softmax", axis=-1)
        self.then("MatMul", value)
        self.then("Transpose", perm=[*axes, *by_heads])
        self.then("Reshape", self.constant(self.shape, np.int64))

    def norm(self) -> None:
        if self.case.opset >= 17:
            scale, bias = (self.constant(self.rng.uniform(0.3, 2, self.shape[-1])) for _ in "sb")
            self.then("LayerNormalization", scale, bias, axis=-1)

    def classifier(self) -> None:
        self.then("Flatten")
        features = int(np.prod(self.shape[1:]))
        self.shape = (self.shape[0], features)
        self.linear()

    def none(self) -> None:
        """The end of a network without a final step."""

    def whole(self) -> None:
        if self.spatial:
            self.then("GlobalAveragePool")
            self.shape = (*self.shape[:2], *[1] * self.spatial)
