"""The contents of a TensorFlow Lite file: subgraphs of operators on tensors.

The schema comes from the package ai-edge-litert, whose kernels are the reference.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sw.runtime.array_file import FileLimitError, require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError

Array = npt.NDArray[Any]

# Identifier of a TensorFlow Lite file, at byte 4.
_IDENTIFIER = b"TFL3"
# Most axes of the tensors of any kernel.
_MOST_AXES = 8
_DAMAGES = (
    *(struct.error, IndexError, ValueError, TypeError, AttributeError, KeyError),
    *(UnicodeDecodeError, MemoryError, RecursionError, OverflowError, AssertionError),
)
_DTYPES = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "UINT16": np.uint16,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
}


@dataclass(frozen=True)
class FileTensor:
    """A tensor. ``scales``, float32, and ``zero_points``, int64, have one element or one per
    channel; they are empty for tensors that are not quantized. ``data`` is the value
    of a constant."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scales: npt.NDArray[np.float32]
    zero_points: npt.NDArray[np.int64]
    data: Array | None

    @property
    def scale(self) -> np.float32:
        """The scale of the whole tensor. Raises `ModelError` unless there is exactly one."""
        return np.float32(self._one(self.scales))

    @property
    def zero_point(self) -> int:
        """The zero point of the whole tensor. Raises `ModelError` unless there is exactly one."""
        return int(self._one(self.zero_points))

    def is_quantized_as(self, other: FileTensor) -> bool:
        """Whether both have the same scale and zero point. Raises `ModelError` unless each has
        exactly one."""
        return self.scale == other.scale and self.zero_point == other.zero_point

    def _one(self, values: Array) -> Any:
        if values.size != 1:
            raise ModelError(f"tensor {self.name} is not quantized with one scale")
        return values.item()


@dataclass(frozen=True)
class TfliteOperator:
    """An operator. ``inputs`` and ``outputs`` are numbers of tensors, -1 for an omitted input;
    ``options`` is the table of options of the schema, or None."""

    kind: str
    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    raw: Any

    @property
    def name(self) -> str:
        return f"{self.kind.lower()}_{self.number}"

    def option(self, name: str, default: Any = 0) -> Any:
        """An option; ``default`` if the file has no options for the operator."""
        return getattr(self.options, name, default)


@dataclass(frozen=True)
class TfliteSubgraph:
    """A graph: operators in execution order."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tensors: tuple[FileTensor, ...]
    operators: tuple[TfliteOperator, ...]
    raw: Any


@dataclass(frozen=True)
class TfliteModel:
    """A file: the first subgraph is the network. ``raw`` is the schema's object."""

    subgraphs: tuple[TfliteSubgraph, ...]
    raw: Any


def is_tflite(data: bytes) -> bool:
    """Whether ``data`` begins like a TensorFlow Lite file."""
    return data[4:8] == _IDENTIFIER


def schema() -> Any:
    """The module of the schema's classes. Raises `MissingExtra` without ai-edge-litert."""
    with explain_missing_extras():
        from ai_edge_litert import schema_py_generated
    return schema_py_generated


def read_file(data: bytes) -> TfliteModel:
    """Parse a file. Raises `ModelError` if it is damaged, and `FileLimitError` if a tensor is too
    large."""
    module = schema()
    try:
        raw = _unpacked(module, data)
        kinds = _names(module.BuiltinOperator)
        types = _names(module.TensorType)
        graphs = tuple(_subgraph(raw, item, kinds, types) for item in raw.subgraphs)
    except (FileLimitError, ModelError):
        raise
    except _DAMAGES:
        raise ModelError("the TensorFlow Lite file is damaged or cut off") from None
    if not graphs:
        raise ModelError("the TensorFlow Lite file has no network")
    return TfliteModel(graphs, raw)


def packed(model: Any) -> bytes:
    """The file of a schema's object."""
    import flatbuffers

    builder = flatbuffers.Builder(1 << 12)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _unpacked(module: Any, data: bytes) -> Any:
    """The schema's object, without signatures and metadata.

    Tables and vectors of a hostile file may share their bytes, so that a few kilobytes unpack to
    gigabytes. Writers do not share them: all elements together fit into the file.
    """
    found = module.Model.GetRootAs(data)
    left = len(data)

    def require(*counts: int) -> None:
        nonlocal left
        left -= sum(counts)
        if left < 0:
            raise ModelError("the TensorFlow Lite file is damaged: its tables share their bytes")

    require(found.OperatorCodesLength(), found.SubgraphsLength(), found.BuffersLength())
    graphs = [found.Subgraphs(at) for at in range(found.SubgraphsLength())]
    for graph in graphs:
        require(graph.TensorsLength(), graph.OperatorsLength())
        require(graph.InputsLength(), graph.OutputsLength())
        for at in range(graph.OperatorsLength()):
            operator = graph.Operators(at)
            require(operator.InputsLength(), operator.OutputsLength())
        for at in range(graph.TensorsLength()):
            tensor = graph.Tensors(at)
            name = (tensor.Name() or b"").decode(errors="replace")
            if tensor.Sparsity() is not None or tensor.VariantTensorsLength():
                raise ModelError(f"tensor {name} is sparse or of several types, not one array")
            require(tensor.ShapeLength(), tensor.ShapeSignatureLength(), len(name))
            if tensor.ShapeLength() > _MOST_AXES:
                raise ModelError(f"tensor {name} has more than {_MOST_AXES} axes")
            quantization = tensor.Quantization()
            if quantization is not None:
                require(quantization.ScaleLength(), quantization.ZeroPointLength())
    raw = module.ModelT()
    raw.version = found.Version()
    raw.operatorCodes = [
        module.OperatorCodeT.InitFromObj(found.OperatorCodes(at))
        for at in range(found.OperatorCodesLength())
    ]
    raw.buffers = [
        module.BufferT.InitFromObj(found.Buffers(at)) for at in range(found.BuffersLength())
    ]
    raw.subgraphs = [module.SubGraphT.InitFromObj(graph) for graph in graphs]
    return raw


