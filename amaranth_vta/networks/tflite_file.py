"""Writes TensorFlow Lite files: `TfliteFile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from amaranth_vta.sw.compiler.graph.load.tflite.file import packed

Array = npt.NDArray[Any]

# Operators whose table of options has another name than they have; None if there is no table.
_OPTIONS: dict[str, str | None] = {
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("MEAN", "REDUCE_MAX", "SUM"), "ReducerOptions"),
    **dict.fromkeys(("MINIMUM", "MAXIMUM"), "MaximumMinimumOptions"),
    **dict.fromkeys(("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"), None),
    **dict.fromkeys(("PRELU", "LOGISTIC", "TANH", "ELU"), None),
}
# Versions of operators that first support int8, or what else this module writes; 1 for all others.
_VERSIONS = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "AVERAGE_POOL_2D", "MAX_POOL_2D", "MEAN", "SUM"), 2),
    **dict.fromkeys(("MINIMUM", "MAXIMUM", "REDUCE_MAX", "PAD", "PADV2", "MIRROR_PAD"), 2),
    **dict.fromkeys(("CONCATENATION", "SPLIT", "SPLIT_V", "SLICE", "STRIDED_SLICE"), 2),
    **dict.fromkeys(("TRANSPOSE", "PACK", "UNPACK", "GATHER", "RELU", "RELU6", "LEAKY_RELU"), 2),
    **dict.fromkeys(("LOGISTIC", "TANH", "SOFTMAX", "QUANTIZE", "DEQUANTIZE", "ARG_MAX"), 2),
    **dict.fromkeys(("RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR", "SPACE_TO_DEPTH"), 2),
    **{"CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 3, "FULLY_CONNECTED": 4},
    **{"DEPTH_TO_SPACE": 1, "BATCH_MATMUL": 2, "SPLIT_V": 2},
}
_TYPES = {
    name: getattr(schema.TensorType, name.upper())
    for name in ("int8", "uint8", "int16", "int32", "int64", "float32", "bool", "resource")
}
# Options whose values are names of an enumeration.
_ENUMS = {
    "padding": schema.Padding,
    "fused_activation_function": schema.ActivationFunctionType,
    "mode": schema.MirrorPadMode,
    "output_type": schema.TensorType,
}


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """A tensor of a subgraph, by its ``index`` in it; ``data`` is the value of a constant.

    A quantized tensor has one ``scale`` and zero point, or one for each channel along ``axis``.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    scale: Array | None = None
    zero_point: Array | None = None
    axis: int = 0
    data: Array | None = field(default=None, repr=False)

    @property
    def limits(self) -> tuple[int, int]:
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)

    def real(self, values: Array) -> Array:
        """Dequantize ``values`` to float32; tensors without a scale are returned unchanged."""
        if self.scale is None or self.zero_point is None:
            return values
        scale, zero_point = self._along_axis(self.scale), self._along_axis(self.zero_point)
        return np.asarray((values.astype(np.float64) - zero_point) * scale, np.float32)

    def quantized(self, values: Array) -> Array:
        """The nearest values of the tensor's type for float numbers."""
        assert self.scale is not None
        assert self.zero_point is not None
        scale, zero_point = self._along_axis(self.scale), self._along_axis(self.zero_point)
        rounded = np.rint(values.astype(np.float64) / scale) + zero_point
        return np.clip(rounded, *self.limits).astype(self.dtype)

    def _along_axis(self, values: Array) -> Array:
        if values.size == 1:
            return values.reshape(())
        return values.reshape([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])


