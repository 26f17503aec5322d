"""Operators that only move or choose elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN, LOOKUP
from amaranth_vta.sw.runtime.network.model_error import ModelError

from .conversion import TO_FIRST, Conversion
from .file import TfliteOperator
from .reference_kernels import all_values, run

# Symmetric mirroring repeats the edge, which ONNX's Pad does not; it is a Gather per axis.
_SYMMETRIC = 1


def reshape(operator: TfliteOperator, to: Conversion) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the shape of the result is that in the file."""
    number, result = operator.inputs[0], operator.outputs[0]
    shape, new = to.tensor(number).shape, to.tensor(result).shape
    if prod(shape) != prod(new):
        raise ModelError(f"{operator.name} changes the number of elements from {shape} to {new}")
    if len(shape) == 4 and to.is_first(number) and shape[0] == new[0]:
        if len(new) == 2:
            to.flattened[result] = number
        if prod(shape[1:3]) == 1 or shape[3] == 1:
            to.reshape(to.name(number, True), to.put(result))
            return
    to.reshape(to.name(number), to.put(result))


def transpose(operator: TfliteOperator, to: Conversion) -> None:
    """TRANSPOSE."""
    order = to.constant(operator, 1).tolist()
    source, result = to.name(operator.inputs[0]), to.put(operator.outputs[0])
    to.add("Transpose", (source,), (result,), operator.name, perm=order)


def concatenation(operator: TfliteOperator, to: Conversion) -> None:
    """CONCATENATION. The kernel of uint8 rescales an operand of another scale in float32: such an
    operand becomes a table first."""
    result = operator.outputs[0]
    y = to.tensor(result)
    first = _of_images(to, *operator.inputs)
    names = []
    for place, number in enumerate(operator.inputs):
        x, name = to.tensor(number), to.name(number, first)
        if x.scales.size and not x.is_quantized_as(y):
            name = _rescaled(operator, to, place, name)
        names.append(name)
    axis = _axis(operator.option("axis"), len(y.shape), first)
    stored = to.clamped(operator, result, first)
    to.add("Concat", names, (stored,), operator.name, axis=axis)
    to.clamp(operator, result, first, stored)


def _rescaled(operator: TfliteOperator, to: Conversion, place: int, source: str) -> str:
    """An operand of CONCATENATION at the scale of the result: a table of the kernel's results for
    this operand alone."""
    y, number = to.tensor(operator.outputs[0]), operator.inputs[place]
    if y.dtype == np.int8:
        raise ModelError(
            f"{operator.name} joins tensors of different scales, which TensorFlow Lite refuses for "
            "int8"
        )
    alone = replace(operator, inputs=(number,))
    shape = [256, *[1] * (len(y.shape) - 1)]
    made = run(alone, to, {number: all_values(to.tensor(number).dtype).reshape(shape)})
    name = f"{operator.name}_operand{place}"
    stored = to.inner(name, y.dtype, to.network.types[source].shape or ())
    zero = to.value(f"{name}_zero_point", y.zero_point, y.dtype)
    table = to.value(f"{name}_table", made.reshape(-1))
    to.add(LOOKUP, (source, table, zero), (stored,), name, DOMAIN)
    return stored


def pack(operator: TfliteOperator, to: Conversion) -> None:
    """PACK: join tensors along a new axis."""
    result = operator.outputs[0]
    y = to.tensor(result)
    axis = operator.option("axis") % len(y.shape)
    shape = (*y.shape[:axis], 1, *y.shape[axis + 1 :])
    parts = []
    for place, number in enumerate(operator.inputs):
        parts.append(to.inner(f"{operator.name}_part{place}", y.dtype, shape))
        to.reshape(to.name(number), parts[-1])
    to.add("Concat", parts, (to.put(result),), operator.name, axis=axis)


def unpack(operator: TfliteOperator, to: Conversion) -> None:
    """UNPACK: the slices along an axis."""
    x = to.tensor(operator.inputs[0])
    axis = operator.option("axis") % len(x.shape)
    source = to.name(operator.inputs[0])
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    for place, number in enumerate(operator.outputs):
        part = to.inner(f"{operator.name}_part{place}", x.dtype, shape)
        _slice(operator, to, source, part, [axis], [place], [place + 1], [1])
        to.reshape(part, to.put(number))


