"""Determine whether and how a model is quantized."""

from __future__ import annotations

import onnx

from .tflite import TFLITE_SOURCE
from .undefined_operators import nodes_of

# Result of `why_unquantized` for a model without integers.
FLOAT_MODEL = "is a float model"
_STATIC = frozenset({"QuantizeLinear", "QGemm"})
_DYNAMIC = frozenset(
    {"ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
    | {"MatMulInteger", "MatMulIntegerToFloat"}
)
_WEIGHTS_ONLY = frozenset(
    {"DequantizeLinear", "GatherBlockQuantized", "MatMulBnb4", "MatMulNBits", "QMoE"}
)


def why_unquantized(model: onnx.ModelProto) -> str:
    """Why nothing in ``model``, or nothing but its products, can run on the machine, worded as a
    predicate. Empty if the model is quantized with scales stored in the file."""
    if any(entry.key == TFLITE_SOURCE for entry in model.metadata_props):
        return ""  # other files are refused when they are read
    operators = {node.op_type for node in nodes_of(model.graph.node)}
    static = operators & _STATIC or any(name.startswith("QLinear") for name in operators)
    if not operators or static:
        return ""
    if operators & _DYNAMIC:
        return "is quantized dynamically, with scales that are known only at run time"
    if "QAttention" in operators:  # its input may be a quantized input of the network
        return ""
    if operators & _WEIGHTS_ONLY:
        return "has quantized weights, but activations in float"
    return FLOAT_MODEL
