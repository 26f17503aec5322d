"""Derive index maps of operators that only move elements.

ONNX Runtime runs a chain of such operators on element indices in place of values, one byte at a
time. This way no attribute of an operator has to be interpreted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from onnx import TensorProto

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

from .network import Array, Network
from .nodes import Node

_MOVERS = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Identity", "Pad", "Reshape", "Resize", "ReverseSequence", "Slice", "SpaceToDepth"}
    | {"Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample"}
)
# Operators that change the shape of a tensor, but not the order of its elements.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Size limits of chains and tensors for which a map is derived.
_MOST_NODES, _MOST_SOURCES, _MOST_ELEMENTS = 200, 100, 1 << 25
_BYTES = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8}


class NoIndexMap(Exception):
    """No index map can be derived; the message has the reason."""


@dataclass(frozen=True)
class IndexMap:
    """The map of ``nodes``, which compute ``result`` from ``sources``.

    Each element of the result is a copy of the element with index ``numbers`` of the source with
    index ``source``; both arrays have the shape of the result. Where both are -1, the element is
    constant; ``constants`` has these elements in order.
    """

    nodes: tuple[Node, ...]
    sources: tuple[str, ...]
    result: str
    source: Array
    numbers: Array
    constants: Array


def is_mover(network: Network, node: Node | None) -> bool:
    """Whether ``node`` only moves elements, in a way known at compile time."""
    if node is None or node.domain or node.operator not in _MOVERS or len(node.outputs) != 1:
        return False
    if node.operator == "Resize" and node.attributes.get("mode", "nearest") != "nearest":
        return False
    others = () if node.operator == "Concat" else node.reads[1:]
    return all(name in network.constants for name in others)


def in_same_order(network: Network, name: str) -> list[str]:
    """The tensor ``name``, and tensors before it that have the same elements in the same order, up
    to the first. Between them are operators that change the shape, and Transpose of dimensions of
    size 1.
    """
    found = [name]
    while (maker := network.maker(found[-1])) is not None and _keeps_order(network, maker):
        found.append(maker.inputs[0])
    return found


def _keeps_order(network: Network, node: Node) -> bool:
    shape = network.types[node.inputs[0]].shape if node.inputs else None
    if node.domain or shape is None:
        return False
    if node.operator == "Transpose":
        order = node.attributes.get("perm", range(len(shape))[::-1])
        moved = [axis for axis in order if shape[axis] != 1]
        return moved == sorted(moved)
    return node.operator in _VIEWS


def movers_before(
    network: Network, node: Node, taken: AbstractSet[str] = frozenset()
) -> tuple[Node, ...]:
    """``node`` and the movers before it whose results are read only within this group, in order.
    Nodes with names in ``taken`` are excluded."""
    found = {id(node): node}
    queue = [node]
    while queue and len(found) < _MOST_NODES:
        for name in queue.pop(0).reads:
            maker = network.maker(name)
            if maker is None or id(maker) in found or maker.name in taken:
                continue
            if not is_mover(network, maker):
                continue
            readers = network.nodes.readers(name)
            if name not in network.outputs and all(id(reader) in found for reader in readers):
                found[id(maker)] = maker
                queue.append(maker)
            # Otherwise it is queued again by its last reader, if at all.
    return tuple(sorted(found.values(), key=network.nodes.place))


def index_map(network: Network, nodes: Sequence[Node]) -> IndexMap:
    """Derive the map of ``nodes``, movers in topological order, the last of which computes the
    result. Raises `NoIndexMap`."""
    made = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(name for node in nodes for name in node.reads)
    sources = tuple(name for name in read if name not in made and name not in network.constants)
    result = nodes[-1].outputs[0]
    for name in (*sources, result):
        if network.types[name].dtype not in _BYTES:
            raise NoIndexMap(f"its data is {network.types[name].dtype}, not int8 or uint8")
        if not network.types[name].shape:
            raise NoIndexMap(f"the shape of {name} is not fixed")
    shapes = [network.types[name].shape or () for name in sources]
    sizes = [prod(shape) for shape in shapes]
    if (
        not sources
        or len(sources) > _MOST_SOURCES
        or max(*sizes, prod(network.types[result].shape or ())) > _MOST_ELEMENTS
    ):
        raise NoIndexMap(
            f"it has {len(sources)} operands of up to {max(sizes, default=0):,} elements; the "
            f"compiler looks at 1 to {_MOST_SOURCES} of up to {_MOST_ELEMENTS:,}"
        )
    begins = np.cumsum([0, *sizes])
    probe = _Probe(network, nodes, sources, result)
    # Elements that stay the same when all source bits are inverted are constant.
    whole = np.arange(begins[-1], dtype=np.int32)
    first = probe.run(whole)
    moved = probe.run(~whole) != first
    numbers = first.astype(np.int32)
    for place in range(1, (int(begins[-1] - 1).bit_length() + 7) // 8):
        numbers |= probe.run(whole >> 8 * place).astype(np.int32) << 8 * place
    source = np.where(moved, np.int8(0), np.int8(-1))
    for begin in begins[1:-1]:
        source += moved & (numbers >= begin)
    numbers -= begins[np.maximum(source, 0)].astype(np.int32) if len(sources) > 1 else 0
    numbers[~moved] = -1
    constants = first.view(probe.dtype)[~moved].astype(np.int16)
    return IndexMap(tuple(nodes), sources, result, source, numbers, constants)


@dataclass(frozen=True)
class _Probe:
    network: Network
    nodes: Sequence[Node]
    sources: tuple[str, ...]
    result: str

    @property
    def dtype(self) -> np.dtype:
        return self.network.types[self.result].dtype

    @cached_property
    def _session(self) -> object:
        part = self.network.part(self.nodes, self.sources, [self.result])
        return exact_session(part.SerializeToString())

    def run(self, values: Array) -> Array:
        """Run the chain on the low bytes of ``values``, which are split among the sources; returns
        uint8."""
        feeds, begin = {}, 0
        for name in self.sources:
            info = self.network.types[name]
            end = begin + prod(info.shape or ())
            data = (values[begin:end] & 255).astype(np.uint8)
            feeds[name], begin = data.view(info.dtype).reshape(info.shape), end
        try:
            made = run_session(self._session, [self.result], feeds)[self.result]
        except ModelError as problem:
            raise NoIndexMap(str(problem)) from None
        return np.ascontiguousarray(made).view(np.uint8)
