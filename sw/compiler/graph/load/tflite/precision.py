"""Which integers, or floats, a TensorFlow Lite file computes with: `require_integers`."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.runtime.network.model_error import ModelError

from .file import FileTensor, TfliteOperator, TfliteSubgraph

# How to make a file that can be compiled.
CONVERT = (
    "convert the model with full integer quantization to int8 (TFLITE_BUILTINS_INT8, with a "
    "representative dataset)"
)
_BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
# Operators that have float tensors in networks of integers, too.
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE")


def require_integers(graph: TfliteSubgraph) -> None:
    """Raise `ModelError`, which names the kind of the file, unless its activations have 8 bits."""
    activations, constants = [], []
    for operator in graph.operators:
        # Converted constants are weights.
        is_conversion = operator.kind in _CONVERSIONS
        for place, number in enumerate((*operator.inputs, *operator.outputs)):
            if number < 0:
                continue
            tensor = graph.tensors[number]
            if tensor.data is not None:
                constants.append(tensor)
            elif not is_conversion or (place and operator.kind == "QUANTIZE"):
                activations.append(tensor)
    if any(_is(tensor, np.int16) and tensor.scales.size for tensor in activations):
        raise ModelError(f"its activations are integers of 16 bits: {CONVERT}")
    if any(tensor.dtype in _BYTES and tensor.scales.size for tensor in activations):
        return
    if not any(_is(tensor, np.float32) for tensor in activations):
        return
    if any(_is(tensor, np.float16) for tensor in constants):
        raise ModelError(f"it is a float model, with weights of float16: {CONVERT}")
    if any(tensor.dtype in _BYTES and tensor.scales.size for tensor in constants):
        raise ModelError(
            "it is quantized in its weights only (dynamic-range quantization), and computes in "
            f"float: {CONVERT}"
        )
    raise ModelError(f"it is a float model: {CONVERT}")


def require_bytes(operator: TfliteOperator, *tensors: FileTensor) -> None:
    """Raise `ModelError` unless all ``tensors`` are quantized to 8 bits."""
    for tensor in tensors:
        if tensor.dtype not in _BYTES:
            raise ModelError(
                f"{operator.name} works on {tensor.dtype.name} ({tensor.name}): {CONVERT}"
            )
        if not tensor.scales.size:
            raise ModelError(f"{operator.name} works on {tensor.name}, which has no scale")


def _is(tensor: FileTensor, dtype: type) -> bool:
    return tensor.dtype == dtype
