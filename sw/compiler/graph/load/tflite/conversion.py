"""Convert the operators of one subgraph to a `Network`.

TensorFlow Lite holds images with channels last. The machine and ONNX's convolutions hold them with
channels first, so the conversion tracks for each tensor of rank 4 in which of both layouts it
exists, and adds a Transpose only where an operator needs the other layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node, Nodes
from amaranth_vta.sw.runtime.array_file import require_within_limit
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import State
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .file import Array, FileTensor, TfliteModel, TfliteOperator, TfliteSubgraph

# Opset of ONNX that the conversion uses, and the IR version that came with it.
_OPSET, _IR_VERSION = 21, 10
# Axes of images with channels last, in the order of channels first, and the inverse.
TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


@dataclass
class Conversion:
    """The network under construction. Tensors are named as in the file; with channels first they
    have the suffix ``_first``."""

    file: TfliteModel
    graph: TfliteSubgraph
    network: Network = field(init=False)
    # Names of the tensors that exist, by number and layout (whether channels are first).
    _held: dict[tuple[int, bool], str] = field(default_factory=dict)
    # Numbers of the images that were flattened, by the number of the result.
    flattened: dict[int, int] = field(default_factory=dict)
    _nodes: list[Node] = field(default_factory=list)
    _constant_bytes: int = 0
    # The input and the initial value of each variable that is read before it is assigned.
    _initial: dict[str, tuple[str, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opsets = {"": _OPSET, DOMAIN: 1}
        self.network = Network("tflite", [], [], Nodes(), {}, {}, opsets, _IR_VERSION)
        for number in self.graph.inputs:
            self.network.inputs.append(self.put(number))

    def state(self, variable: str, info: TensorType, initial: Array) -> str:
        """The input of the network that holds ``variable`` before a run."""
        name = self.inner(f"state/{variable}", info.dtype, info.shape or ())
        self.network.inputs.append(name)
        self._initial[variable] = name, initial
        return name

    def finish(self, variables: Mapping[str, str]) -> Network:
        """The network of all nodes that were added; ``variables`` are the names of the tensors that
        they hold after a run."""
        for number in self.graph.outputs:
            name = self.name(number)
            if name in self.network.outputs or name in self.network.inputs:
                raise ModelError(f"output {name} is an input, or is listed twice")
            self.network.outputs.append(name)
        states = []
        for variable, (source, initial) in self._initial.items():
            result = variables[variable]
            if result in (*self.network.inputs, *self.network.outputs):
                kept = self.inner(f"{source}/next", initial.dtype, initial.shape)
                self.add("Identity", (result,), (kept,))
                result = kept
            self.network.outputs.append(result)
            states.append(State(source, result, initial))
        self.network.states = tuple(states)
        self.network.nodes = Nodes(self._nodes)
        self.network.drop_unused()
        return self.network

    def tensor(self, number: int) -> FileTensor:
        return self.graph.tensors[number]

    def optional(self, operator: TfliteOperator, place: int) -> FileTensor | None:
        """The input at ``place``; None if it is omitted."""
        inputs = operator.inputs
        if place >= len(inputs) or inputs[place] < 0:
            return None
        return self.tensor(inputs[place])

    def constant(self, operator: TfliteOperator, place: int) -> Array:
        """The value of a constant input. Raises `ModelError` if it is computed."""
        tensor = self.optional(operator, place)
        if tensor is None or tensor.data is None:
            raise ModelError(f"{operator.name}: input {place} is not a constant")
        return tensor.data

    def name(self, number: int, first: bool = False) -> str:
        """The name of a tensor with channels last, or ``first``."""
        found = self._held.get((number, first))
        if found is not None:
            return found
        tensor = self.tensor(number)
        other = self._held.get((number, not first))
        if other is None:
            if tensor.data is None:
                raise ModelError(f"tensor {tensor.name} is read before it is computed")
            value = tensor.data.transpose(TO_FIRST) if first else tensor.data
            made = self.network.add_constant(tensor.name, np.array(value, order="C"))
        else:
            made = self._in_layout(other, number, first)
        self._held[number, first] = made
        return made

    def _in_layout(self, held: str, number: int, first: bool) -> str:
        """Move the channels of an image that is ``held`` in the other layout."""
        name = self._new(number, first)
        shape = self.tensor(number).shape
        if prod(shape[1:3]) == 1 or shape[3] == 1:  # the order of elements is the same
            self.reshape(held, name)
        else:
            order = TO_FIRST if first else TO_LAST
            self.add("Transpose", (held,), (name,), perm=list(order))
        return name

    def has_first(self, number: int) -> bool:
        """Whether an image exists with channels first."""
        return (number, True) in self._held

    def is_first(self, number: int) -> bool:
        """Whether an image exists only with channels first."""
        return (number, True) in self._held and (number, False) not in self._held

    def put(self, number: int, first: bool = False) -> str:
        """The name under which an operator stores a result."""
        if number < 0:
            raise ModelError("an operator lacks a result")
        name = self._new(number, first)
        self._held[number, first] = name
        return name

    def _new(self, number: int, first: bool) -> str:
        tensor = self.tensor(number)
        shape = tensor.shape
        if first:
            shape = tuple(shape[axis] for axis in TO_FIRST)
        name = self.network.unused_name(f"{tensor.name}_first" if first else tensor.name)
        self.network.types[name] = TensorType(tensor.dtype, shape)
        return name

    def hold(self, number: int, name: str) -> None:
        """Let a tensor be the tensor that is named ``name``."""
        self._held[number, False] = name

    def inner(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        """The name of a new tensor that is not in the file."""
        require_within_limit(f"tensor {name}", prod(shape) * np.dtype(dtype).itemsize)
        unused = self.network.unused_name(name)
        self.network.types[unused] = TensorType(np.dtype(dtype), tuple(shape))
        return unused

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str = "",
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Append a node."""
        name = name or f"{outputs[0]}/{operator}"
        self._nodes.append(Node(operator, name, tuple(inputs), tuple(outputs), attributes, domain))

    def reshape(self, source: str, result: str) -> None:
        """Append a Reshape to the shape of ``result``."""
        shape = np.array(self.network.types[result].shape, np.int64)
        self.add("Reshape", (source, self.value(f"{result}_shape", shape)), (result,))

    def value(self, name: str, value: Any, dtype: Any = None) -> str:
        """A constant that is not a tensor of the file."""
        constant = np.asarray(value, dtype)
        self._constant_bytes += constant.nbytes
        require_within_limit("all constants together", self._constant_bytes)
        return self.network.add_constant(name, constant)

    def clamped(self, operator: TfliteOperator, result: int, first: bool) -> str:
        """The name under which to store a result before the fused activation, whose Clip is
        appended by `clamp`."""
        final = self.put(result, first)
        if activation_limits(operator, self.tensor(result)) is None:
            return final
        info = self.network.types[final]
        return self.inner(f"{final}_unclipped", info.dtype, info.shape or ())

    def clamp(self, operator: TfliteOperator, result: int, first: bool, stored: str) -> None:
        """Append the Clip of the fused activation of ``operator``, if it has one."""
        limits = activation_limits(operator, self.tensor(result))
        if limits is None:
            return
        final = self._held[result, first]
        dtype = self.tensor(result).dtype
        bounds = [
            self.value(f"{final}_{what}", value, dtype)
            for what, value in zip(("low", "high"), limits, strict=True)
        ]
        self.add("Clip", (stored, *bounds), (final,))


