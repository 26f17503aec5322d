"""Inline If and Loop whose control flow is decided at compile time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from amaranth_vta.sw.compiler.graph.network import UNKNOWN, Network
from amaranth_vta.sw.compiler.graph.nodes import Node, renamed_node, subgraphs
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .undefined_operators import nodes_of

# Modifies a network, or returns an equivalent one.
Fold = Callable[[Network], object]
Infer = Callable[[Network], Network]

_BRANCHES = ("then_branch", "else_branch")
# Largest number of nodes in an unrolled Loop.
_MOST_NODES = 1 << 12
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def inline_constant_control_flow(network: Network, fold: Fold, infer: Infer) -> bool:
    """Inline each If with a constant condition or with equivalent branches, and unroll each Loop
    with a constant trip count. Return whether anything changed.

    ``fold`` folds the constants of a network, ``infer`` returns a network with all types inferred.
    """
    changed = False
    for node in network.nodes:
        if node.domain or node.operator not in ("If", "Loop") or _has_sequences(node):
            continue
        if node.operator == "Loop":
            changed |= _unroll(network, node, fold)
            continue
        condition = network.constants.get(node.inputs[0])
        if condition is not None:
            _inline_branch(network, node, _BRANCHES[0 if condition.item() else 1])
            changed = True
        elif _has_equivalent_branches(network, node, infer):
            _inline_branch(network, node, _BRANCHES[0])
            changed = True
    return changed


def why_not_constant(network: Network, node: Node) -> str:
    """The reason why `inline_constant_control_flow` did not inline an If or a Loop."""
    if _has_sequences(node):
        return "operators in its subgraphs have sequences of tensors"
    if node.operator == "If":
        return "its condition is known only at run time"
    count, body = _trip_count(network, node.input(0)), len(node.attributes["body"].node)
    going = not node.input(1) or _constant_condition(network, node.input(1))
    if count is not None and going and node.input(0) and count * body > _MOST_NODES:
        return f"its {count:,} iterations would be {count * body:,} operators"
    if count == 0:
        return "it makes no iteration, and its result has no elements"
    return "its number of iterations is known only at run time"


def _has_sequences(node: Node) -> bool:
    """Whether the subgraphs of ``node`` use sequences of tensors, which host segments cannot
    exchange."""
    graphs = [value for value in node.attributes.values() if isinstance(value, onnx.GraphProto)]
    inner = [item for graph in graphs for item in nodes_of(graph.node)]
    return any("Sequence" in item.op_type or "Optional" in item.op_type for item in inner)


def _inline_branch(network: Network, node: Node, branch: str) -> None:
    """Inline one branch of the If ``node``."""
    copy = _Copy(network, node.attributes[branch])
    made, results = copy.nodes({}, node.name)
    network.nodes.replace(node, [*made, *_named(results, node.outputs)])


def _named(sources: Sequence[str], results: Sequence[str]) -> list[Node]:
    """Identity nodes from ``sources`` to ``results``; results without a name are skipped."""
    return [
        Node("Identity", f"{result}_result", (source,), (result,))
        for source, result in zip(sources, results, strict=True)
        if result
    ]


def _unroll(network: Network, node: Node, fold: Fold) -> bool:
    """Unroll a Loop; return False if its trip count is unknown or too large."""
    body: onnx.GraphProto = node.attributes["body"]
    count = _trip_count(network, node.input(0))
    going = True if not node.input(1) else _constant_condition(network, node.input(1))
    if count is None or going is None:
        return False
    trial = network.copied()
    copy = _Copy(trial, body)
    carried, scanned = list(node.inputs[2:]), _no_values(len(body.output) - len(node.inputs) + 1)
    rest, iteration = node, 0
    while going and iteration < count:
        formal = [item.name for item in body.input]
        number = trial.add_constant(f"{node.name}_iteration", np.array(iteration, np.int64))
        goes_on = trial.add_constant(f"{node.name}_condition", np.array(True))
        given = dict(zip(formal, [number, goes_on, *carried], strict=True))
        made, (condition, *results) = copy.nodes(given, f"{node.name}_{iteration}")
        if copy.made > _MOST_NODES:
            return False
        carried = results[: len(carried)]
        for values, name in zip(scanned, results[len(carried) :], strict=True):
            values.append(name)
        last, rest = rest, replace(node, inputs=(*node.inputs[:2], *carried))
        trial.nodes.replace(last, [*made, rest])
        going = _constant_condition(trial, condition)
        if going is None:
            fold(trial)
            going = _constant_condition(trial, condition)
        if going is None:
            return False
        iteration += 1
    if scanned and not iteration:
        return False
    results = [*carried]
    made = []
    for place, values in enumerate(scanned):
        results.append(_stacked(trial, f"{node.name}_scan_{place}", values, made))
    trial.nodes.replace(rest, [*made, *_named(results, node.outputs)])
    network.nodes, network.constants, network.types = trial.nodes, trial.constants, trial.types
    return True


def _no_values(count: int) -> list[list[str]]:
    return [[] for _ in range(count)]


def _trip_count(network: Network, name: str) -> int | None:
    """The maximum trip count; None if it is known only at run time."""
    if not name:
        return _MOST_NODES + 1
    value = network.constants.get(name)
    return None if value is None else int(value.item())


def _constant_condition(network: Network, name: str) -> bool | None:
    """The value of a condition; None if it is not constant."""
    while (maker := network.maker(name)) is not None and maker.operator == "Identity":
        name = maker.inputs[0]
    value = network.constants.get(name)
    return None if value is None else bool(value.item())


def _stacked(network: Network, name: str, values: Sequence[str], made: list[Node]) -> str:
    """Stack ``values`` along a new first axis and return the name of the result. The nodes are
    appended to ``made``."""
    axes = network.add_constant(f"{name}_axes", np.array([0], np.int64))
    parts = []
    for number, value in enumerate(values):
        parts.append(network.unused_name(f"{name}_{number}"))
        network.types[parts[-1]] = UNKNOWN
        made.append(Node("Unsqueeze", parts[-1], (value, axes), (parts[-1],)))
    whole = network.unused_name(name)
    network.types[whole] = UNKNOWN
    made.append(Node("Concat", whole, tuple(parts), (whole,), {"axis": 0}))
    return whole


@dataclass
class _Copy:
    """Instantiates ``graph``, a subgraph of a node, in ``network``. All instances share the
    constants; ``made`` counts the nodes."""

    network: Network
    graph: onnx.GraphProto
    made: int = 0
    _constants: dict[str, str] = field(default_factory=dict)
    _inner: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Subgraphs must not redefine names of the enclosing graph.
        self._inner = {name for node in self.network.nodes for name in _defined_within(node)}
        for item in self.graph.initializer:
            value = numpy_helper.to_array(item)
            self._constants[item.name] = self.network.add_constant(self._name(item.name), value)

    def nodes(self, given: Mapping[str, str], prefix: str) -> tuple[list[Node], list[str]]:
        """Instantiate the graph with the inputs ``given``, by formal name. Return the nodes, whose
        names start with ``prefix``, and the names of the results."""
        names = {**self._constants, **given}
        made = []
        for number, proto in enumerate(self.graph.node):
            for name in proto.output:
                if name:
                    names[name] = self._name(name)
                    self.network.types[names[name]] = UNKNOWN
            copied = renamed_node(proto, names)
            own = proto.name or f"{proto.op_type}_{number}"
            made.append(Node.from_onnx(copied, f"{prefix}_{own}"))
        self.made += len(made)
        return made, [names.get(item.name, item.name) for item in self.graph.output]

    def _name(self, name: str) -> str:
        candidate, number = self.network.unused_name(name), 2
        while candidate in self._inner:
            candidate, number = self.network.unused_name(f"{name}_of_{number}"), number + 1
        return candidate


def _defined_within(node: Node) -> Iterator[str]:
    for value in node.attributes.values():
        graphs = [value] if isinstance(value, onnx.GraphProto) else []
        for graph in graphs:
            yield from _defined(graph)


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    """All names that a graph and its subgraphs define."""
    yield from (item.name for item in (*graph.input, *graph.initializer))
    for node in nodes_of(graph.node):
        yield from node.output
        for inner in subgraphs(node):
            yield from (item.name for item in (*inner.input, *inner.initializer))


def _has_equivalent_branches(network: Network, node: Node, infer: Infer) -> bool:
    """Whether the branches of an If are equivalent, ignoring views, and their results have equal
    shapes."""
    outer = {*network.inputs, *(name for item in network.nodes for name in item.outputs)}
    results = [name for name in node.outputs if name]
    found: list[tuple[Any, list[int]]] = []
    numbers: dict[Any, int] = {}
    for branch in _BRANCHES:
        trial = network.copied()
        _inline_branch(trial, node, branch)
        try:
            trial = infer(trial)
        except ModelError:
            return False
        numbering = _ValueNumbers(trial, outer - {*results}, numbers)
        shapes = [trial.types[name].shape for name in results]
        if None in shapes:
            return False
        found.append((shapes, [numbering.of(name) for name in results]))
    return found[0] == found[1]


@dataclass
class _ValueNumbers:
    """Value numbering of the tensors of ``network``: tensors get equal numbers if they are computed
    in the same way from constants and the tensors ``outer``, ignoring views.

    ``numbers`` maps expressions to numbers; two networks share it to compare their tensors.
    """

    network: Network
    outer: set[str]
    numbers: dict[Any, int]
    _known: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int:
        if name not in self._known:
            maker = None if name in self.outer else self.network.maker(name)
            if maker is not None and maker.operator in _VIEWS and not maker.domain:
                self._known[name] = self.of(maker.inputs[0])
            else:
                key = self._key(name, maker)
                self._known[name] = self.numbers.setdefault(key, len(self.numbers))
        return self._known[name]

    def _key(self, name: str, maker: Node | None) -> Any:
        if name in self.network.constants:
            value = self.network.constants[name]
            return value.dtype.name, value.shape, value.tobytes()
        if maker is None:
            return name
        given = [
            (self.network.types[item].shape, self.of(item)) if item else None
            for item in (*maker.inputs, *maker.captured)
        ]
        attributes = sorted((key, str(value)) for key, value in maker.attributes.items())
        place = maker.outputs.index(name)
        return maker.domain, maker.operator, tuple(attributes), tuple(given), place
