"""A network of operators on named tensors, converted from and to ONNX."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import State
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .integer_operators import expanded
from .nodes import Node, Nodes, renamed

Array = npt.NDArray[Any]

# Rounding of constants may move a result by at most this many of its steps.
MOST_MOVED = 0.5
# Prefix of the metadata that describes a variable.
_STATE = "amaranth_vta.state."
# Type of the results of operators that neither ONNX nor ONNX Runtime defines.
UNKNOWN = TensorType(np.dtype(np.void), None)


@dataclass
class Rounding:
    """Bounds on how far rounding of constants moves the results of products, by product name, in
    steps of the result before it is rounded.

    ``bounds`` has the products in integer form. ``refused`` has the products that stay in float
    because their bound exceeds half a step; it is empty if rounding is ``allowed``.
    """

    allowed: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)

    def takes(self, name: str, bound: float) -> bool:
        """Record the ``bound`` of a product, and return whether its integer form is acceptable."""
        if bound > MOST_MOVED and not self.allowed:
            self.refused[name] = bound
            return False
        self.bounds[name] = bound
        self.refused.pop(name, None)
        return True


@dataclass
class Network:
    """Operators in topological order.

    ``types`` has all tensors, including constants, as far as their types are known. ``opsets`` has
    the version of each domain. ``inputs`` and ``outputs`` include the variables, ``states``.
    ``macs`` has, by name, the MACs without padding of convolutions that compute padding channels,
    and of products whose last block of weights is padded.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: Nodes
    constants: dict[str, Array]
    types: dict[str, TensorType]
    opsets: dict[str, int]
    ir_version: int
    rounding: Rounding = field(default_factory=Rounding)
    states: tuple[State, ...] = ()
    macs: dict[str, int] = field(default_factory=dict)

    @property
    def public_inputs(self) -> list[str]:
        """The inputs that a user gives."""
        own = {item.source for item in self.states}
        return [name for name in self.inputs if name not in own]

    @property
    def public_outputs(self) -> list[str]:
        """The outputs that a user gets."""
        count = len(self.outputs) - len(self.states)
        return self.outputs[:count]

    @classmethod
    def from_onnx(cls, model: onnx.ModelProto) -> Network:
        """Convert a checked model with inferred shapes."""
        graph = model.graph
        constants = {item.name: _value(item) for item in graph.initializer}
        types = {
            item.name: tensor_type(item)
            for item in (*graph.value_info, *graph.output, *graph.input)
            if item.type.HasField("tensor_type") or item.type.HasField("sequence_type")
        }
        types |= {name: _type_of(value) for name, value in constants.items()}
        for node in graph.node:
            types |= {name: UNKNOWN for name in node.output if name not in types}
        names = _unique_names(graph.node)
        return cls(
            name=graph.name,
            inputs=[item.name for item in graph.input if item.name not in constants],
            outputs=[item.name for item in graph.output],
            nodes=Nodes(
                Node.from_onnx(node, name) for node, name in zip(graph.node, names, strict=True)
            ),
            constants=constants,
            types=types,
            opsets={
                "" if item.domain == "ai.onnx" else item.domain: item.version
                for item in model.opset_import
            },
            # IR version 3 would require constants to be inputs too.
            ir_version=max(model.ir_version, 4),
            states=_states(model, types),
        )

    def copied(self) -> Network:
        """A copy whose nodes, constants, types and MACs can change, while this network does
        not."""
        return replace(
            self,
            nodes=Nodes(self.nodes),
            constants=dict(self.constants),
            types=dict(self.types),
            macs=dict(self.macs),
        )

    def to_onnx(self) -> onnx.ModelProto:
        """The whole network as a model that ONNX Runtime can run."""
        return self.part(self.nodes, self.inputs, self.outputs)

    def with_roundings(self) -> onnx.ModelProto:
        """The whole network with the attributes of `integer_operators`, which ONNX's shape
        inference ignores; they are not expanded to operators of ONNX."""
        model = self._model(list(self.nodes), self.inputs, self.outputs, self.constants)
        for item in self.states:
            value = b64encode(item.initial.tobytes()).decode()
            declare_state(model, item.source, item.result, value, item.places)
        return model

    def with_types(self) -> onnx.ModelProto:
        """`with_roundings`, and with the types of all tensors."""
        model = self.with_roundings()
        inner = self.types.keys() - {*self.inputs, *self.outputs} - self.constants.keys()
        made = [name for node in self.nodes for name in node.outputs if name in inner]
        model.graph.value_info.extend(self.value_info(name) for name in made)
        return model

    def part(
        self, nodes: Iterable[Node], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        """A model of some of the nodes, with the constants that they read. Nodes with a rounding of
        their own are expanded, so that ONNX Runtime can run the model."""
        plain, added = expanded(nodes, self.types)
        return self._model(plain, inputs, outputs, self.constants | added)

    def _model(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
    ) -> onnx.ModelProto:
        needed = dict.fromkeys([*(name for node in nodes for name in node.reads), *outputs])
        graph = helper.make_graph(
            [node.to_onnx() for node in nodes],
            self.name or "network",
            [self.value_info(name) for name in inputs],
            [self.value_info(name) for name in outputs],
            [
                numpy_helper.from_array(constants[name], name)
                for name in needed
                if name in constants
            ],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        """The type of a tensor in ONNX format, as far as it is known."""
        info = self.types.get(name)
        if info is None or info == UNKNOWN:
            return helper.make_empty_tensor_value_info(name)
        if info.member is not None:
            member = helper.np_dtype_to_tensor_dtype(info.member)
            return helper.make_tensor_sequence_value_info(name, member, None)
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(info.dtype), info.shape
        )

    def maker(self, name: str) -> Node | None:
        """The node that produces a tensor; None for inputs and constants."""
        return self.nodes.maker(name)

    def only_reader(self, name: str) -> Node | None:
        """The only node that reads a tensor; None if there are several or none, or if it is an
        output."""
        readers = self.nodes.readers(name)
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def add_constant(self, name: str, value: Array) -> str:
        """Add a constant, named ``name`` if that is unused, and return its name."""
        unused = self.unused_name(name)
        self.constants[unused] = value
        self.types[unused] = _type_of(value)
        return unused

    def unused_name(self, name: str) -> str:
        """``name`` if no tensor has it, else ``name`` with a number appended."""
        candidate, number = name, 2
        while candidate in self.types or self.maker(candidate) is not None:
            candidate, number = f"{name}_{number}", number + 1
        return candidate

    def drop_unused(self) -> None:
        """Remove dead nodes and unused constants."""
        needed = set(self.outputs)
        for node in reversed(list(self.nodes)):
            if needed.intersection(node.outputs):
                needed.update(node.reads)
            else:
                self.nodes.remove(node)
        self.constants = {name: v for name, v in self.constants.items() if name in needed}

    def rename(self, old: str, new: str) -> None:
        """Replace the input ``old`` by ``new`` in every node."""
        for node in self.nodes.readers(old):
            self.nodes.replace(node, [renamed(node, old, new)])

    def sort(self) -> None:
        """Sort the nodes topologically.

        Raises `ModelError` if the nodes form a cycle.
        """
        self.nodes = Nodes(_in_order(self.nodes))


def declare_state(
    model: onnx.ModelProto,
    source: str,
    result: str,
    initial: str | None = None,
    places: int = 0,
) -> None:
    """Note a variable in the metadata of ``model``, with its initial bytes in base 64; zeros by
    default. ``places`` is as in `State`."""
    item = {"source": source, "result": result, "initial": initial, "places": places}
    text = json.dumps(item)
    model.metadata_props.add(key=f"{_STATE}{source}", value=text)


def initial_values(model: onnx.ModelProto) -> dict[str, Array]:
    """The initial values of the variables in the metadata of ``model``, by input."""
    types = {item.name: tensor_type(item) for item in model.graph.input}
    return {item.source: item.initial for item in _states(model, types)}


def _states(model: onnx.ModelProto, types: Mapping[str, TensorType]) -> tuple[State, ...]:
    """The variables in the metadata of a model, see `declare_state`."""
    found = []
    for entry in model.metadata_props:
        if entry.key.startswith(_STATE):
            item = json.loads(entry.value)
            info = types[item["source"]]
            initial = np.zeros(info.shape or (), info.dtype)
            if item["initial"] is not None:
                given = np.frombuffer(b64decode(item["initial"]), info.dtype)
                initial = given.reshape(initial.shape)
            found.append(State(item["source"], item["result"], initial, item["places"]))
    return tuple(found)


def _value(constant: onnx.TensorProto) -> Array:
    try:
        return numpy_helper.to_array(constant)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"constant {constant.name} is damaged: {error}") from None


