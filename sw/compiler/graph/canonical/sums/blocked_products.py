"""Rewrite products by weights with a scale per block as integer sums of each block.

A product by weights whose scale changes every ``size`` rows is a sum over blocks: Σ_k x w = Σ_b s_b
Σ_{k in b} x (w − z_b). The inner sums are products of integers, one matrix per block, if the first
factor is dequantized with one scale, or if the file allows its quantization: MatMulNBits of
``accuracy_level`` 4 quantizes each block of a row to int8 by its own scale, max |x| / 127.

MatMulNBits of float16 computes in float32, as in ONNX Runtime on processors without float16, and
rounds its result to float16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.compiler.graph.canonical.integer_products import like_data
from amaranth_vta.sw.compiler.graph.canonical.quantization import (
    BYTE_TYPES,
    QuantizationParameters,
    parameters_of,
)
from amaranth_vta.sw.compiler.graph.macs import macs
from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .replacement import Replacement

# Position of the bias, by operator.
_BIASES = {(MICROSOFT, "MatMulNBits"): 5, ("", "Gemm"): 2, ("", "MatMul"): 2}
# Attributes of Gemm, with their defaults.
_PLAIN = {"transA": 0, "alpha": 1.0, "beta": 1.0}
_FLOAT, _INT8, _INT32 = (np.dtype(item) for item in (np.float32, np.int8, np.int32))
_HALF = np.dtype(np.float16)
# The accuracy level of MatMulNBits that allows an int8 first factor.
_INT8_LEVEL = 4
_GREATEST = 127
# Block sizes and numbers of bits that ONNX Runtime runs.
_SIZES, _BITS = frozenset({16, 32, 64, 128, 256}), frozenset({2, 4, 8})
# The opset in which the axes of ReduceMax became an input.
_AXES_AS_INPUT = 18


class NoBlocks(Exception):
    """Blocks cannot be multiplied as integers; has the reason, as a clause about the operator."""


@dataclass(frozen=True)
class _Weights:
    """Weights minus their zero points (blocks, size, outputs), and ``scales`` (blocks, outputs).
    ``length`` is the number of inputs; the last block is padded with zeros."""

    values: Array
    scales: Array
    length: int


def split_blocks(network: Network, node: Node) -> bool:
    """Replace MatMulNBits, and MatMul and Gemm by blockwise dequantized weights, by MatMulInteger
    of a stack of blocks, scaling of the sums, and their addition."""
    try:
        weights, data = _factors(network, node)
    except NoBlocks:
        return False
    shape = network.types[node.inputs[0]].shape
    assert shape is not None
    blocks, _, outputs = weights.values.shape
    rows = prod(shape[:-1])
    network.macs[node.name] = macs(network, node)
    made = Replacement(network, node)
    if data is None:
        source, zero, scale = _quantized(made, _real(made, node.inputs[0]), weights, rows)
    else:
        maker = _maker(network, node.inputs[0])
        assert maker is not None
        zero, scale = data.zero, ""
        source = _in_blocks(made, maker.inputs[0], weights, rows, zero)
    result = _sums(made, source, weights, zero, rows)
    real = TensorType(_FLOAT, (blocks, rows, outputs))
    (result,) = made.add_all("Cast", "real_sums", (result,), [real], to=TensorProto.FLOAT)
    own = weights.scales if data is None else weights.scales * data.scale.reshape(())
    scales = made.constant("scales", own.astype(np.float32).reshape(blocks, 1, outputs))
    (result,) = made.add_all("Mul", "scaled", (result, scales), [real])
    if scale:
        (result,) = made.add_all("Mul", "real", (result, scale), [real])
    axes = made.constant("axes", np.array([0], np.int64))
    total = [TensorType(_FLOAT, (rows, outputs))]
    (result,) = made.add_all("ReduceSum", "total", (result, axes), total, keepdims=0)
    wanted = made.constant("shape", np.array((*shape[:-1], outputs), np.int64))
    whole = [replace(made.type, dtype=_FLOAT)]
    (result,) = made.add_all("Reshape", "rows", (result, wanted), whole)
    if bias := node.input(_BIASES[node.domain, node.operator]):
        (result,) = made.add_all("Add", "biased", (result, _real(made, bias)), whole)
    if made.type.dtype == _HALF:
        made.add_all("Cast", "half", (result,), [made.type], to=TensorProto.FLOAT16)
    made.put("MatMulInteger")
    return True


def _real(made: Replacement, name: str) -> str:
    """A tensor in float32."""
    info = made.network.types[name]
    if info.dtype == _FLOAT:
        return name
    wide = [replace(info, dtype=_FLOAT)]
    return made.add_all("Cast", "float", (name,), wide, to=TensorProto.FLOAT)[0]


def _maker(network: Network, name: str) -> Node | None:
    """The node that produces a tensor, before its cast to float16."""
    maker = network.maker(name)
    if maker is None or maker.operator != "Cast" or network.types[name].dtype != _HALF:
        return maker
    return network.maker(maker.inputs[0])


def _sums(made: Replacement, source: str, weights: _Weights, zero: Array, rows: int) -> str:
    """Add the sums of the blocks of ``source``, which have the zero point ``zero``; returns the
    name of the int32 result (blocks, rows, outputs).

    Nine-bit weights are shifted into the range of int8, by one amount per block and output. This
    amount times the sum of a block's inputs, which is one more output of the product, is added to
    the sums.
    """
    values, (blocks, _, outputs) = weights.values, weights.values.shape
    is_wide = not -128 <= values.min(initial=0) <= values.max(initial=0) < 128
    moved = values.min(axis=1, keepdims=True) + 128
    if is_wide:
        values = np.pad(values - moved, ((0, 0), (0, 0), (0, 1)), constant_values=1)
    factor, weight_zero = like_data(values.astype(np.int8), np.array(0, np.int8), zero.dtype)
    given = (
        source,
        made.constant("blocks", factor),
        made.constant("x_zero_point", zero.reshape(())),
        made.constant("weight_zero_point", weight_zero),
    )
    info = TensorType(_INT32, (blocks, rows, outputs))
    if not is_wide:
        return made.add_all("MatMulInteger", "sums", given, [info])[0]
    wide = [TensorType(_INT32, (blocks, rows, outputs + 1))]
    (both,) = made.add_all("MatMulInteger", "sums", given, wide)
    sizes = made.constant("sizes", np.array([outputs, 1], np.int64))
    single = TensorType(_INT32, (blocks, rows, 1))
    sums, of_rows = made.add_all("Split", "parts", (both, sizes), [info, single], axis=2)
    amount = made.constant("moved", moved.astype(np.int32))
    (rest,) = made.add_all("Mul", "rest", (of_rows, amount), [info])
    return made.add_all("Add", "whole", (sums, rest), [info])[0]


def why_no_blocks(network: Network, node: Node) -> str:
    """Why `split_blocks` did not replace ``node``, a product by weights with a scale per block."""
    try:
        _factors(network, node)
    except NoBlocks as reason:
        return str(reason)
    return "its blocks are no matrices"


def _factors(network: Network, node: Node) -> tuple[_Weights, QuantizationParameters | None]:
    """The weights, and the parameters of the first factor; None for parameters known only at run
    time. Raises `NoBlocks`."""
    if (node.domain, node.operator) not in _BIASES:
        raise NoBlocks("it is no product by blocks")
    if any(node.attributes.get(name, plain) != plain for name, plain in _PLAIN.items()):
        raise NoBlocks("it transposes or scales its first factor")
    is_packed = bool(node.domain)
    weights = _packed(network, node) if is_packed else _dequantized(network, node)
    given, result = network.types[node.inputs[0]], network.types[node.outputs[0]]
    if result.dtype not in ((_FLOAT, _HALF) if is_packed else (_FLOAT,)):
        raise NoBlocks(f"its result is of {result.dtype}")
    if not given.shape or given.shape[-1] != weights.length:
        raise NoBlocks("its first factor has another shape than its weights")
    data = parameters_of(network, _maker(network, node.inputs[0]), "DequantizeLinear")
    if data is not None and data.per_tensor and data.zero.dtype in BYTE_TYPES:
        return weights, data
    level = node.attributes.get("accuracy_level", 0)
    if not is_packed or level != _INT8_LEVEL:
        allowed = f", and accuracy_level {level} keeps it so" if is_packed else ""
        raise NoBlocks(f"its first factor is in float{allowed}")
    return weights, None


def _packed(network: Network, node: Node) -> _Weights:
    """The weights of a MatMulNBits."""
    length, outputs, size, bits = (
        int(node.attributes.get(name, default))
        for name, default in (("K", 0), ("N", 0), ("block_size", 0), ("bits", 4))
    )
    packed, scales = (network.constants.get(name) for name in node.inputs[1:3])
    if packed is None or scales is None:
        raise NoBlocks("its weights are known only at run time")
    blocks = -(-length // size) if size in _SIZES and bits in _BITS else 0
    if not blocks or packed.size * 8 != outputs * blocks * size * bits:
        raise NoBlocks("its weights have other sizes than its attributes say")
    if node.input(4) or node.attributes.get("weight_prepacked"):
        raise NoBlocks("its weights are in another order")
    zeros: Array = np.array(1 << (bits - 1), np.int32)
    if node.input(3):
        points = network.constants.get(node.inputs[3])
        if points is None or points.dtype != np.uint8:
            raise NoBlocks("its zero points are no constant integers")
        if points.size != outputs * -(-blocks * bits // 8):
            raise NoBlocks("its zero points have other sizes than its attributes say")
        zeros = _unpacked(points.reshape(outputs, -1), bits)[:, :blocks, None]
    values = _unpacked(packed.reshape(outputs, blocks, -1), bits) - zeros
    values.reshape(outputs, -1)[:, length:] = 0
    if scales.size != outputs * blocks:
        raise NoBlocks("its scales have other sizes than its attributes say")
    scales = scales.astype(np.float32).reshape(outputs, blocks)
    return _Weights(np.ascontiguousarray(values.transpose(1, 2, 0)), scales.T, length)


def _unpacked(packed: Array, bits: int) -> Array:
    """The numbers of ``bits`` along the last axis of an array of bytes, the first in the lowest
    bits of a byte, as int32."""
    shifts = np.arange(0, 8, bits)
    numbers = packed[..., None].astype(np.int32) >> shifts & (1 << bits) - 1
    return numbers.reshape(*packed.shape[:-1], -1)


def _dequantized(network: Network, node: Node) -> _Weights:
    """The second factor of a MatMul or Gemm, from a DequantizeLinear with a scale per block of
    inputs, perhaps transposed."""
    maker = network.maker(node.inputs[1])
    transposed = bool(node.attributes.get("transB", 0))
    if maker is not None and maker.operator == "Transpose":
        transposed ^= list(maker.attributes.get("perm", (1, 0))) == [1, 0]
        maker = network.maker(maker.inputs[0])
    size = maker.attributes.get("block_size", 0) if maker is not None else 0
    if maker is None or maker.operator != "DequantizeLinear" or not size:
        raise NoBlocks("its weights have no blocks")
    values, scales = (network.constants.get(name) for name in maker.inputs[:2])
    if values is None or scales is None or values.ndim != 2 or values.dtype not in BYTE_TYPES:
        raise NoBlocks("its weights are no constant matrix of 8 bits")
    if maker.attributes.get("axis", 1) % 2 != transposed or scales.dtype != np.float32:
        raise NoBlocks("its weights have a scale for each block of outputs")
    zeros: Array | None = np.zeros(scales.shape, np.int32)
    if maker.input(2):
        zeros = network.constants.get(maker.inputs[2])
    if zeros is None:
        raise NoBlocks("its zero points are known only at run time")
    if transposed:
        values, scales, zeros = values.T, scales.T, zeros.T
    length, outputs = values.shape
    spread = np.repeat(zeros.astype(np.int32), size, axis=0)[:length]
    padded = np.pad(values.astype(np.int32) - spread, ((0, -length % size), (0, 0)))
    return _Weights(padded.reshape(-1, size, outputs), scales, length)


def _quantized(
    made: Replacement, source: str, weights: _Weights, rows: int
) -> tuple[str, Array, str]:
    """Quantize each block of each row of a float tensor to int8; returns the names of the blocks,
    their zero point, and the name of their scales (blocks, rows, 1)."""
    blocks, size, _ = weights.values.shape
    cut = _in_blocks(made, source, weights, rows, np.array(0, np.float32))
    whole, single = (TensorType(_FLOAT, (blocks, rows, n)) for n in (size, 1))
    (absolute,) = made.add_all("Abs", "absolute", (cut,), [whole])
    if made.network.opsets.get("", 1) < _AXES_AS_INPUT:
        (most,) = made.add_all("ReduceMax", "most", (absolute,), [single], axes=[2], keepdims=1)
    else:
        axes = made.constant("last", np.array([2], np.int64))
        (most,) = made.add_all("ReduceMax", "most", (absolute, axes), [single], keepdims=1)
    greatest = made.constant("greatest", np.array(_GREATEST, np.float32))
    (scale,) = made.add_all("Div", "block_scales", (most, greatest), [single])
    # Blocks of zeros have any scale but 0.
    least = made.constant("least", np.array(np.finfo(np.float32).tiny, np.float32))
    (positive,) = made.add_all("Max", "positive", (scale, least), [single])
    (factor,) = made.add_all("Reciprocal", "factor", (positive,), [single])
    (steps,) = made.add_all("Mul", "steps", (cut, factor), [whole])
    (rounded,) = made.add_all("Round", "rounded", (steps,), [whole])
    integers = [TensorType(_INT8, whole.shape)]
    (result,) = made.add_all("Cast", "integers", (rounded,), integers, to=TensorProto.INT8)
    return result, np.array(0, np.int8), scale


def _in_blocks(made: Replacement, source: str, weights: _Weights, rows: int, zero: Array) -> str:
    """Cut rows, padded with ``zero`` to whole blocks, into a stack (blocks, rows, size)."""
    shape, (blocks, size, _) = made.network.types[source].shape, weights.values.shape
    assert shape is not None
    if missing := blocks * size - weights.length:
        value = made.constant("padding", zero.reshape(()))
        before = [0] * len(shape)
        amounts = made.constant("pads", np.array([*before, *before[:-1], missing], np.int64))
        wide = [TensorType(zero.dtype, (*shape[:-1], blocks * size))]
        (source,) = made.add_all("Pad", "padded", (source, amounts, value), wide)
    wanted = made.constant("cut", np.array([rows, blocks, size], np.int64))
    cut = [TensorType(zero.dtype, (rows, blocks, size))]
    (result,) = made.add_all("Reshape", "cut", (source, wanted), cut)
    stack = [TensorType(zero.dtype, (blocks, rows, size))]
    return made.add_all("Transpose", "stack", (result,), stack, perm=[1, 0, 2])[0]
