"""The tensors on the host's side of exported code: `HostTensors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .export_error import ExportError

Array = npt.NDArray[Any]
_C_TYPES = {
    "float32": "float",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int32": "int32_t",
    "int64": "int64_t",
}


@dataclass
class HostTensors:
    """Types of tensors by name, and the C expression of a pointer to each.

    Inputs and outputs are parameters of a function, variables lie in the network's memory; all
    other tensors are static arrays, ``constants`` with their values. Definitions, of tables too,
    are in ``definitions``.
    """

    types: dict[str, TensorType]
    parameters: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    # Tensors that are only packed, by the shape from which they are packed.
    packed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    definitions: list[str] = field(default_factory=list)
    _pointers: dict[str, str] = field(default_factory=dict)
    # Transposed tensors that have no memory: the source, and the distance of neighbours along each
    # axis.
    _transposed: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    # Tensors whose memory is a variable's, which changes at the end of a run.
    _in_variables: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pointers |= self.parameters
        for name, place in self.variables.items():
            self._pointers[name] = f"({c_type(name, self.types[name])} *)({place})"
        self._in_variables |= self.variables.keys()

    def pointer(self, tensor: str) -> str:
        """The C expression of a pointer to ``tensor``."""
        if tensor not in self._pointers and tensor in self.constants:
            self._pointers[tensor] = self._constant(tensor)
        elif tensor not in self._pointers:
            info = self.types[tensor]
            name = f"tensor_{len(self.definitions)}"
            self.definitions.append(f"static {c_type(tensor, info)} {name}[{size(info)}];\n")
            self._pointers[tensor] = name
        return self._pointers[tensor]

    def _constant(self, tensor: str) -> str:
        values = self.constants[tensor]
        kind = c_type(tensor, TensorType(values.dtype, values.shape))
        listed = values.ravel().tolist()
        if kind != "float":
            return self.table(kind, listed)
        if not np.isfinite(values).all():
            raise ExportError(
                f"the constant {tensor} is not finite: change it to the largest number that the "
                f"network needs"
            )
        return self.table(kind, [f"{value.hex()}f" for value in listed])

    def constant(self, tensor: str, values: Array) -> str:
        """The C expression of a pointer to the constant ``tensor``, which has these values."""
        self.constants.setdefault(tensor, values)
        return self.pointer(tensor)

    def share(self, tensor: str, source: str) -> bool:
        """Give ``tensor`` the memory of ``source``, with the same bytes; returns False if it needs
        separate memory."""
        if tensor in self._pointers or source in {*self._in_variables, *self.constants}:
            return False
        self._pointers[tensor] = self.pointer(source)
        return True

    def transpose(self, tensor: str, source: str, distances: tuple[int, ...]) -> bool:
        """Read ``tensor`` directly from ``source``, with ``distances`` between neighbours along
        each axis; returns False if it needs separate memory."""
        if self.packed.get(tensor) != self.types[tensor].shape:
            return False
        self._transposed[tensor] = source, distances
        return True

    def to_pack(self, tensor: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """The C expression of a pointer to ``tensor``, which is packed from ``shape``, and the
        distance of neighbours along each axis."""
        source, distances = self._transposed.get(tensor, (tensor, strides_of(shape)))
        return self.pointer(source), distances

    def copy(self, tensor: str, source: str) -> str:
        """A statement that copies ``source`` to ``tensor``, which has as many bytes."""
        count = size_in_bytes(self.types[tensor])
        return f"vta_copy({self.pointer(source)}, {self.pointer(tensor)}, {count});"

    def table(self, c_kind: str, values: Sequence[object]) -> str:
        """The name of a new constant array."""
        name = f"table_{len(self.definitions)}"
        lines = ",\n    ".join(
            ", ".join(map(str, values[at : at + _PER_LINE]))
            for at in range(0, len(values), _PER_LINE)
        )
        self.definitions.append(f"static const {c_kind} {name}[] = {{\n    {lines}}};\n")
        return name


_PER_LINE = 8


def c_type(name: str, info: TensorType) -> str:
    """The C type of the elements; raises `ExportError` if exported code does not have it."""
    if str(info.dtype) not in _C_TYPES or info.shape is None:
        raise ExportError(
            f"{name} is {info}; exported C supports {', '.join(_C_TYPES)}: export the network up "
            f"to there and compute the rest in your program"
        )
    return _C_TYPES[str(info.dtype)]


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The distance of neighbours along each axis, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def size(info: TensorType) -> int:
    """The number of elements."""
    return prod(info.shape or ())


def size_in_bytes(info: TensorType) -> int:
    return size(info) * info.dtype.itemsize
