"""Convert a TensorFlow Lite file to an ONNX model."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable

import onnx

from amaranth_vta.sw.runtime.array_file import FileLimitError
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion
from .data_movement import (
    arg_max,
    block,
    concatenation,
    extremum,
    gather,
    pack,
    pad,
    reshape,
    slice_of,
    split,
    strided_slice,
    transpose,
    unpack,
)
from .file import TfliteOperator, TfliteSubgraph, is_tflite, packed, read_file
from .functions import dequantize, of_one_tensor, of_two_tensors, quantize
from .matrix_product import batch_matmul
from .pooling import average_pool, max_pool
from .precision import require_integers
from .products import convolution, depthwise_convolution, fully_connected
from .reductions import reduce_max, reduction
from .resizing import resize_bilinear, resize_nearest
from .shapes import require_shapes
from .softmax import softmax
from .transposed_convolution import transposed_convolution
from .variables import VARIABLE_OPERATORS, Variables

__all__ = ["TFLITE_SOURCE", "is_tflite", "model_of", "tflite_source", "written_anew"]

# Metadata of a converted model: the file, in base64.
TFLITE_SOURCE = "amaranth_vta.tflite"

# Errors raised by operators with inconsistent operands, shapes or options.
_DAMAGES = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)

Convert = Callable[[TfliteOperator, Conversion], None]
_OPERATORS: dict[str, Convert] = {
    "ADD": of_two_tensors,
    "ARG_MAX": arg_max,
    "AVERAGE_POOL_2D": average_pool,
    "BATCH_MATMUL": batch_matmul,
    "CONCATENATION": concatenation,
    "CONV_2D": convolution,
    "DEPTHWISE_CONV_2D": depthwise_convolution,
    "DEPTH_TO_SPACE": block,
    "DEQUANTIZE": dequantize,
    "ELU": of_one_tensor,
    "EXPAND_DIMS": reshape,
    "FULLY_CONNECTED": fully_connected,
    "GATHER": gather,
    "GELU": of_one_tensor,
    "HARD_SWISH": of_one_tensor,
    "LEAKY_RELU": of_one_tensor,
    "LOGISTIC": of_one_tensor,
    "MAXIMUM": extremum,
    "MAX_POOL_2D": max_pool,
    "MEAN": reduction,
    "MINIMUM": extremum,
    "MIRROR_PAD": pad,
    "MUL": of_two_tensors,
    "PACK": pack,
    "PAD": pad,
    "PADV2": pad,
    "PRELU": of_two_tensors,
    "QUANTIZE": quantize,
    "REDUCE_MAX": reduce_max,
    "RELU": of_one_tensor,
    "RELU6": of_one_tensor,
    "RELU_0_TO_1": of_one_tensor,
    "RELU_N1_TO_1": of_one_tensor,
    "RESHAPE": reshape,
    "RESIZE_BILINEAR": resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": resize_nearest,
    "SLICE": slice_of,
    "SOFTMAX": softmax,
    "SPACE_TO_DEPTH": block,
    "SPLIT": split,
    "SPLIT_V": split,
    "SQUEEZE": reshape,
    "STRIDED_SLICE": strided_slice,
    "SUB": of_two_tensors,
    "SUM": reduction,
    "TANH": of_one_tensor,
    "TRANSPOSE": transpose,
    "TRANSPOSE_CONV": transposed_convolution,
    "UNPACK": unpack,
}


def model_of(data: bytes, what: str) -> onnx.ModelProto:
    """The ONNX model of a TensorFlow Lite file, with the attributes and operators of
    `integer_operators`. ``what`` names the file in messages. Raises `ModelError`."""
    try:
        file = read_file(data)
        _require_known(file.subgraphs[0])
        require_integers(file.subgraphs[0])
        to = Conversion(file, file.subgraphs[0])
        variables = Variables(to)
        for operator in to.graph.operators:
            _convert(operator, to, variables)
        network = to.finish(variables.held)
        require_shapes(network)
        model = network.with_types()
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None
    source = model.metadata_props.add()
    source.key, source.value = TFLITE_SOURCE, b64encode(data).decode()
    return model


def tflite_source(model: onnx.ModelProto) -> bytes | None:
    """The TensorFlow Lite file that `model_of` converted to ``model``; None for other models."""
    for item in model.metadata_props:
        if item.key == TFLITE_SOURCE:
            return b64decode(item.value, validate=True)
    return None


def written_anew(data: bytes) -> bytes:
    """The network of a TensorFlow Lite file as a file of valid offsets, which kernels in C++ do not
    check."""
    return packed(read_file(data).raw)


def _require_known(graph: TfliteSubgraph) -> None:
    """Raise `ModelError` if the conversion lacks operators of ``graph``."""
    kinds = dict.fromkeys(operator.kind for operator in graph.operators)
    unknown = [kind for kind in kinds if kind not in _OPERATORS and kind not in VARIABLE_OPERATORS]
    if unknown:
        verb = "operators are" if len(unknown) > 1 else "operator is"
        raise ModelError(f"the {verb} not supported: {', '.join(unknown)}")


def _convert(operator: TfliteOperator, to: Conversion, variables: Variables) -> None:
    """Add ``operator`` to the network. Raises `ModelError`."""
    try:
        if not variables.convert(operator):
            _OPERATORS[operator.kind](operator, to)
    except (ModelError, FileLimitError):
        raise
    except _DAMAGES as error:
        raise ModelError(
            f"{operator.name} is damaged: its operands, shapes and options do not fit together"
        ) from error