def split(operator: TfliteOperator, to: Conversion) -> None:
    """SPLIT (axis, tensor) and SPLIT_V (tensor, sizes, axis)."""
    at, axis_at = (1, 0) if operator.kind == "SPLIT" else (0, 2)
    number = operator.inputs[at]
    x = to.tensor(number)
    first = _of_images(to, number)
    axis = int(to.constant(operator, axis_at).item()) % len(x.shape)
    begin, source = 0, to.name(number, first)
    for result in operator.outputs:
        end = begin + to.tensor(result).shape[axis]
        place = _axis(axis, len(x.shape), first)
        _slice(operator, to, source, to.put(result, first), [place], [begin], [end], [1])
        begin = end


def slice_of(operator: TfliteOperator, to: Conversion) -> None:
    """SLICE: begins and sizes, -1 for all that is left."""
    number, result = operator.inputs[0], operator.outputs[0]
    begins = to.constant(operator, 1).tolist()
    sizes = to.tensor(result).shape
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    first = _of_images(to, number)
    axes = [_axis(axis, len(begins), first) for axis in range(len(begins))]
    source, stored = to.name(number, first), to.put(result, first)
    _slice(operator, to, source, stored, axes, begins, ends, [1] * len(axes))


def strided_slice(operator: TfliteOperator, to: Conversion) -> None:
    """STRIDED_SLICE, with the masks of its options."""
    number, result = operator.inputs[0], operator.outputs[0]
    x, y = to.tensor(number), to.tensor(result)
    if operator.option("newAxisMask") or operator.option("ellipsisMask"):
        raise ModelError(f"{operator.name} adds axes, which is not supported")
    given = [to.constant(operator, place).tolist() for place in (1, 2, 3)]
    rows = []
    for axis, (begin, end, step) in enumerate(zip(*given, strict=True)):
        size = x.shape[axis]
        if operator.option("shrinkAxisMask") >> axis & 1:
            begin, end, step = begin % size, begin % size + 1, 1
        else:
            if operator.option("beginMask") >> axis & 1:
                begin = 0 if step > 0 else size - 1
            if operator.option("endMask") >> axis & 1:
                end = size if step > 0 else -size - 1
            elif operator.option("offset", False):
                end += begin
        rows.append((begin, end, step))
    shrinks = operator.option("shrinkAxisMask") != 0
    first = not shrinks and _of_images(to, number)
    axes = [_axis(axis, len(x.shape), first) for axis in range(len(rows))]
    stored = to.put(result, first)
    shape = [
        len(range(*slice(begin, end, step).indices(x.shape[axis])))
        for axis, (begin, end, step) in enumerate(rows)
    ]
    shape += x.shape[len(rows) :]
    target = to.inner(f"{operator.name}_slice", y.dtype, shape) if shrinks else stored
    _slice(operator, to, to.name(number, first), target, axes, *zip(*rows, strict=True))
    if shrinks:
        to.reshape(target, stored)


def _slice(
    operator: TfliteOperator,
    to: Conversion,
    source: str,
    result: str,
    axes: Any,
    begins: Any,
    ends: Any,
    steps: Any,
) -> None:
    places = [
        to.value(f"{result}_{what}", list(values), np.int64)
        for what, values in (("begins", begins), ("ends", ends), ("axes", axes), ("steps", steps))
    ]
    to.add("Slice", (source, *places), (result,), f"{operator.name}/{result}")


def gather(operator: TfliteOperator, to: Conversion) -> None:
    """GATHER with constant or computed indices."""
    x = to.tensor(operator.inputs[0])
    if operator.option("batchDims"):
        raise ModelError(f"{operator.name} gathers per batch, which is not supported")
    axis = operator.option("axis") % len(x.shape)
    names = [to.name(number) for number in operator.inputs[:2]]
    to.add("Gather", names, (to.put(operator.outputs[0]),), operator.name, axis=axis)