def activation_limits(operator: TfliteOperator, result: FileTensor) -> tuple[int, int] | None:
    """The least and the greatest integer of a result after the fused activation; None if it has no
    effect."""
    kind = operator.option("fusedActivationFunction")
    if kind not in _ACTIVATIONS:
        raise ModelError(f"{operator.name} has a fused activation that integers do not have")
    found = integer_limits(_ACTIVATIONS[kind], result)
    limits = np.iinfo(result.dtype) if found else None
    return None if limits is None or found == (limits.min, limits.max) else found


def integer_limits(
    bounds: tuple[float | None, float | None], result: FileTensor
) -> tuple[int, int] | None:
    """``bounds`` as integers of ``result``; None for no bounds."""
    if bounds == (None, None):
        return None
    limits = np.iinfo(result.dtype)
    least, most = bounds
    low = limits.min if least is None else max(limits.min, _quantized(least, result))
    high = limits.max if most is None else min(limits.max, _quantized(most, result))
    return int(low), int(high)


def _quantized(value: float, tensor: FileTensor) -> int:
    steps = np.float32(value) / tensor.scale
    return tensor.zero_point + int(np.copysign(np.floor(np.abs(steps) + np.float32(0.5)), steps))


# Bounds of ActivationFunctionType: NONE, RELU, RELU_N1_TO_1 and RELU6.
_ACTIVATIONS: dict[int, tuple[float | None, float | None]] = {
    0: (None, None),
    1: (0.0, None),
    2: (-1.0, 1.0),
    3: (0.0, 6.0),
}


def require_shape(operator: TfliteOperator, to: Conversion, shape: tuple[int, ...]) -> None:
    """Raise `ModelError` unless the result of ``operator`` has this ``shape``."""
    found = to.tensor(operator.outputs[0]).shape
    if found != shape:
        raise ModelError(f"{operator.name} has a result of shape {found} instead of {shape}")
