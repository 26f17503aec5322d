"""Calls of the C runtime for operators of the host: `host_calls`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, QUANTIZE, SOFTMAX
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .export_error import ExportError
from .host_operators import HostOperator
from .host_tensors import HostTensors, size, strides_of

# From this opset on, a Softmax normalizes along one axis only; before, over all axes from it on.
_SOFTMAX_OF_AXIS = 13
# Axes of a Transpose in C.
_MOST_AXES = 8


class _Unsupported(Exception):
    """Exported C does not have an operator; the message says what about it."""


def host_calls(steps: Sequence[Sequence[HostOperator]], tensors: HostTensors) -> list[list[str]]:
    """Statements in C for the operators of each step, in order. Raises `ExportError`, which names
    an operator that exported C does not have, and what to do about it."""
    calls: list[list[str]] = []
    refused: list[tuple[HostOperator, str]] = []
    for operators in steps:
        lines: list[str] = []
        for operator in operators:
            try:
                lines += _call(operator, tensors)
            except _Unsupported as error:
                refused.append((operator, str(error)))
        calls.append(lines)
    if refused:
        raise _refusal(*refused[0], len(refused))
    return calls


def _call(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    node = operator.node
    function = _FUNCTIONS.get((node.domain, node.operator))
    if function is None:
        raise _Unsupported(operator.on_host.reason)
    for name in (*operator.inputs, *node.outputs):
        tensors.types.setdefault(name, _type(operator, name))
    return function(operator, tensors)


def _refusal(operator: HostOperator, reason: str, count: int) -> ExportError:
    named = f"{operator.node.operator} {operator.on_host.name}"
    what = f"{named} and {count - 1} more operators" if count > 1 else named
    needed = re.search(r"the machine has no ([A-Z_]{3,})", reason)
    advice = (
        f"compile the network for a machine with {needed[1]}"
        if needed
        else "change the network so that the machine runs it"
    )
    return ExportError(
        f"exported C cannot run {what} of the host{f' ({reason})' if reason else ''}: {advice}, "
        f"or export it up to there and compute the rest in your program"
    )


def _type(operator: HostOperator, name: str) -> TensorType:
    info = operator.types.get(name)
    if info is None or info.shape is None:
        raise _Unsupported(f"the shape of {name} depends on values")
    return info


def _quantize(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    """QuantizeLinear, whose ties go to even numbers, or TensorFlow Lite's, away from zero."""
    function = "vta_quantize_away" if operator.node.domain == DOMAIN else "vta_quantize"
    yield _scaling(operator, tensors, function, 1)


