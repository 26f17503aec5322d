"""Unrolls recurrent layers: `with_unrolled_layers`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from amaranth_vta.sw.compiler.graph.network import UNKNOWN, Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tile_layout import Array

from .open_models import closed, reopened

# Layers with more steps remain whole: each step is a dozen operators.
_MOST_STEPS = 64
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Inputs by position, of all three operators.
_X, _W, _R, _B, _LENGTHS, _HIDDEN, _CELL, _PEEPHOLES = range(8)
# Operators whose result is zero if their first input is.
_KEEPING_ZERO = frozenset(
    {"Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
# The gate of a GRU that computes the new state.
_NEW = 2


def with_unrolled_layers(model: onnx.ModelProto, whole: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model``, whose shapes are inferred, with LSTM, GRU and RNN of at most 64 steps as
    products, sums and functions, which ONNX Runtime's quantizer quantizes and the machine runs.

    The products of a gate with the inputs of all steps are one MatMul; those with the hidden state
    are one per step. Layers remain whole if they have a name or a result in ``whole``, the number
    of steps is open, weights are no constants, sequences have lengths of their own, activations are
    not the default ones, or the layer has a clip, a coupled input gate (``input_forget``), peephole
    weights other than 0, or the batch as its first dimension (``layout``).
    """
    if not any(node.op_type in _GATES for node in model.graph.node):
        return model
    graph = model.graph
    # An open number of steps is 0 here, and 1 in the network.
    steps = {
        item.name: dims[0].dim_value
        for item in (*graph.input, *graph.value_info, *graph.output)
        if len(dims := item.type.tensor_type.shape.dim) == 3
    }
    network = closed(model)
    zeros = _zeros(network)
    for node in list(network.nodes):
        layer = _layer(network, node, zeros, steps.get(node.input(_X), 0))
        if layer is not None and {node.name, *node.outputs}.isdisjoint(whole):
            network.nodes.replace(node, _Unroller(network, layer).written())
    return reopened(network, model)


class _Gate(NamedTuple):
    """Weights of the input (input, hidden) and of the hidden state (hidden, hidden), and a bias for
    each product (hidden,).
    """

    of_input: Array
    of_state: Array
    bias: Array
    bias_of_state: Array


@dataclass(frozen=True)
class _Layer:
    """A recurrent layer, with its gates by direction, and the initial hidden state and cell state;
    an empty name is a state of zeros. With ``resets_product`` a GRU resets the product with the
    hidden state, with its bias, instead of the state.
    """

    node: Node
    steps: int
    initial: tuple[str, str]
    gates: list[list[_Gate]]
    is_reversed: list[bool]
    resets_product: bool


def _layer(network: Network, node: Node, zeros: set[str], steps: int) -> _Layer | None:
    """``node`` as a layer to be unrolled; None for other operators and layers."""
    kind, gates, attributes = node.operator, _GATES.get(node.operator), node.attributes
    if gates is None or node.domain or not 0 < steps <= _MOST_STEPS:
        return None
    constants = network.constants
    direction = attributes.get("direction", "forward")
    is_reversed = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
    defaults = [name.lower() for name in _ACTIVATIONS[kind] * len(is_reversed)]
    chosen = [name.decode().lower() for name in attributes.get("activations", [])]
    w, r, b = (constants.get(node.input(position)) for position in (_W, _R, _B))
    hidden, cell, peepholes = (
        "" if (name := node.input(position)) in zeros else name
        for position in (_HIDDEN, _CELL, _PEEPHOLES)
    )
    lengths = node.input(_LENGTHS)
    if (
        w is None
        or r is None
        or (b is None and node.input(_B))
        or (lengths and (constants.get(lengths, np.zeros(1)) != steps).any())
        or peepholes
        or (chosen and chosen != defaults)
        or any(attributes.get(name) for name in ("clip", "input_forget", "layout"))
    ):
        return None
    if b is None:
        b = np.zeros((len(w), 2 * w.shape[1]), w.dtype)
    found = [
        [
            _Gate(of_input.T, of_state.T, *biases)
            for of_input, of_state, *biases in zip(
                *(np.split(item[d], gates) for item in (w, r)),
                *(np.split(half, gates) for half in np.split(b[d], 2)),
                strict=True,
            )
        ]
        for d in range(len(w))
    ]
    resets_product = bool(attributes.get("linear_before_reset"))
    return _Layer(node, steps, (hidden, cell), found, is_reversed, resets_product)


def _zeros(network: Network) -> set[str]:
    """Tensors of zeros, such as the initial states that PyTorch exports: constants, and constants
    that nodes expand to shapes with an open batch.
    """
    found = {name for name, value in network.constants.items() if not value.any()}
    for node in network.nodes:
        if node.operator == "ConstantOfShape":
            value = node.attributes.get("value")
            is_zero = value is None or not numpy_helper.to_array(value).any()
        else:
            is_zero = node.operator in _KEEPING_ZERO and node.input(0) in found
        if is_zero:
            found.update(node.outputs)
    return found


