"""Canonicalization rules for float16 between quantizations.

Operators compute in float32, as in ONNX Runtime on processors without float16, and results are
quantized without prior rounding to float16.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node

_HALF, _FLOAT = np.dtype(np.float16), np.dtype(np.float32)
# Operators, besides element-wise ones, that the machine runs between DequantizeLinear and
# QuantizeLinear.
_OPERATORS = frozenset(
    {"AveragePool", "Concat", "Conv", "ConvTranspose", "DepthToSpace", "Expand", "Flatten"}
    | {"Gather", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Pad", "ReduceMean", "Reshape"}
    | {"Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def float_scale(network: Network, node: Node) -> bool:
    """Replace float16 QuantizeLinear and DequantizeLinear by float32 ones with a Cast. All values
    stay the same."""
    if node.domain or node.operator not in ("QuantizeLinear", "DequantizeLinear"):
        return False
    scale = network.constants.get(node.input(1))
    real = node.inputs[0] if node.operator == "QuantizeLinear" else node.outputs[0]
    if scale is None or scale.dtype not in (_HALF, _FLOAT):
        return False
    if network.types[real].dtype != _HALF and scale.dtype != _HALF:
        return False
    wide = node.inputs[1]
    if scale.dtype == _HALF:
        wide = network.add_constant(f"{node.inputs[1]}_float", scale.astype(_FLOAT))
    attributes = dict(node.attributes)
    if node.operator == "DequantizeLinear":
        attributes.pop("output_dtype", None)
    made = replace(node, inputs=(node.inputs[0], wide, *node.inputs[2:]), attributes=attributes)
    if network.types[real].dtype != _HALF:
        network.nodes.replace(node, [made])
    elif node.operator == "QuantizeLinear":
        before, cast = _cast(network, real)
        network.nodes.replace(node, [cast, replace(made, inputs=(before, *made.inputs[1:]))])
    else:
        network.nodes.replace(node, _in_float(network, made))
    return True


def compute_in_float(network: Network, node: Node) -> bool:
    """Sink the Cast to float16 of dequantized tensors below the operators that read them, then
    below each operator that is the only reader."""
    if node.domain or not (node.operator in _OPERATORS or is_elementwise(node)):
        return False
    if any(network.types[name].dtype != _HALF for name in node.outputs if name):
        return False
    inputs = []
    for name in node.inputs:
        if not name or network.types[name].dtype != _HALF:
            inputs.append(name)
        elif name in network.constants:
            inputs.append(
                network.add_constant(f"{name}_float", network.constants[name].astype("f4"))
            )
        elif (source := _source(network, node, name)) is not None:
            inputs.append(source)
        else:
            return False
    if inputs == list(node.inputs):
        return False
    if all(given in network.constants for given in inputs if given):
        return False
    network.nodes.replace(node, _in_float(network, replace(node, inputs=tuple(inputs))))
    return True


def drop_casts(network: Network, node: Node) -> bool:
    """Remove Cast to float16 → Cast to float32 after a DequantizeLinear or before
    QuantizeLinear."""
    if not _casts(network, node, _HALF, _FLOAT) or node.outputs[0] in network.outputs:
        return False
    first = network.maker(node.inputs[0])
    if first is None or not _casts(network, first, _FLOAT, _HALF):
        return False
    source, result = first.inputs[0], node.outputs[0]
    readers = network.nodes.readers(result)
    if any(result in reader.captured for reader in readers):
        return False
    if not _is_dequantized(network, source) and any(
        reader.operator != "QuantizeLinear" for reader in readers
    ):
        return False
    network.nodes.remove(node)
    network.rename(result, source)
    return True


def _source(network: Network, node: Node, name: str) -> str | None:
    """The float32 tensor that is cast to ``name``, if ``node`` may read it instead."""
    cast = network.maker(name)
    if cast is None or not _casts(network, cast, _FLOAT, _HALF):
        return None
    source = cast.inputs[0]
    follows = network.only_reader(name) is node
    return source if follows or _is_dequantized(network, source) else None


def _is_dequantized(network: Network, name: str) -> bool:
    maker = network.maker(name)
    return maker is not None and maker.operator == "DequantizeLinear" and not maker.domain


def _casts(network: Network, node: Node, given: np.dtype, made: np.dtype) -> bool:
    if node.operator != "Cast" or node.domain:
        return False
    types = (network.types[name].dtype for name in (node.inputs[0], node.outputs[0]))
    return tuple(types) == (given, made)


def _in_float(network: Network, node: Node) -> list[Node]:
    """``node`` with float32 results, followed by Casts to float16."""
    outputs: list[str] = []
    casts = []
    for name in node.outputs:
        if not name:
            outputs.append(name)
            continue
        wide = network.unused_name(f"{name}_float")
        network.types[wide] = replace(network.types[name], dtype=_FLOAT)
        outputs.append(wide)
        kind = {"to": TensorProto.FLOAT16}
        casts.append(Node("Cast", f"{name}_half", (wide,), (name,), kind))
    return [replace(node, outputs=tuple(outputs)), *casts]


def _cast(network: Network, name: str) -> tuple[str, Node]:
    """Cast a tensor to float32; returns the name of the result and the Cast."""
    wide = network.unused_name(f"{name}_float")
    network.types[wide] = replace(network.types[name], dtype=_FLOAT)
    return wide, Node("Cast", wide, (name,), (wide,), {"to": TensorProto.FLOAT})
