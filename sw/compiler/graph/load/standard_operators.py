"""Move operators that ONNX Runtime's own domain shares with ONNX to ONNX's domain."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT

_BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
# Integer types, by operator, that ONNX allows in every opset that the compiler knows.
_INTEGERS = {"QuantizeLinear": _BYTES, "DequantizeLinear": _BYTES | {TensorProto.INT32}}


def use_standard_operators(model: onnx.ModelProto) -> None:
    """Move QuantizeLinear and DequantizeLinear of com.microsoft to ONNX's domain if they are
    equivalent there: with a float32 scale and a zero point of a type that ONNX allows."""
    types = {item.name: item.data_type for item in model.graph.initializer}
    types |= {
        node.output[0]: _constant_type(node)
        for node in model.graph.node
        if node.op_type == "Constant" and node.output
    }
    for node in model.graph.node:
        known = _INTEGERS.get(node.op_type)
        if node.domain == MICROSOFT and known is not None and len(node.input) > 2:
            scale, zero_point = (types.get(node.input[index]) for index in (1, 2))
            if scale == TensorProto.FLOAT and zero_point in known:
                node.domain = ""


def _constant_type(node: onnx.NodeProto) -> int:
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t.data_type
    return TensorProto.UNDEFINED
