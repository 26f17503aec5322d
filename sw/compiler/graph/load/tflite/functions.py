"""Element-wise operators, as tables of the reference kernels' results."""

from __future__ import annotations

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import (
    DOMAIN,
    LOOKUP,
    LOOKUP_PAIR,
    QUANTIZE,
)
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import Conversion, require_shape
from .file import TfliteOperator
from .precision import require_bytes
from .reference_kernels import pair_table, table


def of_one_tensor(operator: TfliteOperator, to: Conversion) -> None:
    """An element-wise operator with one computed operand."""
    places = [at for at, i in enumerate(operator.inputs) if i >= 0 and to.tensor(i).data is None]
    place = places[0] if places else 0
    number, result = operator.inputs[place], operator.outputs[0]
    x, y = to.tensor(number), to.tensor(result)
    require_bytes(operator, x, y)
    values = table(operator, to, place)
    first = len(x.shape) == 4 and to.is_first(number)
    source, stored = to.name(number, first), to.put(result, first)
    lookup = to.value(f"{operator.name}_table", values)
    zero = to.value(f"{operator.name}_zero_point", y.zero_point, y.dtype)
    attributes = {"axis": -3 if first else -1} if values.ndim > 1 else {}
    if x.shape != y.shape:
        source = _broadcast(to, source, stored)
    to.add(LOOKUP, (source, lookup, zero), (stored,), operator.name, DOMAIN, **attributes)


def _broadcast(to: Conversion, source: str, stored: str) -> str:
    """``source`` repeated to the shape of ``stored``."""
    shape = to.network.types[stored].shape or ()
    wide = to.inner(f"{source}_repeated", to.network.types[source].dtype, shape)
    to.add("Expand", (source, to.value(f"{wide}_shape", np.array(shape, np.int64))), (wide,))
    return wide


def of_two_tensors(operator: TfliteOperator, to: Conversion) -> None:
    """ADD, SUB, MUL or PRELU of two tensors, or of a tensor and a constant. A constant that differs
    only along the last axis, if at all, becomes part of the table."""
    rank = len(to.tensor(operator.outputs[0]).shape)
    for number in operator.inputs[:2]:
        value = to.tensor(number).data
        if value is not None and (value.size == 1 or (rank > 1 and value.size == value.shape[-1])):
            of_one_tensor(operator, to)
            return
    numbers, result = operator.inputs[:2], operator.outputs[0]
    tensors = [to.tensor(number) for number in numbers]
    y = to.tensor(result)
    require_bytes(operator, *tensors, y)
    values = pair_table(operator, to)
    require_shape(operator, to, np.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    images = all(len(tensor.shape) == 4 for tensor in tensors)
    first = images and any(to.is_first(number) for number in numbers)
    names = [to.name(number, first) for number in numbers]
    stored = to.put(result, first)
    zero = to.value(f"{operator.name}_zero_point", y.zero_point, y.dtype)
    to.add(
        LOOKUP_PAIR,
        (*names, to.value(f"{operator.name}_table", values), zero),
        (stored,),
        operator.name,
        DOMAIN,
        function=operator.kind,
        scales=[float(tensor.scale) for tensor in (*tensors, y)],
        zero_points=[tensor.zero_point for tensor in (*tensors, y)],
    )


def quantize(operator: TfliteOperator, to: Conversion) -> None:
    """QUANTIZE of integers, which is a table, or of float32."""
    x, y = to.tensor(operator.inputs[0]), to.tensor(operator.outputs[0])
    if x.dtype != np.float32:
        of_one_tensor(operator, to)
        return
    require_bytes(operator, y)
    require_shape(operator, to, x.shape)
    name = operator.name
    scale = to.value(f"{name}_scale", y.scale)
    zero = to.value(f"{name}_zero_point", y.zero_point, y.dtype)
    inputs = (to.name(operator.inputs[0]), scale, zero)
    to.add(QUANTIZE, inputs, (to.put(operator.outputs[0]),), name, DOMAIN)


def dequantize(operator: TfliteOperator, to: Conversion) -> None:
    """DEQUANTIZE to float32."""
    x, y = to.tensor(operator.inputs[0]), to.tensor(operator.outputs[0])
    require_bytes(operator, x)
    if y.dtype != np.float32:
        raise ModelError(f"{operator.name} has a result of {y.dtype}, not float32")
    name = operator.name
    scale = to.value(f"{name}_scale", x.scale)
    zero = to.value(f"{name}_zero_point", x.zero_point, x.dtype)
    inputs = (to.name(operator.inputs[0]), scale, zero)
    to.add("DequantizeLinear", inputs, (to.put(operator.outputs[0]),), name)
