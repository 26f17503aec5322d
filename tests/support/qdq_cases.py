"""ONNX's own test cases of float operators, quantized as QDQ files of one operator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

Array = npt.NDArray[Any]
_OPSETS = range(7, 27)


@dataclass(frozen=True)
class QdqCase:
    """A ``model`` with one input, ``given``, and ``images`` for it."""

    name: str
    operator: str
    model: onnx.ModelProto
    images: Array


def qdq_cases() -> Iterator[QdqCase]:
    """Cases of one operator whose first input and only result are float32. The first input is
    quantized; other float inputs become quantized constants, or plain ones if they are short.
    """
    # The cases divide by zero on purpose, and cause deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        if case.model is not None and case.data_sets:
            made = _quantized(case, case.model)
            if made is not None:
                yield made


def _quantized(case: TestCase, model: onnx.ModelProto) -> QdqCase | None:
    graph = model.graph
    if len(graph.node) != 1 or len(graph.output) != 1 or graph.initializer:
        return None
    domains = {item.domain: item.version for item in model.opset_import}
    if set(domains) - {"", "ai.onnx"} or next(iter(domains.values())) not in _OPSETS:
        return None
    inputs, outputs = (case.data_sets or [([], [])])[0]
    arrays = [*inputs, *outputs]
    if not inputs or not all(isinstance(item, np.ndarray) and item.size for item in arrays):
        return None
    x, y = inputs[0], outputs[0]
    finite = all(np.isfinite(item).all() for item in arrays if item.dtype == np.float32)
    if x.dtype != np.float32 or y.dtype != np.float32 or not finite or x.ndim == 0:
        return None
    return QdqCase(case.name, graph.node[0].op_type, _model(model, inputs, y), x)


def _model(model: onnx.ModelProto, inputs: Sequence[Array], y: Array) -> onnx.ModelProto:
    graph, constants = model.graph, {}
    nodes: list[onnx.NodeProto] = []

    def scale(name: str, values: Array, short: int) -> list[str]:
        low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
        constants[f"{name}_scale"] = np.array((high - low) / 253, np.float32)
        zero = np.clip(np.rint(-128 + 1 - low / constants[f"{name}_scale"]), -128, 127)
        constants[f"{name}_zero"] = np.array(zero if short else 0, np.int8)
        return [f"{name}_scale", f"{name}_zero"]

    names = {}
    for number, (item, value) in enumerate(zip(graph.input, inputs, strict=True)):
        name = item.name
        if value.dtype != np.float32 or (number and value.ndim < 2):
            constants[name] = value
            continue
        names[name] = f"{name}_real"
        quantization = scale(name, value, number == 0)
        if number == 0:
            first, second = ["given", *quantization], ["given_int", *quantization]
            nodes.append(helper.make_node("QuantizeLinear", first, ["given_int"]))
            nodes.append(helper.make_node("DequantizeLinear", second, [names[name]]))
        else:
            steps = np.rint(value / constants[f"{name}_scale"]).clip(-128, 127)
            constants[f"{name}_int"] = steps.astype(np.int8)
            given = [f"{name}_int", *quantization]
            nodes.append(helper.make_node("DequantizeLinear", given, [names[name]]))
    node = onnx.NodeProto()
    node.CopyFrom(graph.node[0])
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    node.output[0] = "result_real"
    quantization = scale("result", y, 1)
    nodes += [
        node,
        helper.make_node("QuantizeLinear", ["result_real", *quantization], ["result_int"]),
        helper.make_node("DequantizeLinear", ["result_int", *quantization], ["result"]),
    ]
    made = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("given", TensorProto.FLOAT, inputs[0].shape)],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, y.shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    version = max(10, model.opset_import[0].version)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
