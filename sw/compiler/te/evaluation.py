"""Reference evaluation of tensor expressions in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .dtypes import ExpressionError
from .expr import (
    Access,
    Affine,
    AllOf,
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    IterVar,
    Lookup,
    Reduce,
    Requantize,
    Select,
    Var,
)
from .requantization import requantized
from .tables import looked_up
from .tensor import Tensor

Array = npt.NDArray[Any]
# Maximum number of points of an iteration space evaluated at once.
_CHUNK = 1 << 22
_NUMPY = {"int4": "int8", "uint4": "uint8"}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds values of ``dtype``; four-bit values take one byte each."""
    return np.dtype(_NUMPY.get(dtype, dtype))


def wrap_array(values: Array, dtype: str) -> Array:
    """The values wrapped around to ``dtype``."""
    if dtype == "int4":
        return (((values.astype(np.int64) + 8) & 15) - 8).astype(np.int8)
    if dtype == "uint4":
        return (values.astype(np.int64) & 15).astype(np.uint8)
    return values.astype(numpy_dtype(dtype))


def evaluate(tensor: Tensor, inputs: Mapping[Tensor, Array]) -> Array:
    """Evaluate ``tensor`` to an array of its shape; ``inputs`` are the values of its placeholders.
    Raises `ExpressionError` if one is missing or has the wrong shape.
    """
    return _Evaluator(inputs).tensor(tensor)


def evaluate_index(value: Expr, variables: Mapping[Var, Array]) -> Array:
    """Evaluate ``value``, which depends on ``variables`` only, on the grid of their arrays."""
    return _Evaluator({})._value(value, variables)