def _in_order(nodes: Nodes) -> list[Node]:
    """Sort the nodes topologically, as repeated passes over the list would that take every node
    whose inputs are available: a node's pass is that of its last producer, or the next one if the
    producer follows it in the list."""
    listed = list(nodes)
    position = {id(node): number for number, node in enumerate(listed)}
    rounds: dict[int, int] = {}
    for root in listed:
        path = [root]
        open_nodes = {id(root)}
        while path:
            node = path[-1]
            makers = [maker for name in node.reads if (maker := nodes.maker(name)) is not None]
            waits_for = next((maker for maker in makers if id(maker) not in rounds), None)
            if waits_for is None:
                at = position[id(node)]
                rounds[id(node)] = max(
                    (rounds[id(m)] + (position[id(m)] > at) for m in makers), default=0
                )
                open_nodes.discard(id(path.pop()))
            elif id(waits_for) in open_nodes:
                raise ModelError(f"the network has a cycle: {waits_for.name} needs its own result")
            else:
                path.append(waits_for)
                open_nodes.add(id(waits_for))
    return sorted(listed, key=lambda node: rounds[id(node)])


def tensor_type(info: onnx.ValueInfoProto) -> TensorType:
    if info.type.HasField("sequence_type"):
        member = info.type.sequence_type.elem_type.tensor_type.elem_type
        return TensorType.sequence(np.dtype(helper.tensor_dtype_to_np_dtype(member)))
    tensor = info.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(d.dim_value for d in tensor.shape.dim))


def _type_of(value: Array) -> TensorType:
    return TensorType(value.dtype, value.shape)


def _unique_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Unique names for messages and tables: the node's own name, or else its operator and first
    output."""
    names: list[str] = []
    taken: set[str] = set()
    for node in nodes:
        output = node.output[0] if node.output else ""
        name = node.name or f"{node.op_type}_{output}"
        names.append(f"{name}_{output}" if name in taken else name)
        taken.add(names[-1])
    return names