class TfliteFile:
    """A builder of a TensorFlow Lite file; `bytes` returns it.

    Tensors and operators are added to the main subgraph, or to a subgraph opened by `subgraph`.
    """

    def __init__(self, description: str = "") -> None:
        self._model = schema.ModelT()
        self._model.version, self._model.description = 3, description
        self._model.buffers = [schema.BufferT()]  # Tensors without data have the first.
        self._model.operatorCodes, self._model.subgraphs = [], []
        self._codes: dict[tuple[str, int], int] = {}
        self._graph = self._new_graph("main")

    # Tensors.

    def input(
        self,
        shape: Sequence[int],
        scale: Any = None,
        zero_point: Any = 0,
        dtype: str = "int8",
        name: str = "",
        is_open: bool = False,
    ) -> TfliteTensor:
        """An input of the subgraph, with an open number of images if it ``is_open``."""
        tensor = self.tensor(shape, scale, zero_point, dtype, name, is_open=is_open)
        self._graph.inputs.append(tensor.index)
        return tensor

    def tensor(
        self,
        shape: Sequence[int],
        scale: Any = None,
        zero_point: Any = 0,
        dtype: str = "int8",
        name: str = "",
        *,
        is_open: bool = False,
    ) -> TfliteTensor:
        """A tensor for the result of an operator."""
        return self._tensor(shape, dtype, _quantization(scale, zero_point), name, is_open=is_open)

    def constant(
        self,
        data: Any,
        scale: Any = None,
        zero_point: Any = 0,
        axis: int = 0,
        name: str = "",
        share: TfliteTensor | None = None,
    ) -> TfliteTensor:
        """A constant; with ``share``, in the buffer of another constant of the same bytes."""
        data = np.asarray(data)
        if share is not None:
            buffer = self._graph.tensors[share.index].buffer
        else:
            buffer = len(self._model.buffers)
            kept = schema.BufferT()
            kept.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self._model.buffers.append(kept)
        quantization = _quantization(scale, zero_point)
        return self._tensor(data.shape, data.dtype.name, quantization, name, axis, buffer, data)

    def output(self, *tensors: TfliteTensor) -> None:
        """Make ``tensors`` outputs of the subgraph."""
        self._graph.outputs += [tensor.index for tensor in tensors]

    # Operators.

    def operator(
        self,
        name: str,
        inputs: Sequence[TfliteTensor | None],
        outputs: Sequence[TfliteTensor],
        **options: Any,
    ) -> None:
        """Add the operator ``name`` of the schema's `BuiltinOperator`.

        ``options`` are those of its table in snake case, such as ``stride_w``; values of
        enumerations are given by name. None is an absent input.
        """
        made = schema.OperatorT()
        made.opcodeIndex = self._code(name, options.pop("version", _VERSIONS.get(name, 1)))
        made.inputs = [-1 if item is None else item.index for item in inputs]
        made.outputs = [item.index for item in outputs]
        table = _OPTIONS.get(name, _table(name))
        if table is not None:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, table)
            made.builtinOptions = getattr(schema, f"{table}T")()
            for key, value in options.items():
                if key in _ENUMS and isinstance(value, str):
                    value = getattr(_ENUMS[key], value)
                attribute = _camel_case(key)
                if not hasattr(made.builtinOptions, attribute):
                    raise ValueError(f"{name} has no option {key}")
                setattr(made.builtinOptions, attribute, value)
        self._graph.operators.append(made)

    @contextmanager
    def subgraph(self, name: str) -> Iterator[int]:
        """A context in which tensors and operators go to a new subgraph; yields its index."""
        previous, self._graph = self._graph, self._new_graph(name)
        yield len(self._model.subgraphs) - 1
        self._graph = previous

    # The file.

    def signature(self, key: str = "serving_default") -> None:
        """Name the inputs and outputs of the main subgraph by a signature."""
        graph, made = self._model.subgraphs[0], schema.SignatureDefT()
        made.signatureKey, made.subgraphIndex = key, 0
        made.inputs, made.outputs = (
            [self._named(graph, index) for index in indices]
            for indices in (graph.inputs, graph.outputs)
        )
        self._model.signatureDefs = [made]

    def bytes(self) -> bytes:
        return packed(self._model)

    # Parts.

    def _new_graph(self, name: str) -> Any:
        graph = schema.SubGraphT()
        graph.name, graph.tensors, graph.operators = name, [], []
        graph.inputs, graph.outputs = [], []
        self._model.subgraphs.append(graph)
        return graph

    def _tensor(
        self,
        shape: Sequence[int],
        dtype: str,
        quantization: tuple[Array, Array] | None,
        name: str,
        axis: int = 0,
        buffer: int = 0,
        data: Array | None = None,
        is_open: bool = False,
    ) -> TfliteTensor:
        shape, index = tuple(int(size) for size in shape), len(self._graph.tensors)
        made = schema.TensorT()
        made.shape, made.type, made.buffer = list(shape), _TYPES[dtype], buffer
        if is_open:
            made.shapeSignature = [-1, *shape[1:]]
        made.name, made.hasRank = name or f"{self._graph.name}/{index}", True
        tensor = TfliteTensor(index, shape, dtype, axis=axis, data=data)
        if quantization is not None:
            made.quantization = schema.QuantizationParametersT()
            scale, zero_point = quantization
            made.quantization.scale = scale
            made.quantization.zeroPoint = zero_point
            made.quantization.quantizedDimension = axis
            tensor = replace(tensor, scale=scale, zero_point=zero_point)
        self._graph.tensors.append(made)
        return tensor

    def _code(self, name: str, version: int) -> int:
        if (name, version) not in self._codes:
            self._codes[name, version] = len(self._model.operatorCodes)
            made = schema.OperatorCodeT()
            made.builtinCode, made.version = getattr(schema.BuiltinOperator, name), version
            # Codes below 127 are also written to the field that older readers know.
            made.deprecatedBuiltinCode = min(made.builtinCode, 127)
            self._model.operatorCodes.append(made)
        return self._codes[name, version]

    def _named(self, graph: Any, index: int) -> Any:
        made = schema.TensorMapT()
        made.name, made.tensorIndex = graph.tensors[index].name, index
        return made


def _quantization(scale: Any, zero_point: Any) -> tuple[Array, Array] | None:
    if scale is None:
        return None
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    zero_points = np.atleast_1d(np.asarray(zero_point, np.int64))
    return scales, np.broadcast_to(zero_points, scales.shape).copy()


def _table(name: str) -> str | None:
    """The schema's table of options of the operator ``name``: Conv2DOptions for CONV_2D."""
    wanted = f"{name}OPTIONS".replace("_", "").lower()
    return next((item for item in vars(schema.BuiltinOptions) if item.lower() == wanted), None)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
