"""Apply rewrite rules to a network until none applies, revisiting only changed neighborhoods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Place

# A rule changes the network at a node and returns True, or returns False.
Rule = Callable[[Network, Node], bool]

# From an operator, a rule looks downstream through these, up to a QuantizeLinear.
_LOOKED_THROUGH = frozenset({"QuantizeLinear", "Relu", "Clip"})


class _Waiting:
    """Priority queue, in network order, of the nodes at which a rule has yet to be tried."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._heap = list(places)
        self._queued = set(places)
        heapify(self._heap)

    def push(self, place: Place) -> None:
        if place not in self._queued:
            self._queued.add(place)
            heappush(self._heap, place)

    def pop(self) -> Place | None:
        if not self._heap:
            return None
        place = heappop(self._heap)
        self._queued.remove(place)
        return place


def rewrite(network: Network, rules: Sequence[Rule]) -> None:
    """Apply ``rules`` until none applies. Each step applies the first rule that applies anywhere,
    at the first node where it does, and removes dead nodes.

    A rule that failed at a node is retried there only after a change nearby: to the node, to
    producers of its inputs or readers of its outputs, to the producer of the input of a
    DequantizeLinear before it, or after the clamps (and the addition of a bias) that follow it.
    Rules must not look further.
    """
    nodes = network.nodes
    waiting = [_Waiting([nodes.place(node) for node in nodes]) for _ in rules]
    nodes.added.clear()
    nodes.unread.clear()
    while (changed := _apply_first(network, rules, waiting)) is not None:
        for place in {nodes.place(node) for node in changed}:
            for queue in waiting:
                queue.push(place)


def _apply_first(
    network: Network, rules: Sequence[Rule], waiting: Sequence[_Waiting]
) -> list[Node] | None:
    """Apply one rule. Returns the nodes at which rules have to be retried, or None if no rule
    applied."""
    for rule, queue in zip(rules, waiting, strict=True):
        while (place := queue.pop()) is not None:
            node = network.nodes.at(place)
            if node is not None and rule(network, node):
                queue.push(place)
                _remove_dead(network)
                return list(_near_changes(network))
    return None


def _remove_dead(network: Network) -> None:
    """Remove nodes whose results have lost their last reader, and then their dead producers."""
    nodes, outputs = network.nodes, network.outputs
    # `unread` grows while nodes are removed.
    for name in nodes.unread:
        maker = nodes.maker(name)
        if maker is not None and not any(
            nodes.readers(result) or result in outputs for result in maker.outputs
        ):
            nodes.remove(maker)


def _near_changes(network: Network) -> Iterator[Node]:
    nodes = network.nodes
    near: list[Node] = []
    for node in nodes.added:
        if node in nodes:
            near.append(node)
            near += _makers(network, node.reads)
            near += [reader for name in node.outputs for reader in nodes.readers(name)]
    for name in nodes.unread:
        readers = nodes.readers(name)
        near += _makers(network, [name])
        # A tensor with one reader left may now match a rule that requires a single reader.
        near += readers if len(readers) == 1 else []
    nodes.added.clear()
    nodes.unread.clear()
    for node in near:
        yield node
        yield from _looked_from(network, node)
        if node.operator == "DequantizeLinear":
            yield from nodes.readers(node.outputs[0])


def _looked_from(network: Network, node: Node) -> Iterator[Node]:
    """Nodes upstream of ``node`` from which a rule may look downstream as far as ``node``."""
    while node.operator in _LOOKED_THROUGH:
        maker = network.maker(node.inputs[0])
        if maker is None:
            return
        yield maker
        node = maker
    if node.operator == "Add":
        yield from _makers(network, node.reads)


def _makers(network: Network, names: Iterable[str]) -> list[Node]:
    return [maker for name in names if (maker := network.maker(name)) is not None]
