"""The generated networks of MLPerf Tiny have the shapes of the published ones."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from amaranth_vta.networks import MLPERF_TINY, generate_tiny
from amaranth_vta.networks.tflite_network import reference

# Shapes of input and output, MACs, and operators of the published files.
PUBLISHED = {
    "mlperf-keywords": ((1, 49, 10, 1), (1, 12), 2_656_768, {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 4}),
    "mlperf-wake-words": (
        *((1, 96, 96, 3), (1, 2), 7_489_664),
        {"CONV_2D": 14, "DEPTHWISE_CONV_2D": 13},
    ),
    "mlperf-resnet": ((1, 32, 32, 3), (1, 10), 12_501_632, {"CONV_2D": 9, "ADD": 3}),
    "mlperf-anomaly": ((1, 640), (1, 640), 264_192, {"FULLY_CONNECTED": 10}),
    "mlperf-streaming": (
        *((1, 30, 1, 40), (1, 3), 826_368),
        {"CONV_2D": 4, "DEPTHWISE_CONV_2D": 4},
    ),
}
_NAMES = {value: name for name, value in vars(schema.BuiltinOperator).items()}
_ENDS = ("AVERAGE_POOL_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX")


def operators(model: schema.ModelT) -> list[tuple[str, schema.OperatorT]]:
    graph = model.subgraphs[0]
    return [(_NAMES[model.operatorCodes[op.opcodeIndex].builtinCode], op) for op in graph.operators]


def macs(model: schema.ModelT) -> int:
    tensors, total = model.subgraphs[0].tensors, 0
    for name, op in operators(model):
        if name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
            pixels = prod(tensors[op.outputs[0]].shape[:-1])
            total += pixels * prod(tensors[op.inputs[1]].shape)
    return int(total)


@pytest.mark.parametrize("name", MLPERF_TINY)
def test_a_network_has_the_shapes_of_the_published_one(name: str) -> None:
    model = schema.ModelT.InitFromPackedBuf(generate_tiny(name), 0)
    (graph,) = model.subgraphs
    given, wanted, count, kinds = PUBLISHED[name]
    assert tuple(graph.tensors[graph.inputs[0]].shape) == given
    assert graph.tensors[graph.inputs[0]].shapeSignature[0] == -1
    assert tuple(graph.tensors[graph.outputs[0]].shape) == wanted
    assert macs(model) == count
    found = Counter(name for name, _ in operators(model))
    assert {kind: found[kind] for kind in kinds} == kinds
    assert set(found) <= {*kinds, *_ENDS}


@pytest.mark.parametrize("name", MLPERF_TINY)
def test_a_network_is_the_same_at_each_call(name: str) -> None:
    first = generate_tiny(name)
    generate_tiny.cache_clear()
    assert generate_tiny(name) == first


@pytest.mark.parametrize("name", MLPERF_TINY)
def test_activations_use_their_range(name: str) -> None:
    interpreter = Interpreter(
        model_content=generate_tiny(name),
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
    )
    interpreter.allocate_tensors()
    (given,) = interpreter.get_input_details()
    rng = np.random.default_rng(1)
    values = np.clip(np.rint(rng.normal(0, 60, given["shape"])), -128, 127).astype(np.int8)
    interpreter.set_tensor(given["index"], values)
    interpreter.invoke()
    levels = [
        np.unique(interpreter.get_tensor(item["index"])).size
        for item in interpreter.get_tensor_details()
        if item["dtype"] == np.int8 and prod(item["shape"]) > 1000 and "/w" not in item["name"]
    ]
    assert np.median(levels or [128]) > 100


def test_outputs_depend_on_inputs() -> None:
    for name in MLPERF_TINY:
        data = generate_tiny(name)
        shape = tuple(schema.ModelT.InitFromPackedBuf(data, 0).subgraphs[0].tensors[0].shape)
        rng = np.random.default_rng(2)
        first, second = (
            reference(data, rng.integers(-128, 128, shape).astype(np.int8))[0] for _ in range(2)
        )
        assert (first != second).any()
