"""Canonicalization rules for Transpose, which is frequent in networks with channels last."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.elementwise import is_elementwise
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.graph.second_factor import (
    is_symmetric_factor,
    matrix_swap,
    swaps_matrices,
)

from .quantization import BYTE_TYPES, parameters_of, quantized_after
from .simpler_forms import reduced_axes

_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
# Element-wise operators with parameters along one axis.
_WITH_CHANNELS = frozenset({"BatchNormalization", "BiasGelu"})
# Size limit of the tensors that are searched for channel shuffles.
_MOST_ELEMENTS = 1 << 24
# Keys whose columns are a multiple of this fill the tiles of the default machine. Others stay one
# Transpose on the host.
_TILE = 16
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum"})


def merge_transposes(network: Network, node: Node) -> bool:
    """Merge two successive Transpose."""
    after = _order(network, node)
    maker = network.maker(node.inputs[0]) if after else None
    before = _order(network, maker)
    if after is None or maker is None or before is None:
        return False
    if _is_of_keys(network, node, before):
        return False
    perm = [before[axis] for axis in after]
    merged = replace(node, inputs=maker.inputs, attributes={"perm": perm})
    network.nodes.replace(node, [merged])
    return True


def split_keys(network: Network, node: Node) -> bool:
    """Split a Transpose of keys to transposed heads into one to heads and one of matrices: layers
    store heads as rows, and the machine brings these into weight tiles."""
    order = _order(network, node)
    if order is None or len(order) < 3:
        return False
    heads = [*order[:-2], order[-1], order[-2]]
    is_identity = heads == sorted(heads)
    name = network.unused_name(f"{node.name}_heads")
    after = replace(node, inputs=(name,), attributes={"perm": matrix_swap(len(order))})
    if is_identity or not _is_of_keys(network, after, heads):
        return False
    given = network.types[node.inputs[0]]
    shape = given.shape and tuple(given.shape[axis] for axis in heads)
    network.types[name] = replace(given, shape=shape)
    before = replace(node, name=name, outputs=(name,), attributes={"perm": heads})
    network.nodes.replace(node, [before, after])
    return True


def _is_of_keys(network: Network, node: Node, before: list[int]) -> bool:
    """Whether ``node`` transposes matrices, rows of which a Transpose by ``before`` leaves whole,
    for a product whose second factor a layer may store."""
    shape = network.types[node.outputs[0]].shape
    kept = before[-1] == len(before) - 1 and shape is not None
    if not kept or not swaps_matrices(node) or (shape or ())[-2] % _TILE:
        return False
    return is_symmetric_factor(network, node.outputs[0])


def gather_of_shuffle(network: Network, node: Node) -> bool:
    """Replace Reshape → Transpose → Reshape of integers that permute the channels of images,
    sequences or rows by a Gather of channels, as in ShuffleNet."""
    turned = network.maker(node.inputs[0]) if _reshapes(node) else None
    before = network.maker(turned.inputs[0]) if turned is not None else None
    order = _order(network, turned)
    if turned is None or order is None or before is None or not _reshapes(before):
        return False
    source = network.types[before.inputs[0]]
    parts, result = (network.types[name].shape for name in (turned.inputs[0], node.outputs[0]))
    shape = source.shape
    if source.dtype not in BYTE_TYPES or parts is None or shape is None or shape != result:
        return False
    if len(shape) < 2 or not 0 < prod(shape) <= _MOST_ELEMENTS:
        return False
    channels = np.arange(prod(shape)).reshape(*shape[:2], -1)
    moved = channels.reshape(parts).transpose(order).reshape(channels.shape)
    chosen = moved[0, :, 0] // channels.shape[2]
    if chosen.max() >= shape[1] or not np.array_equal(moved, channels[:, chosen]):
        return False
    indices = network.add_constant(f"{node.name}_channels", chosen)
    gather = Node("Gather", node.name, (before.inputs[0], indices), node.outputs, {"axis": 1})
    network.nodes.replace(node, [gather])
    return True


def _reshapes(node: Node) -> bool:
    return node.operator == "Reshape" and not node.domain


def reduce_before_transpose(network: Network, node: Node) -> bool:
    """Hoist ReduceMean | ReduceSum | ReduceMax, with the DequantizeLinear before it, over a
    Transpose if the remaining axes stay in order."""
    if node.domain or node.operator not in _REDUCTIONS:
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    if dequantize is None or parameters is None or not parameters.per_tensor:
        return False
    transpose = network.maker(dequantize.inputs[0])
    order, axes = _order(network, transpose), reduced_axes(network, node)
    shape = network.types[node.outputs[0]].shape
    if transpose is None or order is None or shape is None or not axes:
        return False
    kept = [order[axis] for axis in range(len(order)) if axis not in axes]
    if kept != sorted(kept):
        return False
    moved = [order[axis] for axis in axes]
    if min(moved) < 2:  # no layer reduces over images or channels
        return False
    given = network.types[transpose.inputs[0]]
    assert given.shape is not None
    source = network.unused_name(f"{node.name}_before")
    network.types[source] = replace(network.types[node.inputs[0]], shape=given.shape)
    sizes = tuple(given.shape[axis] for axis in kept)
    ready = (transpose.inputs[0], *dequantize.inputs[1:])
    network.nodes.replace(
        node,
        [
            replace(dequantize, name=source, inputs=ready, outputs=(source,)),
            *_reduced(network, node, source, moved, sizes),
        ],
    )
    return True


def reduce_columns(network: Network, node: Node) -> bool:
    """Rewrite DequantizeLinear → ReduceMean | ReduceSum over the rows of matrices (N, rows,
    channels), such as the tokens of an encoder, as Transpose → DequantizeLinear → reduction over
    columns."""
    if node.domain or node.operator not in _REDUCTIONS - {"ReduceMax"}:
        return False
    dequantize = network.maker(node.inputs[0])
    parameters = parameters_of(network, dequantize, "DequantizeLinear")
    shape, result = (network.types[name].shape for name in (node.inputs[0], node.outputs[0]))
    if dequantize is None or parameters is None or not parameters.per_tensor or result is None:
        return False
    if shape is None or len(shape) != 3 or reduced_axes(network, node) != [1]:
        return False
    if quantized_after(network, node.outputs[0]) is None:
        return False
    turned, source = (network.unused_name(f"{node.name}_{what}") for what in ("turned", "columns"))
    for tensor, like in ((turned, dequantize.inputs[0]), (source, node.inputs[0])):
        turned_shape = (shape[0], shape[2], shape[1])
        network.types[tensor] = replace(network.types[like], shape=turned_shape)
    given = (turned, *dequantize.inputs[1:])
    network.nodes.replace(
        node,
        [
            Node("Transpose", turned, (dequantize.inputs[0],), (turned,), {"perm": [0, 2, 1]}),
            replace(dequantize, name=source, inputs=given, outputs=(source,)),
            *_reduced(network, node, source, [2], (shape[0], shape[2])),
        ],
    )
    return True


def _reduced(
    network: Network, node: Node, source: str, axes: list[int], sizes: tuple[int, ...]
) -> list[Node]:
    """The reduction ``node`` of ``source`` over ``axes`` to the shape ``sizes``, and the Reshape to
    its final shape."""
    name, info = node.name, network.types[node.outputs[0]]
    reduced = network.unused_name(f"{name}_reduced")
    network.types[reduced] = replace(info, shape=sizes)
    attributes = {k: v for k, v in node.attributes.items() if k not in ("axes", "keepdims")}
    inputs: tuple[str, ...] = (source,)
    if node.input(1):
        inputs = (source, network.add_constant(f"{name}_axes", np.array(axes, np.int64)))
    else:
        attributes["axes"] = axes
    final = network.add_constant(f"{name}_shape", np.array(info.shape, np.int64))
    return [
        replace(node, inputs=inputs, outputs=(reduced,), attributes={**attributes, "keepdims": 0}),
        Node("Reshape", f"{name}_shaped", (reduced, final), node.outputs),
    ]


def sink_transpose(network: Network, node: Node) -> bool:
    """Sink a Transpose of images to channels last, with a DequantizeLinear after it, below an
    element-wise operator or QuantizeLinear. Other operands must be images with the same Transpose,
    single pixels, or constants. For single pixels a Reshape takes the place of the Transpose."""
    quantization = parameters_of(network, node, "QuantizeLinear")
    per_tensor = quantization is not None and quantization.per_tensor
    if len(node.outputs) != 1 or not (is_elementwise(node) or per_tensor):
        return False
    if node.operator in _WITH_CHANNELS:
        return False
    shape = network.types[node.outputs[0]].shape
    if shape is None or len(shape) != len(_LAST):
        return False
    operands = {name: _Operand(network, name) for name in node.reads}
    if not all(item.known for item in operands.values()):
        return False
    if not any(item.moved for item in operands.values()):
        return False
    made: list[Node] = []
    inputs = [operands[name].channels_first(made) if name else "" for name in node.inputs]
    result = network.unused_name(f"{node.outputs[0]}_first")
    before = tuple(shape[axis] for axis in _FIRST)
    network.types[result] = replace(network.types[node.outputs[0]], shape=before)
    last = Node("Transpose", f"{node.name}_last", (result,), node.outputs, {"perm": _LAST})
    if _is_pixel(shape):
        size = network.add_constant(f"{node.name}_shape", np.array(shape, np.int64))
        last = Node("Reshape", last.name, (result, size), node.outputs)
    changed = replace(node, inputs=tuple(inputs), outputs=(result,))
    network.nodes.replace(node, [*made, changed, last])
    return True


class _Operand:
    """An operand of an element-wise operator; if it is dequantized, with its DequantizeLinear."""

    def __init__(self, network: Network, name: str) -> None:
        self._network, self._name, self._source = network, name, name
        self._dequantize = network.maker(name)
        parameters = parameters_of(network, self._dequantize, "DequantizeLinear")
        if self._dequantize is None or parameters is None or not parameters.per_tensor:
            self._dequantize = None
        else:
            self._source = self._dequantize.inputs[0]
        self._shape = network.types[self._source].shape

    @property
    def moved(self) -> str | None:
        """The tensor with channels first that was transposed to this operand; None if there is
        none."""
        maker = self._network.maker(self._source)
        if maker is None:
            return None
        given = self._network.types[maker.inputs[0]].shape if maker.inputs else None
        if _order(self._network, maker) == _LAST:
            return maker.inputs[0]
        reshaped = maker.operator == "Reshape" and not maker.domain and self._is_pixel
        first = given is not None and len(given) == len(_LAST) and given[2:] == (1, 1)
        return maker.inputs[0] if reshaped and first else None

    @property
    def known(self) -> bool:
        """Whether `channels_first` can produce the operand."""
        constant = self._source in self._network.constants
        return constant or self.moved is not None or self._is_pixel

    @property
    def _is_pixel(self) -> bool:
        return self._shape is not None and len(self._shape) == len(_LAST) and _is_pixel(self._shape)

    def channels_first(self, made: list[Node]) -> str:
        """The operand with channels first; the nodes that produce it are appended to ``made``."""
        network, first = self._network, self.moved
        if self._source in network.constants:
            value = network.constants[self._source]
            if value.size == 1:
                return self._name
            wide = value.reshape((1,) * (len(_LAST) - value.ndim) + value.shape).transpose(_FIRST)
            first = network.add_constant(f"{self._source}_first", wide)
        elif first is None:
            assert self._shape is not None
            shape = tuple(self._shape[axis] for axis in _FIRST)
            first = network.unused_name(f"{self._source}_first")
            network.types[first] = replace(network.types[self._source], shape=shape)
            size = network.add_constant(f"{first}_shape", np.array(shape, np.int64))
            made.append(Node("Reshape", first, (self._source, size), (first,)))
        if self._dequantize is None:
            return first
        name = network.unused_name(f"{self._name}_first")
        network.types[name] = replace(network.types[self._name], shape=network.types[first].shape)
        given = (first, *self._dequantize.inputs[1:])
        made.append(replace(self._dequantize, name=name, inputs=given, outputs=(name,)))
        return name


def _is_pixel(shape: tuple[int, ...]) -> bool:
    """Whether a shape with channels last has a single pixel."""
    return shape[1:3] == (1, 1)


def _order(network: Network, node: Node | None) -> list[int] | None:
    """The permutation of a Transpose; None for other nodes, or if it is unknown."""
    if node is None or node.domain or node.operator != "Transpose":
        return None
    shape = network.types[node.inputs[0]].shape
    reverse = None if shape is None else list(range(len(shape)))[::-1]
    order = node.attributes.get("perm", reverse)
    return None if order is None else list(order)
