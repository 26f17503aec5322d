"""A network as a list of operators on named tensors, and its way to ONNX and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

Array = npt.NDArray[Any]

# Of a tensor that an operator makes which neither ONNX nor ONNX Runtime defines.
_UNKNOWN = TensorType(np.dtype(np.void), None)


@dataclass(frozen=True)
class Node:
    """One operator. An input that is left out is the empty name, as in ONNX."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    # Tensors that graphs inside the attributes (of If, Loop, Scan) read from outside.
    captured: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.inputs, *self.captured) if name)

    def input(self, index: int) -> str:
        """The name of an input, empty if it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""

    @classmethod
    def from_onnx(cls, node: onnx.NodeProto, name: str) -> Node:
        return cls(
            operator=node.op_type,
            name=name,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes={item.name: _attribute(item) for item in node.attribute},
            domain="" if node.domain == "ai.onnx" else node.domain,
            captured=tuple(sorted(_captured(node))),
        )

    def to_onnx(self) -> onnx.NodeProto:
        return helper.make_node(
            self.operator,
            self.inputs,
            self.outputs,
            name=self.name,
            domain=self.domain,
            **self.attributes,
        )


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _captured(node: onnx.NodeProto) -> set[str]:
    found: set[str] = set()
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            known = {item.name for item in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                found |= {name for name in inner.input if name and name not in known}
                found |= _captured(inner) - known
                known |= set(inner.output)
    return found


@dataclass
class Network:
    """Operators in an order in which each comes after those whose results it reads.

    ``types`` has all tensors, constants included, as far as they are known. ``opsets`` are the
    versions by domain.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    constants: dict[str, Array]
    types: dict[str, TensorType]
    opsets: dict[str, int]
    ir_version: int

    @classmethod
    def from_onnx(cls, model: onnx.ModelProto) -> Network:
        """From a checked model whose shapes are inferred."""
        graph = model.graph
        constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        types = {
            item.name: tensor_type(item)
            for item in (*graph.value_info, *graph.input, *graph.output)
            if item.type.HasField("tensor_type")
        }
        types |= {name: _type_of(value) for name, value in constants.items()}
        for node in graph.node:
            types |= {name: _UNKNOWN for name in node.output if name not in types}
        names = _unique_names(graph.node)
        return cls(
            name=graph.name,
            inputs=[item.name for item in graph.input if item.name not in constants],
            outputs=[item.name for item in graph.output],
            nodes=[
                Node.from_onnx(node, name) for node, name in zip(graph.node, names, strict=True)
            ],
            constants=constants,
            types=types,
            opsets={
                "" if item.domain == "ai.onnx" else item.domain: item.version
                for item in model.opset_import
            },
            ir_version=model.ir_version,
        )

    def to_onnx(self) -> onnx.ModelProto:
        return self.part(self.nodes, self.inputs, self.outputs)

    def part(
        self, nodes: Iterable[Node], inputs: Sequence[str], outputs: Sequence[str]
    ) -> onnx.ModelProto:
        """A model of some of the nodes, with the constants that they need."""
        nodes = list(nodes)
        needed = {name for node in nodes for name in node.reads} | set(outputs)
        graph = helper.make_graph(
            [node.to_onnx() for node in nodes],
            self.name or "network",
            [self._value_info(name) for name in inputs],
            [self._value_info(name) for name in outputs],
            [
                numpy_helper.from_array(value, name)
                for name, value in self.constants.items()
                if name in needed
            ],
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)

    def _value_info(self, name: str) -> onnx.ValueInfoProto:
        info = self.types.get(name)
        if info is None or info == _UNKNOWN:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(info.dtype), info.shape
        )

    def producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                result.setdefault(name, []).append(node)
        return result

    def add_constant(self, name: str, value: Array) -> str:
        """Adds a constant under a name like ``name``, and says which."""
        unused = self.unused_name(name)
        self.constants[unused] = value
        self.types[unused] = _type_of(value)
        return unused

    def unused_name(self, name: str) -> str:
        """``name``, or that with a number behind it, such that no tensor has it."""
        taken = self.types.keys() | {output for node in self.nodes for output in node.outputs}
        candidate, number = name, 2
        while candidate in taken:
            candidate, number = f"{name}_{number}", number + 1
        return candidate

    def drop_unused(self) -> None:
        """Removes operators and constants that no output needs."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.reads)
                kept.append(node)
        self.nodes = kept[::-1]
        self.constants = {name: v for name, v in self.constants.items() if name in needed}

    def rename(self, old: str, new: str) -> None:
        """Lets everything that reads ``old`` read ``new``."""
        self.nodes = [
            replace(node, inputs=tuple(new if name == old else name for name in node.inputs))
            if old in node.inputs
            else node
            for node in self.nodes
        ]

    def sort(self) -> None:
        """Puts the nodes in an order in which each comes after those whose results it reads."""
        known = set(self.inputs) | set(self.constants)
        waiting, ordered = self.nodes, []
        while waiting:
            later = []
            for node in waiting:
                if known.issuperset(node.reads):
                    ordered.append(node)
                    known.update(node.outputs)
                else:
                    later.append(node)
            if len(later) == len(waiting):
                raise ModelError(f"{later[0].name} waits for its own result")
            waiting = later
        self.nodes = ordered


def tensor_type(info: onnx.ValueInfoProto) -> TensorType:
    tensor = info.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return TensorType(dtype, None)
    return TensorType(dtype, tuple(d.dim_value for d in tensor.shape.dim))


def _type_of(value: Array) -> TensorType:
    return TensorType(value.dtype, value.shape)


def _unique_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Names for messages and tables: the node's own, else its operator and first output."""
    names: list[str] = []
    for node in nodes:
        output = node.output[0] if node.output else ""
        name = node.name or f"{node.op_type}_{output}"
        names.append(name if name not in names else f"{name}_{output}")
    return names
