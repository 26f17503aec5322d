"""Prepares a model for ONNX Runtime's quantizer: `sort_nodes`, `separate_constants`, and
`UniqueNames`, which cannot collide with the names that the quantizer adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

import onnx

from amaranth_vta.sw.compiler.graph.nodes import subgraphs

_MARK = "`"


class UniqueNames:
    """Renames all tensors and nodes of a model: ``b`` becomes ``b`0` ``, each with another number.

    The quantizer adds tensors under names with suffixes, such as ``b_scale`` and, for the copy of a
    shared bias, ``b0``, and does not check whether the model uses these names. Unique names stay
    distinct with any suffixes. They sort like the original names, because the quantizer orders
    nodes by name.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        mark = _MARK
        while any(mark in name for name in _names(model.graph)):
            mark += _MARK
        self._mark, self._unique = mark, re.compile(f"{mark}([0-9]+){mark}")
        self._originals: list[str] = []
        self._tensors: dict[str, str] = {}
        _rename(self.model.graph, self.tensor, self._new)

    def tensor(self, name: str) -> str:
        """The unique name of the tensor ``name`` of the model."""
        if name not in self._tensors:
            self._tensors[name] = self._new(name)
        return self._tensors[name]

    def of_copy(self, unique: str) -> str:
        """A unique name for a copy of the tensor ``unique``."""
        return self._new(self.original(unique))

    def _new(self, name: str) -> str:
        self._originals.append(name)
        return f"{name}{self._mark}{len(self._originals) - 1}{self._mark}"

    def original(self, unique: str) -> str:
        """``unique`` with its unique name replaced by the original one; a suffix is kept."""
        found = self._unique.search(unique)
        return unique if found is None else self._originals[int(found[1])] + unique[found.end() :]

    def has_suffix(self, unique: str) -> bool:
        """Whether the quantizer made this name: it is not a unique name, or has a suffix."""
        found = self._unique.search(unique)
        return found is None or found.end() < len(unique)

    def readable(self, text: str) -> str:
        """``text`` with unique names replaced by original ones."""
        return self._unique.sub("", text)

    def restore(self, model: onnx.ModelProto) -> dict[str, str]:
        """Give ``model``, made from this model, its original names back, with the quantizer's
        suffixes; returns the new tensor names by unique name. A name with a suffix that is already
        taken gets underscores.
        """
        tensors, nodes = _Restored(self), _Restored(self)
        # Names without a suffix come first, so that they keep the user's names.
        for name in sorted(tensor_names(model.graph), key=self.has_suffix):
            tensors.name(name)
        _rename(model.graph, tensors.name, nodes.name)
        return tensors.names


def separate_constants(names: UniqueNames, in_float: Collection[str]) -> None:
    """Copy constants that nodes ``in_float`` share with other nodes, for the former: the quantizer
    quantizes a constant for all of its readers. Renames in the model of ``names``.
    """
    graph = names.model.graph
    constants = {item.name: item for item in graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in set(node.input) & constants.keys():
            readers.setdefault(name, []).append(node)
    for name, nodes in readers.items():
        exact = [node for node in nodes if node.name in in_float]
        if not 0 < len(exact) < len(nodes):
            continue
        copied = onnx.TensorProto()
        copied.CopyFrom(constants[name])
        copied.name = names.of_copy(name)
        graph.initializer.append(copied)
        for node in exact:
            node.input[:] = [copied.name if item == name else item for item in node.input]


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Sort nodes so that each tensor is produced before it is read, including reads in subgraphs.

    ONNX Runtime's quantizer sorts nodes, but ignores reads in subgraphs.
    """
    if not any(True for node in graph.node for _ in subgraphs(node)):
        return
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    reads = []
    for node in graph.node:
        names = {*node.input, *(name for inner in subgraphs(node) for name in tensor_names(inner))}
        reads.append(sorted({makers[name] for name in names if name in makers}))
    order: dict[int, onnx.NodeProto] = {}
    for last in range(len(graph.node)):
        waiting = [last]
        while waiting:
            index = waiting[-1]
            missing = [other for other in reads[index] if other not in order and other != index]
            if missing:
                waiting += missing
                continue
            order.setdefault(index, graph.node[index])
            waiting.pop()
    replace_nodes(graph, order.values())


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace the nodes of ``graph`` by copies of ``nodes``, which may be its own."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


class _Restored:
    """Distinct original names for unique names."""

    def __init__(self, unique: UniqueNames) -> None:
        self._unique = unique
        self._taken: set[str] = set()
        self.names: dict[str, str] = {}

    def name(self, unique: str) -> str:
        if unique not in self.names:
            name = self._unique.original(unique)
            while name in self._taken:
                name += "_"
            self._taken.add(name)
            self.names[unique] = name
        return self.names[unique]


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from tensor_names(graph)
    for node in graph.node:
        yield node.name
        for inner in subgraphs(node):
            yield from _names(inner)


def tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all tensors, including subgraphs."""
    for item in (*graph.input, *graph.output, *graph.initializer):
        yield item.name
    for node in graph.node:
        yield from filter(None, (*node.input, *node.output))
        for inner in subgraphs(node):
            yield from tensor_names(inner)


def _rename(
    graph: onnx.GraphProto, tensor: Callable[[str], str], node: Callable[[str], str]
) -> None:
    """Rename all tensors and nodes, including subgraphs. A tensor of the outer graph gets the same
    name in the subgraphs that read it.
    """
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        item.name = tensor(item.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = tensor(sparse.values.name)
    for item in graph.node:
        item.name = node(item.name)
        item.input[:] = [tensor(name) if name else "" for name in item.input]
        item.output[:] = [tensor(name) if name else "" for name in item.output]
        for inner in subgraphs(item):
            _rename(inner, tensor, node)
