"""Variables: READ_VARIABLE and ASSIGN_VARIABLE, and CALL_ONCE, which assigns initial values.

A variable that is read before it is assigned becomes an input and an output of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .conversion import Conversion
from .file import Array, TfliteOperator, TfliteSubgraph

VARIABLE_OPERATORS = ("VAR_HANDLE", "CALL_ONCE", "READ_VARIABLE", "ASSIGN_VARIABLE")


@dataclass
class Variables:
    """The variables of a file: the tensors that hold their present values, by name."""

    to: Conversion
    held: dict[str, str] = field(default_factory=dict)
    _initial: dict[str, Array] = field(default_factory=dict)
    # Names of variables by the number of their handle.
    _handles: dict[int, str] = field(default_factory=dict)

    def convert(self, operator: TfliteOperator) -> bool:
        """Convert ``operator`` if it concerns variables; returns whether it does."""
        match operator.kind:
            case "VAR_HANDLE":
                self._handles[operator.outputs[0]] = _name(operator)
            case "CALL_ONCE":
                self._initialize(operator)
            case "READ_VARIABLE":
                self._read(operator)
            case "ASSIGN_VARIABLE":
                self.held[self._variable(operator)] = self.to.name(operator.inputs[1])
            case _:
                return False
        return True

    def _variable(self, operator: TfliteOperator) -> str:
        name = self._handles.get(operator.inputs[0])
        if name is None:
            raise ModelError(f"{operator.name} has no handle of a variable")
        return name

    def _read(self, operator: TfliteOperator) -> None:
        name, number = self._variable(operator), operator.outputs[0]
        if name not in self.held:
            if name not in self._initial:
                raise ModelError(f"{operator.name} reads the variable {name}, which has no value")
            tensor = self.to.tensor(number)
            initial = self._initial[name].reshape(tensor.shape)
            self.held[name] = self.to.state(name, TensorType(tensor.dtype, tensor.shape), initial)
        self.to.hold(number, self.held[name])

    def _initialize(self, operator: TfliteOperator) -> None:
        """Note the constants that the subgraph of CALL_ONCE assigns."""
        number = operator.option("initSubgraphIndex")
        if not 0 <= number < len(self.to.file.subgraphs):
            raise ModelError(f"{operator.name} calls subgraph {number}, which is missing")
        for name, value in assigned(self.to.file.subgraphs[number]).items():
            self._initial.setdefault(name, value)


def assigned(graph: TfliteSubgraph) -> Mapping[str, Array]:
    """The constants that a subgraph assigns, by variable."""
    handles: dict[int, str] = {}
    found = {}
    for operator in graph.operators:
        if operator.kind == "VAR_HANDLE":
            handles[operator.outputs[0]] = _name(operator)
        elif operator.kind == "ASSIGN_VARIABLE":
            value = graph.tensors[operator.inputs[1]].data
            name = handles.get(operator.inputs[0])
            if value is None or name is None:
                raise ModelError(f"{operator.name} assigns a value that is not constant")
            found[name] = value
        else:
            raise ModelError(f"{operator.kind} among initial assignments is not supported")
    return found


def _name(operator: TfliteOperator) -> str:
    """The name of the variable of a VAR_HANDLE."""
    container, shared = (operator.option(key, b"") or b"" for key in ("container", "sharedName"))
    parts = [part.decode() if isinstance(part, bytes) else part for part in (container, shared)]
    return "/".join(part for part in parts if part)
