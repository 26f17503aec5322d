"""Tensor expressions: what is computed, independent of the schedule.

A tensor is a placeholder or the result of `compute`, a function from indices to a scalar
expression. Shapes and index ranges are checked when a tensor is defined; errors are
`ExpressionError`, with the expression in the message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from .dtypes import (
    INDEX_DTYPE,
    ExpressionError,
    Interval,
    dtype_interval,
    is_dtype,
    whole_number,
)
from .expr import Access, Affine, Expr, IterVar, Reduce, Scalar, Select, Var, const
from .functions import all_of, if_then_else
from .origin import caller
from .simplify import value_interval


class Operation:
    """The operation that defines a tensor: a placeholder (without a body) or a compute."""

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        axis: Sequence[IterVar],
        body: Expr | None,
        dtype: str,
    ) -> None:
        self.name = name
        self.axis = list(axis)
        self.body = body
        self.reduce_axis = list(body.axes) if isinstance(body, Reduce) else []
        self.origin = caller()
        self.tensor = Tensor(shape, dtype, name, self)

    def output(self, index: int) -> Tensor:
        if index != 0:
            raise ExpressionError(f"{self.name} has one output, not {index + 1}")
        return self.tensor

    def __repr__(self) -> str:
        return self.name


class Tensor:
    """A tensor of a fixed shape. Calling or indexing it with one index per dimension reads it."""

    def __init__(self, shape: tuple[int, ...], dtype: str, name: str, op: Operation) -> None:
        self.shape, self.dtype, self.name, self.op = shape, dtype, name, op

    def __call__(self, *indices: Scalar) -> Expr:
        if len(indices) != len(self.shape):
            text = ", ".join(map(str, indices))
            raise ExpressionError(
                f"{self.name}[{text}]: {len(indices)} indices for the shape {self.shape}"
            )
        values = []
        for index in indices:
            try:
                value = index if isinstance(index, Expr) else const(index)
            except ExpressionError as error:
                raise ExpressionError(f"{self.name}[… {index!r} …]: {error}") from None
            if value.dtype != INDEX_DTYPE:
                raise ExpressionError(
                    f"{self.name}[… {value} …]: an index is {INDEX_DTYPE}, not {value.dtype}"
                )
            form = Affine.of(value)
            values.append(value if form is None else form)
        return Access(self, values)

    def __getitem__(self, indices: Scalar | tuple[Scalar, ...]) -> Expr:
        return self(*indices) if isinstance(indices, tuple) else self(indices)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @cached_property
    def interval(self) -> Interval:
        """Bounds of the elements, as far as the expression determines them."""
        if self.op.body is None:
            return dtype_interval(self.dtype)
        return value_interval(self.op.body, {axis: axis.interval for axis in self.op.axis})

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def _checked_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    extents = _whole_numbers(f"{name}: its shape", shape)
    for extent in extents:
        if extent < 1:
            raise ExpressionError(f"{name}: {extent} in its shape is not a positive whole number")
    if not extents:
        raise ExpressionError(f"{name}: a tensor has at least one dimension")
    return extents


def _whole_numbers(what: str, values: Iterable[int]) -> tuple[int, ...]:
    if not isinstance(values, Iterable):
        raise ExpressionError(f"{what} is {values!r}, not a list of whole numbers")
    try:
        return tuple(map(whole_number, values))
    except ExpressionError as error:
        raise ExpressionError(f"{what}: {error}") from None


def placeholder(shape: Sequence[int], name: str = "placeholder", dtype: str = "int32") -> Tensor:
    """An input of ``shape`` and ``dtype``. Raises `ExpressionError` for other arguments, and for a
    ``name`` that is a dtype, since other libraries take name and dtype in the opposite order.
    """
    order = "te.placeholder(shape, name, dtype)"
    if isinstance(shape, str):
        raise ExpressionError(f"{order}: {shape!r} is given as its shape")
    if not isinstance(name, str) or is_dtype(name):
        raise ExpressionError(
            f"{order}: {name!r} is given as its name"
            + (f" and {dtype!r} as its dtype" if dtype != "int32" else "")
        )
    if not isinstance(dtype, str):
        raise ExpressionError(f"{order}: {dtype!r} is given as its dtype")
    dtype_interval(dtype)
    return Operation(name, _checked_shape(name, shape), [], None, dtype).tensor


def compute(shape: Sequence[int], function: Callable[..., Scalar], name: str = "compute") -> Tensor:
    """A tensor of ``shape`` whose element at ``i, j, …`` is ``function(i, j, …)``.

    Raises `ExpressionError` if an index can leave its tensor (outside of `if_then_else`) or if a
    reduction is not the whole expression.
    """
    if not callable(function):
        raise ExpressionError(f"te.compute(shape, function, name): {function!r} is no function")
    extents = _checked_shape(name, shape)
    axis = [
        IterVar(label, extent, "spatial")
        for label, extent in zip(_axis_names(name, function, len(extents)), extents, strict=True)
    ]
    value = function(*axis)
    try:
        body = value if isinstance(value, Expr) else const(value)
    except ExpressionError:
        raise ExpressionError(f"{name}: its function gives {value!r}, not an expression") from None
    _check_body(name, axis, body)
    return Operation(name, extents, axis, body, body.dtype).tensor


def _axis_names(name: str, function: Callable[..., Scalar], count: int) -> list[str]:
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{index}" for index in range(len(names), count)]
        elif parameter.default is parameter.empty:
            names.append(parameter.name)
    if len(names) != count:
        raise ExpressionError(
            f"{name}: its function takes {len(names)} indices, its shape has {count}"
        )
    return names


def _check_body(name: str, axis: Sequence[IterVar], body: Expr) -> None:
    reduced = list(body.axes) if isinstance(body, Reduce) else []
    ranges: dict[Var, Interval] = {item: item.interval for item in [*axis, *reduced]}
    _check_value(name, body.value if isinstance(body, Reduce) else body, ranges, guarded=False)


def _check_value(name: str, value: Expr, ranges: Mapping[Var, Interval], guarded: bool) -> None:
    match value:
        case Reduce():
            raise ExpressionError(
                f"{name}: {value} is a part of an expression; a reduction is a separate compute"
            )
        case Affine() | Var():
            form = Affine.of(value)
            assert form is not None
            for var in form.terms:
                if var not in ranges:
                    raise ExpressionError(
                        f"{name}: {var} in {value} is not an axis of this compute"
                    )
        case Select():
            _check_value(name, value.condition, ranges, guarded)
            _check_value(name, value.true, ranges, True)
            _check_value(name, value.false, ranges, True)
        case Access():
            for position, index in enumerate(value.indices):
                _check_value(name, index, ranges, guarded)
                low, high = value_interval(index, ranges)
                extent = value.source.shape[position]
                if not guarded and (low < 0 or high >= extent):
                    raise ExpressionError(
                        f"{name}: {value} reads index {low if low < 0 else high} of dimension "
                        f"{position} of {value.source.name}, whose extent is {extent}"
                    )
        case _:
            for child in value.children():
                _check_value(name, child, ranges, guarded)


def reduce_axis(dom: tuple[int, int], name: str = "r") -> IterVar:
    """An axis to reduce over, from ``dom[0]`` to ``dom[1]`` - 1."""
    limits = _whole_numbers(f"reduce_axis({dom!r}, {name!r}): its range", dom)
    if len(limits) != 2:
        raise ExpressionError(f"reduce_axis({dom!r}, {name!r}): a range is (begin, end)")
    begin, end = limits
    if end <= begin:
        raise ExpressionError(f"reduce_axis({dom}, {name!r}) is empty")
    return IterVar(name, end - begin, "reduce", begin)


def pad(
    tensor: Tensor,
    before: Sequence[int],
    after: Sequence[int] | None = None,
    value: int = 0,
    name: str = "pad",
) -> Tensor:
    """``tensor`` with ``before[d]`` elements of ``value`` before dimension d and ``after[d]``
    (default: as ``before``) after it.

    Only machines with the extension PAD_VALUE can pad with a value other than 0. Raises
    `ExpressionError` if it is not a value of the tensor's dtype.
    """
    try:
        const(value, tensor.dtype)
    except ExpressionError as error:
        raise ExpressionError(f"{name}: {error}, the dtype of {tensor.name}") from None
    before = _whole_numbers(f"{name}: the pads before", before)
    after = before if after is None else _whole_numbers(f"{name}: the pads after", after)
    if len(before) != tensor.ndim or len(after) != tensor.ndim:
        raise ExpressionError(
            f"{name}: pads {list(before)}, {list(after)} for the shape {tensor.shape}"
        )
    if min(*before, *after, 0) < 0:
        raise ExpressionError(f"{name}: pads {list(before)}, {list(after)} contain a negative one")
    shape = [
        low + extent + high for low, extent, high in zip(before, tensor.shape, after, strict=True)
    ]

    def element(*i: Expr) -> Expr:
        conditions: list[Expr] = []
        for index, low, high, extent in zip(i, before, after, tensor.shape, strict=True):
            conditions += [index >= low] if low else []
            conditions += [index < low + extent] if high else []
        inner = tensor(*(index - low for index, low in zip(i, before, strict=True)))
        return if_then_else(all_of(*conditions), inner, value) if conditions else inner

    return compute(shape, element, name=name)
