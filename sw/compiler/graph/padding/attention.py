"""Attention as one operator: whether padding has no share in its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add

from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node

from .bounds import ANY, ZERO, Bounds, Elements
from .padded_tensors import Mixed, PaddedTensors

Rule = Callable[[PaddedTensors, Node], None]
# The score that ONNX Runtime's own operators add to masked positions by default.
_MASKED = -10000.0
# The places of the mask, and of operands that are not understood: caches and scores to add.
_MASKS = {"Attention": 3, "QAttention": 5, "MultiHeadAttention": 4}
_OTHERS = {
    "Attention": range(4, 9),
    "QAttention": range(8, 10),
    "MultiHeadAttention": range(5, 12),
}
_LENGTHS, _TOTAL = 5, 6
# Operands of GroupQueryAttention whose constant values `_group_query` compares.
COUNTS = (_LENGTHS, _TOTAL)


def attention_rule(node: Node) -> Rule | None:
    """A function that raises `Mixed` unless padded keys and values have a share of exactly 0 in
    the other rows of ``node``; None for other operators."""
    kind = node.domain, node.operator
    if kind == ("", "Attention"):
        return _attention
    if kind == (MICROSOFT, "GroupQueryAttention"):
        return _group_query
    return _microsoft if node.domain == MICROSOFT and node.operator in _MASKS else None


def _attention(tensors: PaddedTensors, node: Node) -> None:
    """Attention of ONNX, where earlier rows do not see later ones, or with a mask."""
    query, key, value = node.inputs[:3]
    _require_rows(tensors, node, (query, key, value))
    if any(node.input(index) for index in (4, 5, 6)) or any(node.outputs[3:]):
        raise Mixed(f"{_name(node)} continues a cache, or returns scores")
    along = len(tensors.sizes(key)) - 2
    if along not in tensors.axes(key):
        return
    if node.attributes.get("is_causal", 0) and _as_long(tensors, query, key):
        return
    mask, softcap = node.input(3), node.attributes.get("softcap", 0)
    if not mask or softcap or not _hides(tensors, mask):
        raise Mixed(f"no mask hides padding from {_name(node)}")


def _hides(tensors: PaddedTensors, mask: str) -> bool:
    """Whether a mask hides padded keys, in its last dimension: flags, or floats to add to scores,
    of which nothing is known."""
    axis, elements = len(tensors.sizes(mask)) - 1, tensors.of(mask)
    if axis not in tensors.axes(mask):
        return False
    if tensors.long.types[mask].dtype.kind == "b":
        return elements.at(axis) == ZERO and elements.best_at(axis) == 1
    return Elements(
        padded={axis: elements.at(axis).combined(ANY, add)},
        best={axis: elements.best_at(axis) + ANY.low},
    ).vanishes(axis)


def _group_query(tensors: PaddedTensors, node: Node) -> None:
    """GroupQueryAttention of a whole prompt. Rows see no later ones, and no more than there are
    tokens."""
    _require_rows(tensors, node, [name for name in node.inputs[:3] if name])
    cached = (name for name in node.inputs[3:5] if name)
    if any(0 not in tensors.sizes(name) for name in cached):
        raise Mixed(f"{_name(node)} continues a cache")
    if any(node.inputs[10:]) or any(node.outputs[3:]):
        raise Mixed(f"{_name(node)} has scores as an operand or a result")
    lengths, total = node.inputs[_LENGTHS], node.inputs[_TOTAL]
    for network in (tensors.short, tensors.long):
        rows, found = tensors.shape(network, node.inputs[0])[1], network.constants
        last = found.get(lengths)
        if total not in found or found[total].item() != rows:
            raise Mixed(f"the number of tokens of {_name(node)} is not that of its rows")
        if last is not None and (last != rows - 1).any():
            raise Mixed(f"the lengths of {_name(node)} are other constants than its rows have")


def _microsoft(tensors: PaddedTensors, node: Node) -> None:
    """Attention of ONNX Runtime, where earlier rows do not see later ones, or with a mask of keys
    that lowers their scores."""
    several = node.operator == "MultiHeadAttention"
    given = [name for name in node.inputs[: 3 if several else 1] if name]
    _require_rows(tensors, node, given)
    if any(node.input(index) for index in _OTHERS[node.operator]):
        raise Mixed(f"{_name(node)} continues a cache, or adds to scores")
    query, *others = given
    key = others[0] if others else query
    if 1 not in tensors.axes(key):
        return
    if node.attributes.get("unidirectional", 0) and _as_long(tensors, query, key):
        return
    mask = node.input(_MASKS[node.operator])
    if not mask or tensors.axes(mask) != [1] or tensors.of(mask).at(1) != ZERO:
        raise Mixed(f"no mask of its keys hides padding from {_name(node)}")
    lowered = float(node.attributes.get("mask_filter_value", _MASKED))
    scores = Bounds(ANY.low + lowered, ANY.high + lowered)
    if not Elements(ANY, {1: scores}).vanishes(1):
        raise Mixed(
            f"the mask of {_name(node)} lowers scores by {-lowered:,.0f}, and nothing bounds them"
        )


def _require_rows(tensors: PaddedTensors, node: Node, given: Sequence[str]) -> None:
    """Only rows, the last dimension but one, may be padded."""
    for name in given:
        if any(axis != len(tensors.sizes(name)) - 2 for axis in tensors.axes(name)):
            raise Mixed(f"{_name(node)} combines padding with other positions")


def _as_long(tensors: PaddedTensors, query: str, key: str) -> bool:
    """Whether there are as many rows of a query as of keys, with padding and without."""
    return all(
        tensors.shape(network, query)[-2] == tensors.shape(network, key)[-2]
        for network in (tensors.short, tensors.long)
    )


def _name(node: Node) -> str:
    return f"{node.name} ({node.operator})"
