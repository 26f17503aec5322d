"""Replace ONNX Runtime's fused integer products with float results by equivalent ONNX operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .replacement import Replacement


def split_fused_product(network: Network, node: Node) -> bool:
    """Replace QGemm without output scale, MatMulIntegerToFloat and DynamicQuantizeMatMul by
    MatMulInteger, scaling of the sums, and addition of the bias."""
    if node.domain != MICROSOFT or network.types[node.outputs[0]].shape is None:
        return False
    match node.operator:
        case "QGemm" if not node.input(7):
            return _split_gemm(network, node)
        case "MatMulIntegerToFloat":
            a, b, a_scale, b_scale = node.inputs[:4]
            zeros = node.input(4), node.input(5)
            made = Replacement(network, node)
            scaled_sums(made, (a, b, *zeros), (a_scale, b_scale), node.input(6))
        case "DynamicQuantizeMatMul":
            x, b, b_scale = node.inputs[:3]
            made = Replacement(network, node)
            given = network.types[x]
            a, a_scale, zero = made.add_all(
                *("DynamicQuantizeLinear", "quantized", (x,)),
                (replace(given, dtype=np.dtype(np.uint8)), *_scalars(given)),
            )
            scaled_sums(made, (a, b, zero, node.input(3)), (a_scale, b_scale), node.input(4))
        case _:
            return False
    made.put("MatMulInteger")
    return True


def _split_gemm(network: Network, node: Node) -> bool:
    """Split a QGemm, whose bias is added to the integer sums."""
    a, a_scale, a_zero, b, b_scale, b_zero = node.inputs[:6]
    weights, scales = (network.constants.get(name) for name in (b, b_scale))
    first = network.constants.get(a_scale)
    plain = node.attributes.get("alpha", 1.0) == 1.0 and not node.attributes.get("transA", 0)
    if weights is None or scales is None or first is None or not plain:
        return False
    if node.attributes.get("transB", 0):
        b = network.add_constant(f"{node.name}_transposed", weights.T)
    made = Replacement(network, node)
    total = made.add("MatMulInteger", "sums", np.int32, a, b, a_zero, b_zero)
    if node.input(6):
        total = made.add("Add", "biased", np.int32, total, node.inputs[6])
    scale = (first.reshape(()) * (scales.reshape(()) if scales.size == 1 else scales)).astype("f4")
    made.add("DequantizeLinear", "real", np.float32, total, made.constant("scale", scale), axis=1)
    made.put("MatMulInteger")
    return True


def scaled_sums(
    made: Replacement,
    product: tuple[str, ...],
    scales: tuple[str, str],
    bias: str,
    info: TensorType | None = None,
) -> str:
    """Add the nodes for the sums of ``product`` times both ``scales``, which may be known only at
    run time, plus ``bias``; returns the name of the result, of type ``info`` or that of the
    replaced node's."""
    real = info or made.type
    sums = replace(real, dtype=np.dtype(np.int32))
    (total,) = made.add_all("MatMulInteger", "sums", product, [sums])
    (floats,) = made.add_all("Cast", "real_sums", (total,), [real], to=TensorProto.FLOAT)
    (scale,) = made.add_all("Mul", "scale", scales, (made.network.types[scales[1]],))
    (result,) = made.add_all("Mul", "real", (floats, scale), [real])
    if bias:
        (result,) = made.add_all("Add", "real_biased", (result, bias), [real])
    return result


def _scalars(like: TensorType) -> tuple[TensorType, TensorType]:
    """Types of a scalar scale and a scalar zero point."""
    real = replace(like, dtype=np.dtype(np.float32), shape=())
    return real, replace(real, dtype=np.dtype(np.uint8))