def _names(enumeration: Any) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def _subgraph(model: Any, raw: Any, kinds: dict[int, str], types: dict[int, str]) -> TfliteSubgraph:
    tensors = tuple(
        _tensor(model, item, number, types) for number, item in enumerate(_items(raw.tensors))
    )
    operators = tuple(
        _operator(model, item, number, kinds, len(tensors))
        for number, item in enumerate(_items(raw.operators))
    )
    first, last = (tuple(int(i) for i in _items(items)) for items in (raw.inputs, raw.outputs))
    for index in (*first, *last):
        if not 0 <= index < len(tensors):
            raise ModelError(f"the network has tensor {index}, which is missing")
    return TfliteSubgraph(first, last, tensors, operators, raw)


def _operator(
    model: Any, raw: Any, number: int, kinds: dict[int, str], tensors: int
) -> TfliteOperator:
    if not 0 <= raw.opcodeIndex < len(model.operatorCodes):
        raise ModelError(f"operator {number} has kind {raw.opcodeIndex}, which is missing")
    code = model.operatorCodes[raw.opcodeIndex]
    # Older files have the operator in a field of 8 bits.
    kind = kinds.get(max(code.builtinCode, code.deprecatedBuiltinCode))
    if kind is None:
        raise ModelError(f"operator {number} is of a kind that the schema does not have")
    if kind == "CUSTOM":
        custom = code.customCode.decode() if code.customCode else "without a name"
        raise ModelError(f"operator {number} is a custom operator, {custom}")
    inputs, outputs = (
        tuple(int(index) for index in _items(items)) for items in (raw.inputs, raw.outputs)
    )
    for index in (*inputs, *outputs):
        if not -1 <= index < tensors:
            raise ModelError(f"operator {number} ({kind}) has tensor {index}, which is missing")
    options = raw.builtinOptions or raw.builtinOptions2
    return TfliteOperator(kind, number, inputs, outputs, options, raw)


def _tensor(model: Any, raw: Any, number: int, types: dict[int, str]) -> FileTensor:
    name = raw.name.decode() if raw.name else f"tensor_{number}"
    kind = types.get(raw.type, "")
    if kind == "RESOURCE":
        dtype: np.dtype[Any] = np.dtype(np.int32)
    elif kind in _DTYPES:
        dtype = np.dtype(_DTYPES[kind])
    else:
        kind = kind.lower() or str(raw.type)
        raise ModelError(f"tensor {name} has the type {kind}, which is not supported")
    shape = tuple(int(size) for size in _items(raw.shape))
    if any(size < 0 for size in shape):
        raise ModelError(f"tensor {name} has a negative size")
    if 0 in shape:
        raise ModelError(f"tensor {name} has no elements")
    require_within_limit(f"tensor {name}", prod(shape) * dtype.itemsize)
    if not 0 <= raw.buffer < len(model.buffers):
        raise ModelError(f"tensor {name} has buffer {raw.buffer}, which is missing")
    buffer = model.buffers[raw.buffer]
    if raw.externalBuffer or buffer.offset > 1:
        raise ModelError(f"tensor {name} has its data outside of the tables: not supported")
    data = None
    if buffer.data is not None and len(buffer.data) and kind != "RESOURCE":
        held = np.asarray(buffer.data, np.uint8)
        if held.size != prod(shape) * dtype.itemsize:
            raise ModelError(f"tensor {name} has {held.size} bytes of data for the shape {shape}")
        data = held.view(dtype).reshape(shape)
    scales, zeros = _quantization(raw.quantization, name, shape, dtype)
    return FileTensor(name, shape, dtype, scales, zeros, data)


def _quantization(
    raw: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Scales, and as many zero points."""
    scales = np.asarray(_items(raw and raw.scale), np.float32)
    zeros = np.asarray(_items(raw and raw.zeroPoint), np.int64)
    axis = int(raw.quantizedDimension) if raw else 0
    if scales.size and zeros.size != scales.size:
        zeros = np.full(scales.size, zeros.item() if zeros.size == 1 else 0, np.int64)
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise ModelError(f"tensor {name} has a scale that is not positive and finite")
    if scales.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scales.size):
        raise ModelError(f"tensor {name} of shape {shape} has {scales.size} scales along {axis}")
    limits = np.iinfo(dtype) if dtype.itemsize == 1 and dtype.kind in "iu" else None
    if limits and scales.size and not ((zeros >= limits.min) & (zeros <= limits.max)).all():
        raise ModelError(f"tensor {name} has a zero point that is not of {dtype.name}")
    return scales, zeros


def _items(values: Any) -> Any:
    return () if values is None else values