def pad(operator: TfliteOperator, to: Conversion) -> None:
    """PAD, with the zero point, PADV2 with a constant, and MIRROR_PAD."""
    number, result = operator.inputs[0], operator.outputs[0]
    x = to.tensor(number)
    amounts = to.constant(operator, 1).astype(np.int64)
    if [*(amounts.sum(axis=1) + x.shape)] != [*to.tensor(result).shape] or amounts.min() < 0:
        raise ModelError(f"{operator.name} pads {x.shape} to {to.tensor(result).shape}")
    first = _of_images(to, number)
    source, stored = to.name(number, first), to.put(result, first)
    if operator.kind == "MIRROR_PAD" and operator.option("mode") == _SYMMETRIC:
        _mirrored(operator, to, source, stored, amounts[list(TO_FIRST)] if first else amounts)
        return
    if first:
        amounts = amounts[list(TO_FIRST)]
    name = operator.name
    inputs = [source, to.value(f"{name}_amounts", amounts.T.reshape(-1))]
    if operator.kind == "MIRROR_PAD":
        to.add("Pad", inputs, (stored,), name, mode="reflect")
        return
    value = x.zero_point if x.scales.size else 0
    if operator.kind == "PADV2":
        value = to.constant(operator, 2).item()
    inputs.append(to.value(f"{name}_value", value, x.dtype))
    to.add("Pad", inputs, (stored,), name, mode="constant")


def _mirrored(
    operator: TfliteOperator, to: Conversion, source: str, result: str, amounts: Any
) -> None:
    """Mirror with the edge repeated, by a Gather along each padded axis."""
    shape = list(to.network.types[source].shape or ())
    padded = [axis for axis in range(len(shape)) if amounts[axis].any()]
    if not padded:
        to.reshape(source, result)
    for axis in padded:
        before, after = amounts[axis].tolist()
        places = np.pad(np.arange(shape[axis]), (before, after), "symmetric")
        shape[axis] = len(places)
        last = axis == padded[-1]
        name = f"{operator.name}_axis{axis}"
        made = result if last else to.inner(name, to.network.types[source].dtype, shape)
        to.add("Gather", (source, to.value(f"{name}_places", places)), (made,), name, axis=axis)
        source = made


def block(operator: TfliteOperator, to: Conversion) -> None:
    """DEPTH_TO_SPACE and SPACE_TO_DEPTH: with channels last, the depth of a block is its slowest
    part, as in ONNX's mode DCR."""
    number, result = operator.inputs[0], operator.outputs[0]
    size = operator.option("blockSize")
    deep = operator.kind == "DEPTH_TO_SPACE"
    attributes = {"mode": "DCR"} if deep else {}
    source, stored = to.name(number, True), to.put(result, True)
    name = "DepthToSpace" if deep else "SpaceToDepth"
    to.add(name, (source,), (stored,), operator.name, blocksize=size, **attributes)


def extremum(operator: TfliteOperator, to: Conversion) -> None:
    """MINIMUM and MAXIMUM of two tensors at one scale."""
    result = operator.outputs[0]
    y = to.tensor(result)
    for number in operator.inputs:
        x = to.tensor(number)
        if x.scales.size and not x.is_quantized_as(y):
            raise ModelError(f"{operator.name} compares tensors of different scales")
    first = _of_images(to, *operator.inputs)
    names = [to.name(number, first) for number in operator.inputs]
    kind = "Min" if operator.kind == "MINIMUM" else "Max"
    to.add(kind, names, (to.put(result, first),), operator.name)


def arg_max(operator: TfliteOperator, to: Conversion) -> None:
    """ARG_MAX: the first of the greatest elements along an axis."""
    x, y = to.tensor(operator.inputs[0]), to.tensor(operator.outputs[0])
    axis = int(to.constant(operator, 1).item()) % len(x.shape)
    found = to.inner(f"{operator.name}_index", np.int64, y.shape)
    to.add("ArgMax", (to.name(operator.inputs[0]),), (found,), axis=axis, keepdims=0)
    to.add(
        "Cast",
        (found,),
        (to.put(operator.outputs[0]),),
        to=helper.np_dtype_to_tensor_dtype(y.dtype),
    )


def _of_images(to: Conversion, *numbers: int) -> bool:
    """Whether operands are images of which one exists only with channels first."""
    return all(len(to.tensor(number).shape) == 4 for number in numbers) and any(
        to.is_first(number) for number in numbers
    )


def _axis(axis: int, rank: int, first: bool) -> int:
    """The place of an axis of images with channels last in images with channels ``first``."""
    axis %= rank
    return TO_FIRST.index(axis) if first else axis
