"""Whether a model is quantized, and how."""

from __future__ import annotations

import onnx

_STATIC = frozenset({"QuantizeLinear", "DequantizeLinear", "QGemm", "QAttention"})
_DYNAMIC = frozenset(
    {"ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
    | {"MatMulInteger", "MatMulIntegerToFloat"}
)


def unquantized(model: onnx.ModelProto) -> str:
    """Why nothing of ``model`` can run on the machine, as the middle of a sentence; empty if it is
    quantized with scales that it holds."""
    operators = {node.op_type for node in model.graph.node}
    static = operators & _STATIC or any(name.startswith("QLinear") for name in operators)
    if not operators or static:
        return ""
    if operators & _DYNAMIC:
        return "is quantized dynamically, with scales that only a run tells"
    return "is a float model"
