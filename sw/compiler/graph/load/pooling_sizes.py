"""Sizes of poolings that ONNX's shape inference gets wrong before opset 22."""

from __future__ import annotations

import onnx

_POOLINGS = frozenset({"AveragePool", "LpPool", "MaxPool"})


def drop_empty_windows(model: onnx.ModelProto) -> None:
    """Takes ``ceil_mode`` off poolings of ``model`` whose last windows would begin behind the
    image: ONNX Runtime leaves these out, as rounding down does."""
    rounded_up = [node for node in model.graph.node if _rounds_up(node)]
    # A size that is wrong is that of what follows, too.
    while any(_drop(node, model) for node in rounded_up if _rounds_up(node)):
        pass


def _rounds_up(node: onnx.NodeProto) -> bool:
    return node.op_type in _POOLINGS and any(
        item.name == "ceil_mode" and item.i for item in node.attribute
    )


def _drop(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    types = {item.name: item.type.tensor_type for item in (*found.value_info, *found.input)}
    given = types.get(node.input[0])
    attributes = {item.name: item for item in node.attribute}
    if given is None or ("auto_pad" in attributes and attributes["auto_pad"].s != b"NOTSET"):
        return False
    sizes = [dim.dim_value for dim in given.shape.dim][2:]
    if not sizes or not all(sizes):
        return False

    def numbers(name: str, default: int, count: int) -> list[int]:
        return list(attributes[name].ints) if name in attributes else [default] * count

    rank = len(sizes)
    kernel, strides, dilations = (
        numbers(name, 1, rank) for name in ("kernel_shape", "strides", "dilations")
    )
    pads = numbers("pads", 0, 2 * rank)
    empty = False
    for axis, size in enumerate(sizes):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        whole, rest = divmod(size + pads[axis] + pads[rank + axis] - reach, strides[axis])
        last_is_empty = rest > 0 and (whole + 1) * strides[axis] >= size + pads[axis]
        if rest and not last_is_empty:
            return False
        empty |= last_is_empty
    if empty:
        node.attribute.remove(attributes["ceil_mode"])
    return empty
