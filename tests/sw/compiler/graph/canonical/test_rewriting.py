"""Rewrite rules are applied in order until none applies; only changed nodes are revisited."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.canonical.rewriting import rewrite
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes, renamed


def chain(operators: str) -> Network:
    """One node per letter, each of which reads its predecessor."""
    nodes = [
        Node(letter, f"{letter}{n}", (f"t{n - 1}" if n else "x",), (f"t{n}",))
        for n, letter in enumerate(operators)
    ]
    return Network("", ["x"], [f"t{len(operators) - 1}"], Nodes(nodes), {}, {}, {}, 8)


def text(network: Network) -> str:
    return "".join(node.operator for node in network.nodes)


def merge_pair(network: Network, node: Node) -> bool:
    """A → A becomes one A."""
    maker = network.maker(node.inputs[0])
    if node.operator != "A" or maker is None or maker.operator != "A":
        return False
    network.nodes.replace(node, [renamed(node, node.inputs[0], maker.inputs[0])])
    return True


def turn_b_into_a(network: Network, node: Node) -> bool:
    if node.operator != "B":
        return False
    network.nodes.replace(node, [Node("A", node.name, node.inputs, node.outputs)])
    return True


def test_rules_are_applied_until_none_applies() -> None:
    network = chain("ABBAACABA")
    rewrite(network, [merge_pair, turn_b_into_a])
    assert text(network) == "ACA"


def test_an_earlier_rule_is_applied_everywhere_before_a_later_one() -> None:
    applied = []

    def note(network: Network, node: Node) -> bool:
        applied.append(text(network))
        return turn_b_into_a(network, node)

    network = chain("AABAA")
    rewrite(network, [merge_pair, note])
    assert set(applied) == {"ABA", "A"}


def test_what_only_a_removed_node_needed_is_removed() -> None:
    def skip(network: Network, node: Node) -> bool:
        if node.operator != "D" or node.inputs[0] == "x":
            return False
        network.nodes.replace(node, [renamed(node, node.inputs[0], "x")])
        return True

    network = chain("ABCD")
    rewrite(network, [skip])
    assert text(network) == "D"


def test_a_rule_that_becomes_applicable_behind_a_clamp_is_tried_again() -> None:
    """A fusion matches A, Relu and QuantizeLinear; another rule creates the QuantizeLinear."""

    def fuse(network: Network, node: Node) -> bool:
        relu = network.only_reader(node.outputs[0])
        last = network.only_reader(relu.outputs[0]) if relu is not None else None
        if node.operator != "A" or last is None or last.operator != "QuantizeLinear":
            return False
        assert relu is not None
        network.nodes.replace(last, [Node("F", node.name, node.inputs, last.outputs)])
        network.nodes.remove(node)
        network.nodes.remove(relu)
        return True

    def make_quantize(network: Network, node: Node) -> bool:
        if node.operator != "q":
            return False
        network.nodes.replace(node, [Node("QuantizeLinear", "", node.inputs, node.outputs)])
        return True

    network = chain("ARqE")
    (_, relu, _, _) = network.nodes
    network.nodes.replace(relu, [Node("Relu", "relu", relu.inputs, relu.outputs)])
    rewrite(network, [fuse, make_quantize])
    assert text(network) == "FE"


def test_the_number_of_tries_grows_with_the_network() -> None:
    def tries(length: int) -> int:
        count = 0

        def counting(network: Network, node: Node) -> bool:
            nonlocal count
            count += 1
            return merge_pair(network, node)

        rewrite(chain("ABC" * length), [counting, turn_b_into_a])
        return count

    assert tries(400) < 5 * tries(100)
