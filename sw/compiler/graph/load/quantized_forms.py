"""Whether a model is quantized, and how."""

from __future__ import annotations

import onnx

from .undefined_operators import nodes_of

# What `unquantized` says of a model without any integers.
FLOAT = "is a float model"
_STATIC = frozenset({"QuantizeLinear", "DequantizeLinear", "QGemm", "QAttention"})
_DYNAMIC = frozenset(
    {"ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
    | {"MatMulInteger", "MatMulIntegerToFloat"}
)


def unquantized(model: onnx.ModelProto) -> str:
    """Why nothing of ``model`` can run on the machine, or only its products, as a predicate for a
    sentence; empty if it is quantized with scales that the file holds."""
    operators = {node.op_type for node in nodes_of(model.graph.node)}
    static = operators & _STATIC or any(name.startswith("QLinear") for name in operators)
    if not operators or static:
        return ""
    if operators & _DYNAMIC:
        return "is quantized dynamically, with scales that are known only at run time"
    return FLOAT
