"""Shapes of a model's inputs, and sizes for their open dimensions."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN
from amaranth_vta.sw.runtime.network.model_error import ModelError

_FIXER = (
    "python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name {name} --input_shape "
    "{shape} MODEL.onnx FIXED.onnx"
)


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are not constants."""
    constants = {item.name for item in model.graph.initializer}
    return [item for item in model.graph.input if item.name not in constants]


def is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether a dimension has no size, or -1 as in old files of PaddlePaddle."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def open_batch(model: onnx.ModelProto) -> bool:
    """Whether the first dimension of an input is open."""
    shapes = (item.type.tensor_type.shape.dim for item in inputs_of(model))
    return any(dims and is_open(dims[0]) for dims in shapes)


def with_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A copy of ``model`` whose inputs have ``shapes``, except that an open first dimension stays
    open."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    known = {}
    for item in inputs_of(copied):
        dims = item.type.tensor_type.shape.dim
        for position, (dim, size) in enumerate(zip(dims, shapes[item.name], strict=True)):
            if position and is_open(dim):
                known[dim.dim_param] = dim.dim_value = size
    if known:
        # The file's shapes of other tensors assume open dimensions.
        del copied.graph.value_info[:]
        for item in copied.graph.output:
            for dim in item.type.tensor_type.shape.dim:
                if dim.dim_param in known and dim.dim_param:
                    dim.dim_value = known[dim.dim_param]
    return copied


def with_dimensions(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy of ``model`` whose named open dimensions have these ``sizes``; the model itself if
    there are none. Raises `ModelError` for a name that no input has, or a size below 1."""
    if not sizes:
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    names = named_dimensions(copied)
    for name, size in sizes.items():
        if name not in names:
            known = ", ".join(names) or "none"
            raise ModelError(f"no input has an open dimension {name}; open dimensions: {known}")
        if size < 1:
            raise ModelError(f"the dimension {name} cannot be {size}: give 1 or more")
    for item in (*inputs_of(copied), *copied.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    # The file's shapes of other tensors assume open dimensions.
    del copied.graph.value_info[:]
    return copied


def named_dimensions(model: onnx.ModelProto) -> list[str]:
    """The names of open dimensions of inputs."""
    dims = (dim for item in inputs_of(model) for dim in item.type.tensor_type.shape.dim)
    return list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))


def sizes_of(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of named open dimensions, other than the first, for inputs of these ``shapes``.
    Raises `ModelError` if two inputs contradict each other."""
    found: dict[str, tuple[int, str]] = {}
    for item in inputs_of(model):
        dims = item.type.tensor_type.shape.dim
        if item.name not in shapes or len(dims) != len(shapes[item.name]):
            continue
        for dim, size in list(zip(dims, shapes[item.name], strict=True))[1:]:
            if not dim.dim_param:
                continue
            other, of = found.setdefault(dim.dim_param, (size, item.name))
            if other != size:
                raise ModelError(
                    f"the dimension {dim.dim_param} is {other} in the input {of} and {size} in "
                    f"{item.name}"
                )
    return {name: size for name, (size, _) in found.items()}


def fix_shapes(model: onnx.ModelProto, batch: int) -> None:
    """Fix the input shapes of ``model``, with ``batch`` for an open first dimension, and remove
    shapes that depend on it. Raises `ModelError` if another dimension is open."""
    named = set()
    for item in inputs_of(model):
        if not item.type.HasField("tensor_type"):
            raise ModelError(f"input {item.name} is not a tensor")
        if not item.type.tensor_type.HasField("shape"):
            raise ModelError(f"input {item.name} has no shape; give the model a fixed one")
        dims = item.type.tensor_type.shape.dim
        if dims and is_open(dims[0]):
            named.add(dims[0].dim_param)
            dims[0].dim_value = batch
        for position, dim in enumerate(dims):
            if dim.HasField("dim_param") and dim.dim_param and dim.dim_param in named:
                dim.dim_value = batch
            if is_open(dim):
                if dim.dim_param:
                    raise ModelError(
                        f"{open_dimension(item.name, position, dim)}; give its size: "
                        f"--dim {dim.dim_param}=SIZE, or inputs of that size"
                    )
                sizes = ",".join("SIZE" if is_open(dim) else str(dim.dim_value) for dim in dims)
                raise ModelError(
                    f"{open_dimension(item.name, position, dim)}; only the first, the number of "
                    f"images, may be. Fix it: {_FIXER.format(name=item.name, shape=sizes)}"
                )
            if dim.dim_value < 1:
                raise ModelError(f"input {item.name}: dimension {position} is {dim.dim_value}")
    if DOMAIN in {item.domain for item in model.opset_import}:
        return  # converted from a file whose shapes are all fixed
    # The file's shapes of other tensors assume an open batch; they are inferred again.
    del model.graph.value_info[:]
    for item in model.graph.output:
        item.type.tensor_type.ClearField("shape")


def open_dimension(name: str, position: int, dim: onnx.TensorShapeProto.Dimension) -> str:
    """Message about an open dimension of an input."""
    called = f" ({dim.dim_param})" if dim.dim_param else ""
    return f"input {name}: dimension {position}{called} is open"