def _dequantize(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    yield _scaling(operator, tensors, "vta_dequantize", 0)


def _scaling(operator: HostOperator, tensors: HostTensors, function: str, integer: int) -> str:
    """Quantization or dequantization; the ``integer`` one of source and result has 8 bits."""
    names = (operator.node.inputs[0], operator.node.outputs[0])
    scale, zero = operator.constant(1), operator.constant(2)
    if names[0] in operator.constants or scale is None:
        raise _Unsupported("its scale is not constant, or its operand is")
    infos = [tensors.types[name] for name in names]
    stored = str(infos[integer].dtype)
    if scale.size != 1 or (zero is not None and zero.size != 1):
        raise _Unsupported("it has a scale per channel")
    if stored not in ("int8", "uint8") or {str(infos[1 - integer].dtype), str(scale.dtype)} != {
        "float32"
    }:
        raise _Unsupported(f"it converts {infos[0].dtype} to {infos[1].dtype}")
    types = ["const float *", "uint8_t *"] if integer else ["const uint8_t *", "float *"]
    pointers = [f"({kind}){tensors.pointer(name)}" for kind, name in zip(types, names, strict=True)]
    low, offset = int(np.iinfo(stored).min), 0 if zero is None else int(zero.item())
    factor = float(scale.item())
    return f"{function}({', '.join(pointers)}, {size(infos[0])}, {factor.hex()}f, {offset}, {low});"


def _operand(operator: HostOperator, tensors: HostTensors) -> tuple[str, tuple[int, ...]]:
    """The name and the shape of the only computed operand."""
    name = operator.node.inputs[0]
    if name in operator.constants:
        raise _Unsupported("its operand is constant")
    return name, tensors.types[name].shape or ()


def _reshape(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    """The same bytes: no copy if the result can have the memory of the source."""
    (source, _), result = _operand(operator, tensors), operator.node.outputs[0]
    if not tensors.share(result, source):
        yield tensors.copy(result, source)


def _transpose(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    order = operator.node.attributes.get("perm", range(len(shape))[::-1])
    strides = strides_of(shape)
    if tensors.transpose(result, source, tuple(strides[axis] for axis in order)):
        return
    moved = [(shape[axis], strides[axis]) for axis in order if shape[axis] > 1]
    # Axes that stay together are one.
    axes: list[tuple[int, int]] = []
    for count, stride in moved:
        if axes and axes[-1][1] == count * stride:
            axes[-1] = axes[-1][0] * count, stride
        else:
            axes.append((count, stride))
    if len(axes) > _MOST_AXES:
        raise _Unsupported(f"it has {len(axes)} axes")
    if len(axes) < 2:
        yield from _reshape(operator, tensors)
        return
    table = tensors.table("vta_axis", [f"{{{count}, {stride}}}" for count, stride in axes])
    width = tensors.types[result].dtype.itemsize
    pointers = f"{tensors.pointer(source)}, {tensors.pointer(result)}"
    yield f"vta_transpose({pointers}, {width}, {table}, {len(axes)});"


def _softmax(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    info = tensors.types[result]
    if info.dtype != np.float32:
        raise _Unsupported(f"it computes {info.dtype}")
    of_axis = operator.opset >= _SOFTMAX_OF_AXIS
    axis = int(operator.node.attributes.get("axis", -1 if of_axis else 1)) % max(len(shape), 1)
    outer, count, inner = _around(shape, axis)
    if not of_axis:
        count, inner = count * inner, 1
    pointers = f"{tensors.pointer(source)}, {tensors.pointer(result)}"
    yield f"vta_softmax({pointers}, {outer}, {count}, {inner});"


def _integer_softmax(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    """Over the last axis, with a table of exponentials in Q0.31."""
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    rows, count = prod(shape[:-1]), shape[-1]
    if operator.table is None or count > _MOST_CLASSES:
        raise _Unsupported(f"it has more than {_MOST_CLASSES} classes")
    table = tensors.table("int32_t", operator.table.tolist())
    low = np.iinfo(tensors.types[result].dtype).min
    pointers = f"(const uint8_t *){tensors.pointer(source)}, (uint8_t *){tensors.pointer(result)}"
    yield f"vta_softmax_8bit({pointers}, {rows}, {count}, {table}, {low});"


# The sum of exponentials in Q12.19 has 32 bits.
_MOST_CLASSES = 1 << 12


def _argmax(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    dtype = str(tensors.types[source].dtype)
    if dtype not in _ARGMAX:
        raise _Unsupported(f"it searches {dtype}")
    axis = int(operator.node.attributes.get("axis", 0)) % max(len(shape), 1)
    last = int(operator.node.attributes.get("select_last_index", 0))
    sizes = ", ".join(map(str, _around(shape, axis)))
    pointers = f"{tensors.pointer(source)}, {tensors.pointer(result)}"
    yield f"{_ARGMAX[dtype]}({pointers}, {sizes}, {last});"


_ARGMAX = {"float32": "vta_argmax", "int8": "vta_argmax_int8", "uint8": "vta_argmax_uint8"}


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The numbers of elements before, along and after ``axis``."""
    return prod(shape[:axis]), prod(shape[axis : axis + 1]), prod(shape[axis + 1 :])


def _cast(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    """The index of an ArgMax as int32, which holds it."""
    (source, _), result = _operand(operator, tensors), operator.node.outputs[0]
    types = [str(tensors.types[name].dtype) for name in (source, result)]
    if types[0] == types[1]:
        yield from _reshape(operator, tensors)
        return
    if types != ["int64", "int32"]:
        raise _Unsupported(f"it converts {types[0]} to {types[1]}")
    pointers = f"{tensors.pointer(source)}, {tensors.pointer(result)}"
    yield f"vta_narrow({pointers}, {size(tensors.types[result])});"


_FUNCTIONS: dict[tuple[str, str], Callable[[HostOperator, HostTensors], Iterator[str]]] = {
    ("", "QuantizeLinear"): _quantize,
    ("", "DequantizeLinear"): _dequantize,
    ("", "Softmax"): _softmax,
    ("", "ArgMax"): _argmax,
    ("", "Cast"): _cast,
    ("", "Transpose"): _transpose,
    **{
        ("", operator): _reshape
        for operator in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
    },
    (DOMAIN, QUANTIZE): _quantize,
    (DOMAIN, SOFTMAX): _integer_softmax,
}
