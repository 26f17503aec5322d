"""Canonicalization rule that folds quantized constants through operators that move elements.

Exporters store weights in the layout of their framework, and put Transpose, Reshape or Concat
between DequantizeLinear and the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.sw.compiler.graph.network import Array, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .quantization import BYTE_TYPES

# Operators that copy each element of the result from the first input (Concat: from any input).
_MOVES = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose"}
    | {"Unsqueeze"}
)


@dataclass(frozen=True)
class _Elements:
    """Integers, scales and zero points of quantized constants, per element, in arrays of one
    shape."""

    values: Array
    scales: Array
    zeros: Array

    def taken(self, places: Array) -> _Elements:
        """The elements at flat indices ``places``."""
        arrays = (self.values, self.scales, self.zeros)
        return _Elements(*(item.reshape(-1)[places] for item in arrays))


def move_constant(network: Network, node: Node) -> bool:
    """Fold DequantizeLinear of a constant → operator that only moves elements into DequantizeLinear
    of the moved constant, if the result has one scale, or one scale per index along one axis. Also
    replace blocked scales if each block spans a whole channel."""
    if node.domain:
        return False
    if node.operator == "DequantizeLinear":
        given = _dequantized(network, node) if node.attributes.get("block_size") else None
        made = None if given is None else _dequantize(network, node, given, node.outputs[0])
        if made is not None:
            network.nodes.replace(node, [made])
        return made is not None
    if node.operator not in _MOVES:
        return False
    count = len(node.inputs) if node.operator == "Concat" else 1
    operands = [_dequantized(network, network.maker(name)) for name in node.inputs[:count]]
    known = [item for item in operands if item is not None]
    fixed = all(name in network.constants for name in node.inputs[count:] if name)
    if len(known) < count or not fixed:
        return False
    joined = _joined(known)
    places = None if joined is None else _places(network, node, [item.values for item in known])
    if joined is None or places is None:
        return False
    results = []
    for name, moved in places.items():
        made = _dequantize(network, node, joined.taken(moved), name)
        if made is None:
            return False
        results.append(made)
    network.nodes.replace(node, results)
    return True


def _dequantized(network: Network, node: Node | None) -> _Elements | None:
    """Per-element integers, scales and zero points of a DequantizeLinear; None if they are not
    constant."""
    if node is None or node.operator != "DequantizeLinear" or node.domain:
        return None
    values, scale, zero = (network.constants.get(node.input(index)) for index in range(3))
    if values is None or scale is None or (node.input(2) and zero is None):
        return None
    if zero is None:
        zero = np.zeros(scale.shape, values.dtype)
    parts = [_spread(item, node, values.shape) for item in (scale, zero)]
    scales, zeros = parts
    if scales is None or zeros is None or not values.size:
        return None
    return _Elements(values, scales, zeros)


def _spread(parameter: Array, node: Node, shape: tuple[int, ...]) -> Array | None:
    """Broadcast scales or zero points to ``shape``; None if their shapes do not match."""
    if parameter.size == 1:
        return np.broadcast_to(parameter.reshape(()), shape)
    axis = int(node.attributes.get("axis", 1))
    if not -len(shape) <= axis < len(shape):
        return None
    axis %= len(shape)
    if parameter.ndim == 1 and not node.attributes.get("block_size"):
        if parameter.size != shape[axis]:
            return None
        along = [1] * len(shape)
        along[axis] = -1
        return np.broadcast_to(parameter.reshape(along), shape)
    size = int(node.attributes.get("block_size", 0))
    if not size or parameter.ndim != len(shape):
        return None
    whole = np.repeat(parameter, size, axis).take(range(shape[axis]), axis)
    return whole if whole.shape == shape else None


def _joined(operands: Sequence[_Elements]) -> _Elements | None:
    """Flatten and concatenate all operands, with integers of a common type; None if there is no
    such type."""
    kinds = {item.values.dtype for item in operands}
    if len({item.scales.dtype for item in operands}) > 1:
        return None
    if len(kinds) > 1:
        if not kinds <= {*BYTE_TYPES}:
            return None
        operands = [_signed(item) for item in operands]
    values, scales, zeros = zip(
        *((item.values, item.scales, item.zeros) for item in operands), strict=True
    )
    return _Elements(*(np.concatenate([x.reshape(-1) for x in p]) for p in (values, scales, zeros)))


def _signed(elements: _Elements) -> _Elements:
    """Convert uint8 integers and zero points to int8; the real values stay the same."""
    if elements.values.dtype == np.int8:
        return elements
    moved = [
        (item.astype(np.int16) - 128).astype(np.int8) for item in (elements.values, elements.zeros)
    ]
    return _Elements(moved[0], elements.scales, moved[1])


def _places(network: Network, node: Node, operands: Sequence[Array]) -> dict[str, Array] | None:
    """For each output of ``node``, the index of each element in the concatenated operands; None if
    ONNX Runtime cannot run ``node``."""
    types, constants = dict(network.types), dict(network.constants)
    inputs, begin = list(node.inputs), 0
    for index, values in enumerate(operands):
        inputs[index] = network.unused_name(f"{node.name}_{index}_places")
        places = np.arange(begin, begin + values.size, dtype=np.float64)
        constants[inputs[index]] = places.reshape(values.shape)
        begin += values.size
    wanted = [name for name in node.outputs if name]
    types |= {name: TensorType(np.dtype(np.float64), None) for name in wanted}
    known = replace(network, types=types, constants=constants)
    part = known.part([replace(node, inputs=tuple(inputs))], [], wanted)
    try:
        found = run_session(exact_session(part.SerializeToString()), wanted, {})
    except ModelError:
        return None
    return {name: value.astype(np.int64) for name, value in found.items()}


def _dequantize(network: Network, node: Node, moved: _Elements, result: str) -> Node | None:
    """DequantizeLinear of ``moved`` to ``result``; None if scales or zero points vary along several
    axes."""
    shape = moved.values.shape
    if not moved.values.size:
        return None
    for axis in (None, *range(len(shape))):
        scale, zero = (_along(item, axis) for item in (moved.scales, moved.zeros))
        if scale is not None and zero is not None:
            break
    else:
        return None
    name = node.name if len(node.outputs) == 1 else result
    inputs = [
        network.add_constant(f"{result}_{what}", np.ascontiguousarray(value))
        for what, value in (("integers", moved.values), ("scale", scale), ("zero_point", zero))
    ]
    kept = {"axis": axis} if axis is not None else {}
    return Node("DequantizeLinear", name, tuple(inputs), (result,), kept)


def _along(parameter: Array, axis: int | None) -> Array | None:
    """Reduce per-element parameters to one per index along ``axis``, or to a single one if it is
    None. Returns None if they vary along other axes."""
    if axis is None:
        first = parameter.reshape(-1)[0]
        return np.asarray(first) if (parameter == first).all() else None
    rows = np.moveaxis(parameter, axis, 0).reshape(parameter.shape[axis], -1)
    return rows[:, 0] if (rows == rows[:, :1]).all() else None