class _Evaluator:
    def __init__(self, inputs: Mapping[Tensor, Array]) -> None:
        self.known: dict[Tensor, Array] = {}
        for tensor, array in inputs.items():
            if tuple(array.shape) != tensor.shape:
                raise ExpressionError(
                    f"{tensor.name} has the shape {tensor.shape}, not {array.shape}"
                )
            self.known[tensor] = wrap_array(np.asarray(array), tensor.dtype)

    def tensor(self, tensor: Tensor) -> Array:
        if tensor not in self.known:
            if tensor.op.body is None:
                raise ExpressionError(f"no value is given for {tensor.name}")
            self.known[tensor] = self._compute(tensor)
        return self.known[tensor]

    def _compute(self, tensor: Tensor) -> Array:
        body, axes = tensor.op.body, tensor.op.axis
        assert body is not None
        indices: dict[Var, Array] = {
            axis: np.arange(extent).reshape([-1 if d == p else 1 for p in range(len(axes))])
            for d, (axis, extent) in enumerate(zip(axes, tensor.shape, strict=True))
        }
        if isinstance(body, Reduce):
            result = self._reduce(body, list(body.axes), indices, tensor.shape)
        else:
            result = self._value(body, indices)
        return np.array(np.broadcast_to(wrap_array(result, tensor.dtype), tensor.shape))

    def _reduce(
        self, body: Reduce, axes: list[IterVar], indices: dict[Var, Array], shape: tuple[int, ...]
    ) -> Array:
        """Reduce over as many axes at once as `_CHUNK` allows, and loop over the others."""
        points = int(np.prod(shape))
        for axis in axes:
            assert axis.extent is not None
            points *= axis.extent
        if not axes or points <= _CHUNK:
            return self._reduce_at_once(body, axes, indices, shape)
        first, rest = axes[0], axes[1:]
        assert first.extent is not None
        parts = (
            self._reduce(body, rest, {**indices, first: np.array(value)}, shape)
            for value in range(first.begin, first.begin + first.extent)
        )
        function = {"sum": np.add, "max": np.maximum, "min": np.minimum}[body.kind]
        result = next(parts)
        for part in parts:
            result = wrap_array(function(result, part), body.dtype)
        return result

    def _reduce_at_once(
        self, body: Reduce, axes: list[IterVar], indices: dict[Var, Array], shape: tuple[int, ...]
    ) -> Array:
        count = len(axes)
        grid = {var: values.reshape(values.shape + (1,) * count) for var, values in indices.items()}
        extents = []
        for position, axis in enumerate(axes):
            assert axis.extent is not None
            extents.append(axis.extent)
            tail = [-1 if p == position else 1 for p in range(count)]
            grid[axis] = (axis.begin + np.arange(axis.extent)).reshape([1] * len(shape) + tail)
        values = np.broadcast_to(self._value(body.value, grid), (*shape, *extents))
        over = tuple(range(len(shape), len(shape) + count))
        if body.kind == "sum":
            return wrap_array(values.sum(axis=over, dtype=np.int64), body.dtype)
        return values.max(axis=over) if body.kind == "max" else values.min(axis=over)

    def _value(
        self, value: Expr, indices: Mapping[Var, Array], where: Array | None = None
    ) -> Array:
        """``value`` on the grid of ``indices``; results where ``where`` is false are not used."""
        match value:
            case Const():
                return np.array(value.value, numpy_dtype(value.dtype))
            case Var():
                return indices[value]
            case Affine():
                return sum(
                    (factor * indices[var] for var, factor in value.terms.items()),
                    np.array(value.const),
                )
            case Cast():
                return wrap_array(self._value(value.value, indices, where), value.dtype)
            case Select():
                condition = self._value(value.condition, indices, where)
                inside = condition if where is None else condition & where
                outside = ~condition if where is None else ~condition & where
                return np.where(
                    condition,
                    self._value(value.true, indices, inside),
                    self._value(value.false, indices, outside),
                )
            case Requantize():
                parts = (value.value, *value.parameters)
                return requantized(*(self._value(part, indices, where) for part in parts))
            case Lookup():
                found = self._value(value.value, indices, where)
                tiles = [self._tile(part, indices, where) for part in value.parameters]
                return looked_up(found, np.concatenate(np.broadcast_arrays(*tiles), axis=-1))
            case AllOf():
                result = np.array(True)
                for part in value.conditions:
                    result = result & self._value(part, indices, where)
                return result
            case Access():
                return self._access(value, indices, where)
            case Compare() | Binary():
                left = self._value(value.left, indices, where)
                right = self._value(value.right, indices, where)
                if isinstance(value, Compare):
                    return _COMPARE[value.op](left, right)
                return wrap_array(_apply(value.op, left, right), value.dtype)
        raise ExpressionError(f"{value} has no value by itself")

    def _tile(self, value: Expr, indices: Mapping[Var, Array], where: Array | None) -> Array:
        """All scalars of the tile that contains ``value``, along the last dimension."""
        if not isinstance(value, Access):
            raise ExpressionError(f"{value} is not a tile of a table")
        tiles = self.tensor(value.source)
        tiles = tiles.reshape(*tiles.shape[:-2], -1)
        return tiles[tuple(self._places(value, value.indices[:-2], indices, where))]

    def _access(self, value: Access, indices: Mapping[Var, Array], where: Array | None) -> Array:
        places = self._places(value, value.indices, indices, where)
        return self.tensor(value.source)[tuple(places)]

    def _places(
        self,
        value: Access,
        of: Sequence[Expr],
        indices: Mapping[Var, Array],
        where: Array | None,
    ) -> list[Array]:
        """Evaluate ``of``, the leading indices of ``value``, and check that they are in bounds."""
        source = self.tensor(value.source)
        places = []
        for position, index in enumerate(of):
            place = self._value(index, indices, where)
            extent = source.shape[position]
            outside = (place < 0) | (place >= extent)
            if outside.any():
                if np.any(outside if where is None else outside & where):
                    raise ExpressionError(
                        f"{value} reads outside of dimension {position} of {source.shape}"
                    )
                place = np.clip(place, 0, extent - 1)
            places.append(place)
        return places


_COMPARE: dict[str, Any] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def _apply(op: str, left: Array, right: Array) -> Array:
    a, b = left.astype(np.int64), right.astype(np.int64)
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "min":
            return np.minimum(a, b)
        case "max":
            return np.maximum(a, b)
    amount = np.clip(b if op == ">>" else -b, -63, 63)
    return np.where(amount >= 0, a >> np.maximum(amount, 0), a << np.maximum(-amount, 0))
