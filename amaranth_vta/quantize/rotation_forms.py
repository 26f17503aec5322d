"""Rewrites other forms of rotary position embeddings: `with_full_rotations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import MICROSOFT, Node
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_waves import IntegerWaves
from .open_models import closed, reopened
from .rotation_patterns import CHOOSERS, RESHAPERS, Integers, RowOrder


def with_full_rotations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return ``model`` with rotary position embeddings in the form of `rotation_patterns`:
    x · C + x' · S, where C and S have as many elements as a row of x.

    These are the operator RotaryEmbedding, and the form u · c - v · s, v · c + u · s for two halves
    u and v of the elements. Operators that rotate a part of a row remain.
    """
    network = closed(model)
    writer = _RotationWriter(network)
    for node in list(network.nodes):
        operator, halves = _operator(network, node), _halves(network, node)
        if operator is not None:
            writer.replace_operator(operator)
        elif halves is not None:
            writer.replace_halves(halves)
    if not writer.changed:
        return model
    network.sort()
    result = reopened(network, model)
    made = {name for node in result.graph.node for name in node.output}
    result.graph.value_info.extend(item for item in model.graph.value_info if item.name in made)
    return onnx.shape_inference.infer_shapes(result)


@dataclass(frozen=True)
class _Halves:
    """A rotation whose last node is ``end``. Element i of a row is x[i] · c[j] + x'[i] · s[j]: j is
    element i of ``repeated``, and c and s are rows of ``cosines`` and ``sines``. Element i of x' is
    the element of x with number ``numbers[i]``, from 1 up, negated if the number is negative.
    """

    end: Node
    x: str
    cosines: str
    sines: str
    repeated: Integers
    numbers: Integers


@dataclass(frozen=True)
class _Operator(_Halves):
    """A RotaryEmbedding, with the rows of ``positions`` of c and s, if given. ``heads`` is the
    number of heads of a row of x if x has three dimensions, else 0.
    """

    positions: str
    heads: int


def _operator(network: Network, node: Node) -> _Operator | None:
    """The rotation of a RotaryEmbedding that rotates whole heads."""
    if node.operator != "RotaryEmbedding" or node.domain not in ("", MICROSOFT):
        return None
    x, cosines, sines, positions = (node.input(at) for at in range(4))
    if node.domain:
        cosines, sines, positions = sines, positions, cosines
    shape, table = (network.types[name].shape for name in (x, cosines))
    if not shape or not table or len(shape) not in (3, 4):
        return None
    given: Mapping[str, Any] = node.attributes
    # com.microsoft has one position, of the first token, as another form of positions.
    whole = given.get("scale", 1) == 1 and not given.get("is_packed_batching", 0)
    whole &= not positions or len(network.types[positions].shape or ()) == 2
    width = 2 * table[-1]
    heads = shape[-1] // width if len(shape) == 3 else 0
    whole &= shape[-1] == (heads or 1) * width
    whole &= not heads or given.get("num_heads", 0) in (0, heads)
    if not whole or not _are_bounded(network, cosines, sines):
        return None
    pairs = np.arange(width).reshape(2, -1)
    if given.get("interleaved", 0):
        pairs = np.arange(width).reshape(-1, 2).T
    (u, v), repeated, numbers = pairs, np.empty(width, int), np.empty(width, int)
    repeated[u] = repeated[v] = np.arange(table[-1])
    numbers[u], numbers[v] = -(v + 1), u + 1
    return _Operator(node, x, cosines, sines, repeated, numbers, positions, heads)


def _are_bounded(network: Network, *names: str) -> bool:
    waves = IntegerWaves(network)
    return all(waves.greatest(name) is not None for name in names)


def _halves(network: Network, node: Node) -> _Halves | None:
    """The rotation whose first half is the result of ``node``, a difference of products."""
    if node.domain or node.operator != "Sub":
        return None
    terms = [_factors(network, name) for name in node.inputs]
    for (u, cosines), (v, sines) in product(*terms):
        second = _sum(network, frozenset((v, cosines)), frozenset((u, sines)))
        shape, *waves = (network.types[name].shape or () for name in (u, cosines, sines))
        if not shape or network.types[v].shape != shape or second is None:
            continue
        if any(item[-1:] != shape[-1:] for item in waves):
            continue
        for x in _sources(network, u, 2 * shape[-1]):
            found = _joined(network, (node.outputs[0], second), (u, v), x)
            if found is not None and _are_bounded(network, cosines, sines):
                end, repeated, numbers = found
                return _Halves(end, x, cosines, sines, repeated, numbers)
    return None


def _factors(network: Network, name: str) -> Iterator[tuple[str, str]]:
    """The factors of a product, in both orders."""
    node = network.maker(name)
    if node is not None and not node.domain and node.operator == "Mul":
        yield (node.inputs[0], node.inputs[1])
        yield (node.inputs[1], node.inputs[0])


def _sum(network: Network, *products: frozenset[str]) -> str | None:
    """The sum of products of two tensors each."""
    for name in products[0]:
        for maker in network.nodes.readers(name):
            for total in network.nodes.readers(maker.outputs[0]):
                pairs = {frozenset(pair) for x in total.inputs for pair in _factors(network, x)}
                if not total.domain and total.operator == "Add" and pairs == {*products}:
                    return total.outputs[0]
    return None


