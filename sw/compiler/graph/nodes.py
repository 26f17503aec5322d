"""The ordered operators of a network, with maps from tensors to their producers and readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
from onnx import helper

# Domain of ONNX Runtime's own operators.
MICROSOFT = "com.microsoft"
# The position of a node in the order. Positions are comparable, and new ones fit between any two.
Place = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One operator. An omitted optional input has an empty name, as in ONNX."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    # Tensors of the enclosing graph that subgraphs in the attributes (of If, Loop, Scan) read.
    captured: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.inputs, *self.captured) if name)

    def input(self, index: int) -> str:
        """The name of an input, empty if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @classmethod
    def from_onnx(cls, node: onnx.NodeProto, name: str) -> Node:
        return cls(
            operator=node.op_type,
            name=name,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={item.name: _attribute(item) for item in node.attribute},
            domain="" if node.domain == "ai.onnx" else node.domain,
            captured=tuple(sorted(_captured(node))),
        )

    def to_onnx(self) -> onnx.NodeProto:
        return helper.make_node(
            self.operator,
            self.inputs,
            self.outputs,
            name=self.name,
            domain=self.domain,
            **self.attributes,
        )


class Nodes:
    """Ordered nodes, with the producer and the readers of each tensor.

    The cost of a change is proportional to the number of nodes it touches. Nodes are identified by
    object identity, not by their contents. ``added`` has the nodes that were added, and ``unread``
    the tensors that lost a reader, since they were last cleared.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._at: dict[Place, Node] = {}
        self._places: dict[int, Place] = {}
        self._makers: dict[str, Node] = {}
        self._readers: dict[str, dict[int, Node]] = {}
        self._sorted = True
        self.added: list[Node] = []
        self.unread: list[str] = []
        for number, node in enumerate(nodes):
            self._add(node, (number,))

    def __iter__(self) -> Iterator[Node]:
        if not self._sorted:
            self._at = dict(sorted(self._at.items(), key=lambda item: item[0]))
            self._sorted = True
        return iter(list(self._at.values()))

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, node: object) -> bool:
        return id(node) in self._places

    def maker(self, name: str) -> Node | None:
        """The node that produces a tensor; None for inputs and constants of the network."""
        return self._makers.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a tensor, each listed once."""
        return list(self._readers.get(name, {}).values())

    def place(self, node: Node) -> Place:
        return self._places[id(node)]

    def at(self, place: Place) -> Node | None:
        """The node at a position; None if it has been removed."""
        return self._at.get(place)

    def replace(self, old: Node, new: Sequence[Node]) -> None:
        """Replace ``old`` by the nodes ``new``, in this order."""
        place = self._places[id(old)]
        self.remove(old)
        if len(new) == 1:
            self._add(new[0], place)
        else:
            for number, node in enumerate(new):
                self._add(node, (*place, number))
        self._sorted = False

    def remove(self, node: Node) -> None:
        del self._at[self._places.pop(id(node))]
        for name in node.outputs:
            # A replacement for the node may already be registered as the producer.
            if name and self._makers.get(name) is node:
                del self._makers[name]
        for name in node.reads:
            self._readers[name].pop(id(node), None)
        self.unread += node.reads

    def _add(self, node: Node, place: Place) -> None:
        self._at[place] = node
        self._places[id(node)] = place
        self.added.append(node)
        self._makers.update((name, node) for name in node.outputs if name)
        for name in node.reads:
            self._readers.setdefault(name, {})[id(node)] = node


def renamed(node: Node, old: str, new: str) -> Node:
    """``node`` with its input ``old`` replaced by ``new``."""
    return replace(node, inputs=tuple(new if name == old else name for name in node.inputs))


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The branches of an If, or the body of a Loop or Scan."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def renamed_node(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of ``node`` and its subgraphs with tensors renamed by ``names``."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    for given in (copied.input, copied.output):
        renamed = [names.get(name, name) for name in given]
        del given[:]
        given.extend(renamed)
    for graph in subgraphs(copied):
        own = {item.name for item in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        outer = {name: new for name, new in names.items() if name not in own}
        inner_nodes = [renamed_node(inner, outer) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(inner_nodes)
        for item in graph.output:
            item.name = outer.get(item.name, item.name)
    return copied


def _captured(node: onnx.NodeProto) -> set[str]:
    found: set[str] = set()
    for graph in subgraphs(node):
        known = {item.name for item in (*graph.input, *graph.initializer)}
        for inner in graph.node:
            found |= {name for name in inner.input if name and name not in known}
            found |= _captured(inner) - known
            known |= set(inner.output)
    return found
