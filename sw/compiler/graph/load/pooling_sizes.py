"""Rewrite poolings so that ONNX infers the sizes that ONNX Runtime computes.

Before opset 22, ONNX's shape inference with ``ceil_mode`` counts windows that begin past the image.
In all opsets, its rules for ``auto_pad`` differ from ONNX Runtime's for dilations, ``ceil_mode``,
and strides larger than the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from amaranth_vta.sw.runtime.network.model_error import ModelError

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def use_explicit_paddings(model: onnx.ModelProto) -> None:
    """Replace ``auto_pad`` and ``ceil_mode`` of poolings by the paddings that ONNX Runtime uses.

    ``ceil_mode`` is kept only if no padding is equivalent. Negative paddings become a Slice before
    the pooling. Poolings of images of unknown size are unchanged. Raises `ModelError` for windows
    to which ``auto_pad`` assigns no padding.
    """
    unclear = [node for node in model.graph.node if _is_unclear(node)]
    while unclear:
        known = _shapes(model)
        for node in list(unclear):
            image = known.get(node.input[0], ())[2:]
            if not image or not all(image):
                unclear.remove(node)
                continue
            axes = [_axis(node, axis, size) for axis, size in enumerate(image)]
            inferred = known.get(node.output[0], ())[2:]
            _rewrite(model, node, axes)
            unclear.remove(node)
            # A wrong size propagates to later poolings, so infer again.
            if inferred != tuple(axis.results for axis in axes):
                break


@dataclass(frozen=True)
class _Axis:
    """Windows along an axis of ``size`` pixels: ``results`` windows, each spanning ``reach``
    pixels, with ``begin`` and ``end`` pixels of padding; negative padding crops."""

    size: int
    begin: int
    end: int
    results: int
    reach: int
    stride: int

    @property
    def fitting_end(self) -> int:
        """Padding at the end that just covers the last window."""
        return (self.results - 1) * self.stride + self.reach - self.size - self.begin

    @property
    def beyond(self) -> bool:
        """Whether the last window extends past the padding."""
        return self.fitting_end > self.end

    @property
    def rounded_down(self) -> int:
        """Padding at the end for which there are ``results`` windows without ``ceil_mode``."""
        return 0 if -self.stride < self.fitting_end < 0 else self.fitting_end


def _is_unclear(node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _POOLINGS:
        return False
    given = _attributes(node)
    return bool(given.get("ceil_mode")) or given.get("auto_pad", b"NOTSET") != b"NOTSET"


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors as inferred by ONNX, with 0 for unknown sizes."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        item.name: tuple(size.dim_value for size in item.type.tensor_type.shape.dim)
        for item in (*graph.value_info, *graph.input, *graph.output)
    }


def _axis(node: onnx.NodeProto, axis: int, size: int) -> _Axis:
    """The windows of ``node`` along an ``axis`` of the image, by the formulas of ONNX Runtime."""
    given = _attributes(node)
    rank = len(given["kernel_shape"])
    kernel = given["kernel_shape"][axis]
    stride = given.get("strides", [1] * rank)[axis]
    reach = (kernel - 1) * given.get("dilations", [1] * rank)[axis] + 1
    pads = given.get("pads", [0] * 2 * rank)
    begin, end = pads[axis], pads[rank + axis]
    automatic = given.get("auto_pad", b"NOTSET")
    if automatic == b"VALID":
        begin = end = 0
    elif automatic != b"NOTSET":
        # ONNX Runtime ignores dilations here and truncates quotients toward 0.
        total = (-(-size // stride) - 1) * stride + kernel - size
        begin = int((total + (automatic == b"SAME_LOWER")) / 2)
        end = total - begin
    steps = (size + begin + end - reach) / stride
    results = int(steps) + 1
    if given.get("ceil_mode") and steps > int(steps) and results * stride < size + begin:
        results += 1
    return _Axis(size, begin, end, results, reach, stride)


def _rewrite(model: onnx.ModelProto, node: onnx.NodeProto, axes: Sequence[_Axis]) -> None:
    given = _attributes(node)
    if "auto_pad" in given and any(
        axis.beyond and (axis.end < 0 or not given.get("ceil_mode")) for axis in axes
    ):
        raise ModelError(
            f"{node.op_type} {node.name or node.output[0]} has windows that reach beyond the "
            f"image, for which auto_pad {given['auto_pad'].decode()} defines no padding"
        )
    # Averages count padding but not pixels past it; ONNX Runtime rejects padding as wide as the
    # kernel.
    rounded_up = any(
        axis.beyond and (given.get("count_include_pad") or axis.fitting_end >= kernel)
        for axis, kernel in zip(axes, given["kernel_shape"], strict=True)
    )
    if rounded_up:
        ends = [axis.end if axis.beyond else axis.fitting_end for axis in axes]
    else:
        ends = [axis.rounded_down for axis in axes]
    sides = [axis.begin for axis in axes] + ends
    if min(sides) < 0:
        _crop(model, node, sides)
    changed = {"pads": [max(side, 0) for side in sides], "ceil_mode": int(rounded_up)}
    kept = [item for item in node.attribute if item.name not in {"auto_pad", *changed}]
    kept += [helper.make_attribute(name, value) for name, value in changed.items()]
    attributes = list(map(_copied, kept))
    del node.attribute[:]
    node.attribute.extend(attributes)


def _copied(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    copied = onnx.AttributeProto()
    copied.CopyFrom(attribute)
    return copied


def _crop(model: onnx.ModelProto, node: onnx.NodeProto, sides: Sequence[int]) -> None:
    """Insert a Slice before ``node`` that crops the image where ``sides`` (begins, then ends) are
    negative."""
    graph, rank = model.graph, len(sides) // 2
    taken = {item.name for item in (*graph.initializer, *graph.input)}
    taken |= {name for other in graph.node for name in other.output}

    def unused(name: str) -> str:
        name = next(
            tried
            for number in count()
            if (tried := f"{node.output[0]}_{name}" + f"_{number}" * bool(number)) not in taken
        )
        taken.add(name)
        return name

    starts = [max(-side, 0) for side in sides[:rank]]
    ends = [min(side, 0) or np.iinfo(np.int64).max for side in sides[rank:]]
    inputs = [node.input[0]]
    for name, values in (("starts", starts), ("ends", ends), ("axes", range(2, 2 + rank))):
        value = numpy_helper.from_array(np.array(values, np.int64), unused(name))
        graph.initializer.append(value)
        inputs.append(value.name)
    cropped = unused("cropped")
    at = next(index for index, other in enumerate(graph.node) if other is node)
    node.input[0] = cropped
    name = f"{node.name}_cropped" if node.name else ""
    graph.node.insert(at, helper.make_node("Slice", inputs, [cropped], name))
