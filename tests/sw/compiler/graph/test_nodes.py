"""The producer and consumer maps follow every change, and the node order is kept."""

from __future__ import annotations

import random

import pytest

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes
from amaranth_vta.sw.runtime.network.model_error import ModelError


def node(name: str, *inputs: str) -> Node:
    return Node("Identity", name, inputs, (name,))


def network(*nodes: Node, outputs: tuple[str, ...] = ()) -> Network:
    return Network("", ["x"], list(outputs), Nodes(nodes), {}, {}, {}, 8)


def check_maps(nodes: Nodes) -> None:
    """Compare the maps with rebuilt maps."""
    listed = list(nodes)
    names = {name for item in listed for name in (*item.reads, *item.outputs)}
    for name in names:
        makers = [item for item in listed if name in item.outputs]
        assert nodes.maker(name) is (makers[0] if makers else None)
        readers = [item for item in listed if name in item.reads]
        assert {id(item) for item in nodes.readers(name)} == {id(item) for item in readers}


def test_maps_and_order_follow_random_changes() -> None:
    rng = random.Random(0)
    expected = [node(f"t{n}", f"t{n - 1}" if n else "x") for n in range(12)]
    nodes = Nodes(expected)
    for step in range(200):
        old = rng.choice(expected)
        at = next(i for i, item in enumerate(expected) if item is old)
        count = rng.choice([0, 1, 1, 2, 3]) if len(expected) > 6 else 2
        names = [item.name for item in expected] + ["x"]
        new = [node(f"s{step}_{n}", *rng.sample(names, 2)) for n in range(count)]
        if new:
            nodes.replace(old, new)
        else:
            nodes.remove(old)
        expected[at : at + 1] = new
        assert [item.name for item in nodes] == [item.name for item in expected]
        assert old not in nodes
        check_maps(nodes)


def test_equal_nodes_are_told_apart() -> None:
    first, second = Node("Relu", "r", ("x",), ("y",)), Node("Relu", "r", ("x",), ("z",))
    nodes = Nodes([first, second])
    nodes.remove(first)
    assert nodes.readers("x") == [second]
    assert nodes.maker("y") is None


def test_nodes_are_sorted_by_what_they_read() -> None:
    mixed = network(node("c", "b"), node("a", "x"), node("d", "a", "c"), node("b", "a"))
    mixed.sort()
    assert [item.name for item in mixed.nodes] == ["a", "b", "c", "d"]


def test_a_node_that_waits_for_itself_is_named() -> None:
    with pytest.raises(ModelError, match="the network has a cycle: [ab] needs its own result"):
        network(node("a", "b"), node("b", "a")).sort()


def test_the_only_reader_is_none_for_outputs_and_for_several_readers() -> None:
    a, b, c = node("a", "x"), node("b", "a"), node("c", "b")
    assert network(a, b, c).only_reader("a") is b
    assert network(a, b, c, outputs=("a",)).only_reader("a") is None
    assert network(a, b, node("c", "a")).only_reader("a") is None