def _sources(network: Network, name: str, width: int) -> Iterator[str]:
    """The tensors with rows of ``width`` elements from which ``name`` is chosen."""
    while (node := network.maker(name)) is not None and not node.domain:
        if node.operator not in (*CHOOSERS, *RESHAPERS):
            return
        name = node.inputs[0]
        if (network.types[name].shape or (0,))[-1] == width:
            yield name


def _joined(
    network: Network, parts: tuple[str, str], halves: tuple[str, str], x: str
) -> tuple[Node, Integers, Integers] | None:
    """The node that joins both ``parts`` of the result to the shape of ``x``, and
    ``repeated`` and ``numbers`` of `_Halves`; None if there is none.
    """
    shape = network.types[x].shape or (0,)
    half, rows = shape[-1] // 2, shape[:-1]
    u, v = (RowOrder(network, {x: np.arange(1, shape[-1] + 1)}, rows).of(name) for name in halves)
    if u is None or v is None or u.shape != (half,) or v.shape != (half,):
        return None
    numbered = np.arange(1, shape[-1] + 1).reshape(2, half)
    end = network.only_reader(parts[1])
    while end is not None and end.operator in ("Concat", *RESHAPERS):
        result = end.outputs[0]
        if network.types[result].shape == shape:
            order = RowOrder(network, dict(zip(parts, numbered, strict=True)), rows).of(result)
            if order is not None and (order > 0).all():
                is_first, repeated = order <= half, (order - 1) % half
                own = np.where(is_first, u[repeated], v[repeated])
                numbers = np.where(is_first, -v[repeated], u[repeated])
                if (own == np.arange(1, len(own) + 1)).all():
                    return end, repeated, numbers
        end = network.only_reader(result)
    return None


class _RotationWriter:
    """Replaces rotations of ``network``; ``changed`` says whether it did."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._waves: dict[tuple[object, ...], str] = {}
        self._nodes: list[Node] = []
        self._end = ""
        self.changed = False

    def replace_halves(self, found: _Halves) -> None:
        self._begin(found)
        waves = [self._repeated(name, found.repeated) for name in (found.cosines, found.sines)]
        self._rotate(found, found.x, waves, found.end.outputs[0])
        self._finish(found)

    def replace_operator(self, found: _Operator) -> None:
        self._begin(found)
        waves = [self._rows(found, name) for name in (found.cosines, found.sines)]
        (result,) = found.end.outputs
        if found.heads:
            width = len(found.repeated)
            heads = self._constant("shape", np.array([0, 0, found.heads, width]))
            hidden = self._constant("shape", np.array([0, 0, found.heads * width]))
            rows = self._add("Reshape", found.x, heads)
            rotated = self._rotate(found, rows, waves)
            self._add("Reshape", rotated, hidden, result=result)
        else:
            self._rotate(found, found.x, waves, result)
        self._finish(found)

    def _begin(self, found: _Halves) -> None:
        self._nodes, self._end = [], found.end.name

    def _finish(self, found: _Halves) -> None:
        self._network.nodes.replace(found.end, self._nodes)
        self.changed = True

    def _rotate(self, found: _Halves, x: str, waves: list[str], result: str = "") -> str:
        """x · C + x' · S, where x' is chosen from the elements of x and -x."""
        numbers = found.numbers
        places = np.where(numbers > 0, numbers - 1, len(numbers) - numbers - 1)
        both = self._add("Concat", x, self._add("Neg", x), axis=-1)
        turned = self._add("Gather", both, self._constant("places", places), axis=-1)
        terms = [
            self._add("Mul", item, wave) for item, wave in zip((x, turned), waves, strict=True)
        ]
        return self._add("Add", *terms, result=result)

    def _rows(self, found: _Operator, name: str) -> str:
        """C or S of a RotaryEmbedding with ``name``, of dimensions (batch, position, element),
        with one for heads.
        """
        axis = 2 if found.heads else 1
        key = name, found.positions, axis, found.repeated.tobytes()
        if key not in self._waves:
            table = self._repeated(name, found.repeated)
            if found.positions:
                table = self._add("Gather", table, found.positions, axis=0)
            axes = self._constant("axes", np.array([axis]))
            self._waves[key] = self._add("Unsqueeze", table, axes)
        return self._waves[key]

    def _repeated(self, name: str, repeated: Integers) -> str:
        """The elements ``repeated`` of rows of cosines or sines."""
        key = name, repeated.tobytes()
        if key not in self._waves:
            value = self._network.constants.get(name)
            if value is not None:
                made = self._network.add_constant(f"{name}/repeated", value[..., repeated])
            else:
                made = self._add("Gather", name, self._constant("repeated", repeated), axis=-1)
            self._waves[key] = made
        return self._waves[key]

    def _constant(self, name: str, value: Integers) -> str:
        return self._network.add_constant(f"{self._end}/{name}", value.astype(np.int64))

    def _add(self, operator: str, *inputs: str, result: str = "", **attributes: int) -> str:
        network = self._network
        name = network.unused_name(f"{self._end}/{operator}")
        if not result:
            result = name
            network.types[name] = TensorType(network.types[inputs[0]].dtype, None)
        self._nodes.append(Node(operator, name, inputs, (result,), attributes))
        return result
