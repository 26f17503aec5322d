"""Apply rewrite rules to a network until none applies, revisiting only changed neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Place

# Changes the network at a node and returns True, or returns False.
Rule = Callable[[Network, Node], bool]

# Starting at an operator, a rule looks through these for the QuantizeLinear that follows.
_LOOKED_THROUGH = frozenset({"QuantizeLinear", "Relu", "Clip"})


class _Waiting:
    """The places of the nodes at which a rule is yet to be tried, in the order of the network."""

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
    """Repeats until no rule applies: applies the first of ``rules`` that applies anywhere, at the
    first node where it does, and removes nodes that no output needs.

    A rule that did not apply at a node is tried there again only after a change near it: to the
    node, to a producer of its inputs or a reader of its outputs, before a DequantizeLinear that
    produces one, or behind clamps (and the addition of a bias) that follow it. A rule must not look
    further.
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
    """Applies one rule; the nodes at which others may apply as a result, None if none applied."""
    for rule, queue in zip(rules, waiting, strict=True):
        while (place := queue.pop()) is not None:
            node = network.nodes.at(place)
            if node is not None and rule(network, node):
                queue.push(place)
                _remove_dead(network)
                return list(_near_changes(network))
    return None


def _remove_dead(network: Network) -> None:
    """Removes nodes whose results have lost their last reader, and what only they needed."""
    nodes, outputs = network.nodes, network.outputs
    # `unread` grows as nodes are removed.
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
        # A tensor that is left with one reader may satisfy a rule that asks for an only reader.
        near += readers if len(readers) == 1 else []
    nodes.added.clear()
    nodes.unread.clear()
    for node in near:
        yield node
        yield from _looked_from(network, node)
        if node.operator == "DequantizeLinear":
            yield from nodes.readers(node.outputs[0])


def _looked_from(network: Network, node: Node) -> Iterator[Node]:
    """The nodes before ``node`` from which a rule may look as far as ``node``."""
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