class _Unroller:
    """Writes the nodes that replace a layer of ``network``. States have the dimensions
    (1, batch, hidden), as one direction of the operator's; an empty name is a state of zeros.
    """

    def __init__(self, network: Network, layer: _Layer) -> None:
        self._network = network
        self._layer = layer
        self._nodes: list[Node] = []
        self._known: dict[str, str] = {}

    def written(self) -> list[Node]:
        layer = self._layer
        directions = range(len(layer.gates))
        initial = [self._by_direction(state) for state in layer.initial]
        found = [self._direction(d, *(state[d] for state in initial)) for d in directions]
        rows, *last = zip(*found, strict=True)
        results = [*layer.node.outputs, "", "", ""][:3]
        if results[0]:
            axis = self._integers(1)
            self._join([self._add("Unsqueeze", item, axis) for item in rows], results[0], axis=1)
        for states, result in zip(last, results[1:], strict=True):
            if result:
                self._join(list(states), result, axis=0)
        return self._nodes

    def _by_direction(self, state: str) -> list[str]:
        directions = len(self._layer.gates)
        if not state or directions == 1:
            return [state] * directions
        return self._split(state, directions)

    def _direction(self, d: int, hidden: str, cell: str) -> tuple[str, str, str]:
        """The hidden states of all steps (steps, batch, hidden), the last one, and the last cell
        state.
        """
        layer, kind = self._layer, self._layer.node.operator
        of_input = [self._of_input(d, gate) for gate in range(len(layer.gates[d]))]
        rows = [""] * layer.steps
        for step in reversed(range(layer.steps)) if layer.is_reversed[d] else range(layer.steps):
            sums = [products[step] for products in of_input]
            if kind == "LSTM":
                hidden, cell = self._lstm(d, sums, hidden, cell)
            elif kind == "GRU":
                hidden = self._gru(d, sums, hidden)
            else:
                hidden = self._add("Tanh", self._with_state(sums[0], d, 0, hidden))
            rows[step] = hidden
        joined = rows[0] if len(rows) == 1 else self._add("Concat", *rows, axis=0)
        return joined, hidden, cell

    def _of_input(self, d: int, gate: int) -> list[str]:
        """The product of a gate with the input, with its bias, by step."""
        layer, chosen = self._layer, self._layer.gates[d][gate]
        bias = chosen.bias
        if not (layer.resets_product and gate == _NEW):
            bias = bias + chosen.bias_of_state
        weights = self._constant(f"W/{d}/{gate}", chosen.of_input)
        product = self._add("MatMul", layer.node.input(_X), weights)
        product = self._add("Add", product, self._constant(f"B/{d}/{gate}", bias))
        return [product] if layer.steps == 1 else self._split(product, layer.steps)

    def _of_state(self, d: int, gate: int, hidden: str) -> str:
        """The product of a gate with the hidden state."""
        weights = self._constant(f"R/{d}/{gate}", self._layer.gates[d][gate].of_state)
        return self._add("MatMul", hidden, weights)

    def _with_state(self, total: str, d: int, gate: int, hidden: str) -> str:
        return self._add("Add", total, self._of_state(d, gate, hidden)) if hidden else total

    def _lstm(self, d: int, sums: Sequence[str], hidden: str, cell: str) -> tuple[str, str]:
        kinds = ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")
        entering, leaving, keeping, new = (
            self._add(kind, self._with_state(total, d, gate, hidden))
            for gate, (kind, total) in enumerate(zip(kinds, sums, strict=True))
        )
        now = self._add("Mul", entering, new)
        if cell:
            now = self._add("Add", self._add("Mul", keeping, cell), now)
        return self._add("Mul", leaving, self._add("Tanh", now)), now

    def _gru(self, d: int, sums: Sequence[str], hidden: str) -> str:
        update, reset = (
            self._add("Sigmoid", self._with_state(sums[gate], d, gate, hidden)) for gate in (0, 1)
        )
        total = sums[_NEW]
        if self._layer.resets_product:
            own = self._constant(f"Rb/{d}", self._layer.gates[d][_NEW].bias_of_state)
            if hidden:
                own = self._add("Add", self._of_state(d, _NEW, hidden), own)
            total = self._add("Add", total, self._add("Mul", reset, own))
        elif hidden:
            total = self._with_state(total, d, _NEW, self._add("Mul", reset, hidden))
        new = self._add("Tanh", total)
        if not hidden:
            return self._add("Sub", new, self._add("Mul", update, new))
        # (1 - update) * new + update * hidden
        return self._add("Add", new, self._add("Mul", update, self._add("Sub", hidden, new)))

    def _split(self, name: str, parts: int) -> list[str]:
        """``name`` in ``parts`` along the first axis."""
        outputs = [self._unused("Split") for _ in range(parts)]
        self._append("Split", [name, self._integers(*[1] * parts)], outputs, axis=0)
        return outputs

    def _join(self, parts: list[str], result: str, axis: int) -> None:
        """``parts``, one per direction, as the tensor ``result``."""
        if len(parts) == 1:
            self._append("Identity", parts, [result])
        else:
            self._append("Concat", parts, [result], axis=axis)

    def _add(self, operator: str, *inputs: str, **attributes: int) -> str:
        result = self._unused(operator)
        self._append(operator, inputs, [result], **attributes)
        return result

    def _append(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: int
    ) -> None:
        node = Node(operator, outputs[0], tuple(inputs), tuple(outputs), attributes)
        self._nodes.append(node)

    def _integers(self, *values: int) -> str:
        return self._constant(f"sizes/{values}", np.array(values, np.int64))

    def _constant(self, name: str, value: Array) -> str:
        if name not in self._known:
            self._known[name] = self._network.add_constant(self._named(name), value)
        return self._known[name]

    def _unused(self, operator: str) -> str:
        """The name of a new result."""
        name = self._network.unused_name(self._named(operator))
        self._network.types[name] = UNKNOWN
        return name

    def _named(self, name: str) -> str:
        return f"{self._layer.node.name}/{name}"
