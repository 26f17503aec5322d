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
    names = source, _ = operator.node.inputs[0], operator.node.outputs[0]
    scale, zero = operator.constant(1), operator.constant(2)
    if source in operator.constants or scale is None or (operator.node.input(2) and zero is None):
        raise _Unsupported("its scale is not constant, or its operand is")
    infos = [tensors.types[name] for name in names]
    stored = str(infos[integer].dtype)
    if scale.ndim > 1:
        raise _Unsupported("it has a scale per block")
    if stored not in ("int8", "uint8") or {str(infos[1 - integer].dtype), str(scale.dtype)} != {
        "float32"
    }:
        raise _Unsupported(f"it converts {infos[0].dtype} to {infos[1].dtype}")
    types = ["const float *", "uint8_t *"] if integer else ["const uint8_t *", "float *"]
    pointers = [f"({kind}){tensors.pointer(name)}" for kind, name in zip(types, names, strict=True)]
    low, given = int(np.iinfo(stored).min), ", ".join(pointers)
    zeros = np.zeros(scale.size, int) if zero is None else zero.ravel().astype(int)
    if scale.size == 1:
        count, factor = size(infos[0]), float(scale.item())
        return f"{function}({given}, {count}, {factor.hex()}f, {zeros[0]}, {low});"
    shape = infos[0].shape or ()
    axis = int(operator.node.attributes.get("axis", 1)) % len(shape)
    sizes = ", ".join(map(str, _around(shape, axis)))
    scales = tensors.table("float", [f"{float(value).hex()}f" for value in scale])
    offsets = tensors.table("int8_t" if low else "uint8_t", zeros.tolist())
    return f"{function}_channels({given}, {sizes}, {scales}, (const uint8_t *){offsets}, {low});"


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
    axes = _joined([(shape[axis], strides[axis]) for axis in order])
    if len(axes) < 2:
        yield from _reshape(operator, tensors)
    else:
        yield _moved(tensors, source, result, axes)


def _slice(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    given = [operator.constant(place) for place in (1, 2)]
    if given[0] is None or given[1] is None or set(operator.inputs) != {source}:
        raise _Unsupported("its bounds are not constant")
    starts, ends = (item.tolist() for item in given if item is not None)
    axes, steps = (operator.constant(place) for place in (3, 4))
    ranges = [range(extent) for extent in shape]
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = place if axes is None else int(axes[place]) % len(shape)
        ranges[axis] = range(shape[axis])[start : end : 1 if steps is None else int(steps[place])]
    if any(item.step < 0 for item in ranges):
        raise _Unsupported("it has a negative step")
    strides = strides_of(shape)
    first = sum(item.start * stride for item, stride in zip(ranges, strides, strict=True))
    moved = [(len(item), item.step * stride) for item, stride in zip(ranges, strides, strict=True)]
    yield _moved(tensors, source, result, _joined(moved), first)


def _joined(moved: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes as sizes and strides, where neighbours that stay together are one."""
    axes: list[tuple[int, int]] = []
    for count, stride in moved:
        if count == 1:
            continue
        if axes and axes[-1][1] == count * stride:
            axes[-1] = axes[-1][0] * count, stride
        else:
            axes.append((count, stride))
    return axes


def _moved(
    tensors: HostTensors,
    source: str,
    result: str,
    axes: Sequence[tuple[int, int]],
    first: int = 0,
) -> str:
    """A statement that copies the elements of ``axes`` from the element ``first`` on."""
    if len(axes) > _MOST_AXES:
        raise _Unsupported(f"it has {len(axes)} axes")
    rows = [f"{{{count}, {stride}}}" for count, stride in axes or [(1, 1)]]
    table, width = tensors.table("vta_axis", rows), tensors.types[result].dtype.itemsize
    start = f" + {first}" if first else ""
    pointers = f"{tensors.pointer(source)}{start}, {tensors.pointer(result)}"
    return f"vta_transpose({pointers}, {width}, {table}, {len(rows)});"


def _gather(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    """Elements of a constant or a tensor at computed indices."""
    source, indices = operator.node.inputs
    result = operator.node.outputs[0]
    if indices in operator.constants or str(tensors.types[indices].dtype) != "int64":
        raise _Unsupported("its indices are not computed, or not int64")
    if source in operator.constants:
        shape = operator.constants[source].shape
        table = tensors.constant(source, operator.constants[source])
    else:
        shape, table = tensors.types[source].shape or (), tensors.pointer(source)
    axis = int(operator.node.attributes.get("axis", 0)) % max(len(shape), 1)
    outer, count, inner = _around(shape, axis)
    width = inner * tensors.types[result].dtype.itemsize
    pointers = f"{table}, {tensors.pointer(indices)}, {tensors.pointer(result)}"
    sizes = f"{outer}, {count}, {width}, {size(tensors.types[indices])}"
    yield f"result = vta_gather({pointers}, {sizes});"
    yield "if (result != VTA_DONE)"
    yield "    return result;"


def _layer_norm(operator: HostOperator, tensors: HostTensors) -> Iterator[str]:
    (source, shape), result = _operand(operator, tensors), operator.node.outputs[0]
    if set(operator.inputs) != {source} or len(operator.node.outputs) > 1:
        raise _Unsupported("its scale or its bias is not constant, or its mean is read")
    if {str(tensors.types[name].dtype) for name in (source, result)} != {"float32"}:
        raise _Unsupported(f"it computes {tensors.types[result].dtype}")
    axis = int(operator.node.attributes.get("axis", -1)) % max(len(shape), 1)
    rows, count = prod(shape[:axis]), prod(shape[axis:])
    values: list[str] = []
    for place, name in enumerate(("scale", "bias"), 1):
        given = operator.constant(place)
        if given is not None and given.size != count:
            raise _Unsupported(f"its {name} is shorter than a row")
        values.append(
            "NULL" if given is None else tensors.constant(operator.node.inputs[place], given)
        )
    epsilon = float(np.float32(operator.node.attributes.get("epsilon", 1e-5))).hex()
    pointers = f"{tensors.pointer(source)}, {tensors.pointer(result)}"
    yield f"vta_layer_norm({pointers}, {rows}, {count}, {', '.join(values)}, {epsilon}f);"


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
    ("", "Slice"): _slice,
    ("", "Gather"): _gather,
    ("", "LayerNormalization"): _layer_norm,
    **{
        ("", operator): _reshape
        for operator in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
    },
    (DOMAIN, QUANTIZE): _quantize,
    (DOMAIN, SOFTMAX): _integer_softmax,
}
