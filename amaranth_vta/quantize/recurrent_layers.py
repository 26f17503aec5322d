"""Unrolls recurrent layers: `with_unrolled_layers`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.runtime.network.tile_layout import Array

from .preprocessing import live_nodes

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
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    zeros = _zeros(graph.node, constants)
    steps = {
        item.name: dims[0].dim_value
        for item in (*graph.input, *graph.value_info, *graph.output)
        if len(dims := item.type.tensor_type.shape.dim) == 3
    }
    taken = {name for node in graph.node for name in (node.name, *node.input, *node.output)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        layer = _layer(node, constants, zeros, steps.get(_input(node, _X), 0))
        if layer is None or not {node.name, *node.output}.isdisjoint(whole):
            nodes.append(node)
            continue
        writer = _Unroller(layer, taken)
        writer.write()
        nodes += writer.nodes
        graph.initializer.extend(writer.constants)
    # Results that nothing reads, such as the states of all steps, need no operators.
    live = live_nodes(nodes, [item.name for item in graph.output])
    del graph.node[:]
    graph.node.extend(live)
    return result


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

    node: onnx.NodeProto
    steps: int
    initial: tuple[str, str]
    gates: list[list[_Gate]]
    is_reversed: list[bool]
    resets_product: bool


def _layer(
    node: onnx.NodeProto, constants: dict[str, Array], zeros: set[str], steps: int
) -> _Layer | None:
    """``node`` as a layer to be unrolled; None for other operators and layers."""
    kind, gates = node.op_type, _GATES.get(node.op_type)
    if gates is None or node.domain not in ("", "ai.onnx") or not 0 < steps <= _MOST_STEPS:
        return None
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    direction = attributes.get("direction", b"forward").decode()
    is_reversed = {"forward": [False], "reverse": [True]}.get(direction, [False, True])
    defaults = [name.lower() for name in _ACTIVATIONS[kind] * len(is_reversed)]
    chosen = [name.decode().lower() for name in attributes.get("activations", [])]
    w, r, b = (constants.get(_input(node, position)) for position in (_W, _R, _B))
    hidden, cell, peepholes = (
        "" if (name := _input(node, position)) in zeros else name
        for position in (_HIDDEN, _CELL, _PEEPHOLES)
    )
    lengths = _input(node, _LENGTHS)
    if (
        w is None
        or r is None
        or (b is None and _input(node, _B))
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


def _zeros(nodes: Iterable[onnx.NodeProto], constants: dict[str, Array]) -> set[str]:
    """Tensors of zeros, such as the initial states that PyTorch exports: constants, and those that
    the sorted ``nodes`` expand to shapes with an open batch.
    """
    found = {name for name, value in constants.items() if not value.any()}
    for node in nodes:
        if node.op_type == "ConstantOfShape":
            is_zero = not any(numpy_helper.to_array(item.t).any() for item in node.attribute)
        else:
            is_zero = node.op_type in _KEEPING_ZERO and node.input[0] in found
        if is_zero:
            found.update(node.output)
    return found


def _input(node: onnx.NodeProto, position: int) -> str:
    return node.input[position] if position < len(node.input) else ""


class _Unroller:
    """Writes the ``nodes`` and ``constants`` that replace a layer. States have the dimensions
    (1, batch, hidden), as one direction of the operator's; an empty name is a state of zeros.
    """

    def __init__(self, layer: _Layer, taken: set[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._layer = layer
        self._taken = taken
        self._prefix = layer.node.name or next(filter(None, layer.node.output))
        self._known: dict[str, str] = {}

    def write(self) -> None:
        layer = self._layer
        directions = range(len(layer.gates))
        initial = [self._by_direction(state) for state in layer.initial]
        found = [self._direction(d, *(state[d] for state in initial)) for d in directions]
        rows, *last = zip(*found, strict=True)
        results = [*layer.node.output, "", "", ""][:3]
        if results[0]:
            axis = self._integers(1)
            self._join([self._add("Unsqueeze", item, axis) for item in rows], results[0], axis=1)
        for states, result in zip(last, results[1:], strict=True):
            if result:
                self._join(list(states), result, axis=0)

    def _by_direction(self, state: str) -> list[str]:
        directions = len(self._layer.gates)
        if not state or directions == 1:
            return [state] * directions
        return self._split(state, directions)

    def _direction(self, d: int, hidden: str, cell: str) -> tuple[str, str, str]:
        """The hidden states of all steps (steps, batch, hidden), the last one, and the last cell
        state.
        """
        layer, kind = self._layer, self._layer.node.op_type
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
        product = self._add("MatMul", _input(layer.node, _X), weights)
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

    def _add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        result = self._unused(operator)
        self._append(operator, inputs, [result], **attributes)
        return result

    def _append(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        name = outputs[0]
        self.nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))

    def _integers(self, *values: int) -> str:
        return self._constant(f"sizes/{values}", np.array(values, np.int64))

    def _constant(self, name: str, value: Array) -> str:
        if name not in self._known:
            self._known[name] = self._unused(name)
            made = numpy_helper.from_array(np.ascontiguousarray(value), self._known[name])
            self.constants.append(made)
        return self._known[name]

    def _unused(self, name: str) -> str:
        numbered = (f"{self._prefix}/{name}_{number}" for number in count(1))
        found = next(other for other in numbered if other not in self._taken)
        self._taken.add(found)
        return found
