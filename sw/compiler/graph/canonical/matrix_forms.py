"""Canonicalization rules that rewrite matrix products in simpler forms."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.compiler.graph.second_factor import SECOND_FACTOR
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_products import like_data
from .quantization import BYTE_TYPES, parameters_of

# Input position of the second factor of QLinearMatMul; its scale and zero point follow.
_SECOND = 3


def transpose_first(network: Network, node: Node) -> bool:
    """Remove ``transA`` from a Gemm or QGemm by transposing its first factor."""
    kind = (node.domain, node.operator)
    if kind not in (("", "Gemm"), (MICROSOFT, "QGemm")) or not node.attributes.get("transA"):
        return False
    source = node.inputs[0]
    info = network.types[source]
    if info.shape is None or len(info.shape) != 2:
        return False
    turned = network.unused_name(f"{source}_turned")
    network.types[turned] = replace(info, shape=info.shape[::-1])
    attributes = {name: value for name, value in node.attributes.items() if name != "transA"}
    product = replace(node, inputs=(turned, *node.inputs[1:]), attributes=attributes)
    transpose = Node("Transpose", turned, (source,), (turned,), {"perm": [1, 0]})
    network.nodes.replace(node, [transpose, product])
    return True


def matmul_of_gemm(network: Network, node: Node) -> bool:
    """Rewrite Gemm with a computed second factor as MatMul, followed by Add if it has a bias."""
    if node.domain or node.operator != "Gemm" or node.attributes.get("transA"):
        return False
    if any(node.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta")):
        return False
    second = network.maker(node.inputs[1])
    parameters = parameters_of(network, second, "DequantizeLinear")
    if second is None or parameters is None or second.inputs[0] in network.constants:
        return False
    factor, result, made = node.inputs[1], node.outputs[0], []
    info = network.types[factor]
    if node.attributes.get("transB") and info.shape is not None:
        turned = network.unused_name(f"{factor}_turned")
        network.types[turned] = replace(info, shape=info.shape[::-1])
        made.append(Node("Transpose", turned, (factor,), (turned,), {"perm": [1, 0]}))
        factor = turned
    product = result
    if node.input(2):
        product = network.unused_name(f"{result}_product")
        network.types[product] = network.types[result]
    made.append(Node("MatMul", node.name, (node.inputs[0], factor), (product,)))
    if node.input(2):
        made.append(Node("Add", f"{node.name}_bias", (product, node.inputs[2]), (result,)))
    network.nodes.replace(node, made)
    return True


def fold_gemm_factors(network: Network, node: Node) -> bool:
    """Fold ``alpha`` and ``beta`` of a Gemm by quantized constant weights into the scale of the
    weights and into the constant bias."""
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    if node.operator != "Gemm" or node.domain or (alpha, beta) == (1, 1) or alpha <= 0:
        return False
    weight = network.maker(node.inputs[1])
    parameters = parameters_of(network, weight, "DequantizeLinear")
    if weight is None or parameters is None or weight.inputs[0] not in network.constants:
        return False
    inputs = list(node.inputs)
    if node.input(2):
        bias = constant_values(network, node.inputs[2])
        if bias is None:
            return False
        inputs[2] = network.add_constant(f"{node.name}_bias", (bias * beta).astype(np.float32))
    scale = network.add_constant(f"{node.name}_scale", (parameters.scale * alpha).astype("f4"))
    inputs[1] = network.unused_name(f"{node.name}_weight")
    network.types[inputs[1]] = network.types[node.inputs[1]]
    given = (weight.inputs[0], scale, *weight.inputs[2:])
    scaled = replace(weight, name=inputs[1], inputs=given, outputs=(inputs[1],))
    kept = {name: v for name, v in node.attributes.items() if name not in ("alpha", "beta")}
    network.nodes.replace(node, [scaled, replace(node, inputs=tuple(inputs), attributes=kept)])
    return True


def constant_values(network: Network, name: str) -> Any:
    """The values of the constant ``name``, dequantized if it is quantized; None if it is not
    constant."""
    if name in network.constants:
        return network.constants[name]
    node = network.maker(name)
    parameters = parameters_of(network, node, "DequantizeLinear")
    if node is None or parameters is None or node.inputs[0] not in network.constants:
        return None
    return parameters.dequantize(network.constants[node.inputs[0]])


def matrix_of_vector(network: Network, node: Node) -> bool:
    """Rewrite QLinearMatMul with a 1-D factor for matrices: Reshape turns the vector into one row
    or one column, and restores the shape of the result."""
    shapes = _shapes(network, node)
    if shapes is None or min(map(len, shapes[:2])) > 1:
        return False
    *factors, result = shapes
    tall = [(1, *shape) if len(shape) == 1 else shape for shape in factors[:1]]
    tall += [(*shape, 1) if len(shape) == 1 else shape for shape in factors[1:]]
    rows, columns = tall[0][:-1], tall[1][-1:]
    stack = tall[1][:-2] if len(tall[1]) > len(tall[0]) else tall[0][:-2]
    out = (*stack, rows[-1], *columns)
    inputs, before = list(node.inputs), []
    for at, shape in zip((0, _SECOND), tall, strict=True):
        inputs[at], made = _reshaped(network, inputs[at], shape)
        before += made
    wide = network.unused_name(f"{node.outputs[0]}_matrix")
    network.types[wide] = replace(network.types[node.outputs[0]], shape=out)
    product = replace(node, inputs=tuple(inputs), outputs=(wide,))
    network.nodes.replace(node, [*before, product, reshape(network, wide, node.outputs[0], result)])
    return True


def same_stacks(network: Network, node: Node) -> bool:
    """Make implicit broadcasting between the stacks of a QLinearMatMul or MatMulInteger explicit: a
    stack of a single second factor becomes a matrix, other factors are repeated by Expand."""
    if node.domain or node.operator not in ("QLinearMatMul", "MatMulInteger"):
        return False
    second_at, _ = SECOND_FACTOR[node.domain, node.operator]
    first, second = (network.types[node.inputs[at]].shape for at in (0, second_at))
    if first is None or second is None or min(len(first), len(second)) < 2:
        return False
    if len(second) == 2 or first[:-2] == second[:-2]:
        return False
    inputs = list(node.inputs)
    before: list[Node] = []
    if prod(second[:-2]) == 1 and len(second) <= len(first):
        inputs[second_at], before = _reshaped(network, inputs[second_at], second[-2:])
    else:
        stack = np.broadcast_shapes(first[:-2], second[:-2])
        for at, shape in ((0, first), (second_at, second)):
            inputs[at], made = _expanded(network, inputs[at], (*stack, *shape[-2:]))
            before += made
    network.nodes.replace(node, [*before, replace(node, inputs=tuple(inputs))])
    return True


def constant_first(network: Network, node: Node) -> bool:
    """Rewrite QLinearMatMul of a constant matrix and a tensor as QLinearConv: columns are
    pixels."""
    shapes = _shapes(network, node)
    if shapes is None or node.inputs[0] not in network.constants:
        return False
    matrix, given, result = shapes
    _, scale, zero, data, data_scale, data_zero, *out = node.inputs
    weight, own = (network.constants.get(name) for name in (node.inputs[0], zero))
    if len(matrix) != 2 or len(given) < 2 or data in network.constants or weight is None:
        return False
    if own is None or own.size != 1 or network.types[data].dtype not in BYTE_TYPES:
        return False
    stack, pixels = prod(given[:-2]), given[-1]
    weight, own = like_data(weight, own.reshape(()), network.types[data].dtype)
    constants = (
        network.add_constant(f"{node.name}_weight", weight.reshape(*weight.shape, 1, 1)),
        scale,
        network.add_constant(f"{node.name}_zero_point", own),
    )
    image, before = _reshaped(network, data, (stack, matrix[1], 1, pixels))
    wide = network.unused_name(f"{node.outputs[0]}_image")
    kind = network.types[node.outputs[0]].dtype
    network.types[wide] = TensorType(kind, (stack, matrix[0], 1, pixels))
    inputs = (image, data_scale, data_zero, *constants, *out)
    product = Node("QLinearConv", node.name, inputs, (wide,), {"kernel_shape": [1, 1]})
    network.nodes.replace(node, [*before, product, reshape(network, wide, node.outputs[0], result)])
    return True


def _shapes(network: Network, node: Node) -> tuple[tuple[int, ...], ...] | None:
    """Shapes of both factors and the result of a QLinearMatMul."""
    if node.operator != "QLinearMatMul" or node.domain:
        return None
    names = (node.inputs[0], node.inputs[_SECOND], node.outputs[0])
    shapes = [network.types[name].shape for name in names]
    return (
        None
        if any(shape is None for shape in shapes)
        else tuple(s for s in shapes if s is not None)
    )


def _reshaped(network: Network, name: str, shape: tuple[int, ...]) -> tuple[str, list[Node]]:
    """``name`` reshaped to ``shape``, and the nodes that reshape it."""
    info = network.types[name]
    if info.shape == shape:
        return name, []
    if name in network.constants:
        return network.add_constant(f"{name}_matrix", network.constants[name].reshape(shape)), []
    made = network.unused_name(f"{name}_matrix")
    network.types[made] = replace(info, shape=shape)
    return made, [reshape(network, name, made, shape)]


def _expanded(network: Network, name: str, shape: tuple[int, ...]) -> tuple[str, list[Node]]:
    """``name`` broadcast to ``shape``, and the nodes that broadcast it."""
    info = network.types[name]
    if info.shape == shape:
        return name, []
    if name in network.constants:
        whole = np.ascontiguousarray(np.broadcast_to(network.constants[name], shape))
        return network.add_constant(f"{name}_repeated", whole), []
    made = network.unused_name(f"{name}_repeated")
    network.types[made] = replace(info, shape=shape)
    size = network.add_constant(f"{made}_shape", np.array(shape, np.int64))
    return made, [Node("Expand", made, (name, size), (made,))]


def reshape(network: Network, source: str, result: str, shape: tuple[int, ...]) -> Node:
    """A Reshape from ``source`` to ``result``, which has ``shape``."""
    size = network.add_constant(f"{result}_shape", np.array(shape, np.int64))
    return Node("Reshape", f"{result}_reshape", (source, size), (result,))
