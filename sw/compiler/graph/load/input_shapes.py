"""Shapes of a model's inputs, and sizes for their open dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from amaranth_vta.sw.compiler.graph.integer_operators import DOMAIN
from amaranth_vta.sw.runtime.network.model_error import ModelError

# Types of tokens, positions and masks.
_TOKENS = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL})
# An open dimension of an input: the input, the position, the dimension, and its name.
_Open = tuple[onnx.ValueInfoProto, int, onnx.TensorShapeProto.Dimension, str]


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are not constants."""
    constants = {item.name for item in model.graph.initializer}
    return [item for item in model.graph.input if item.name not in constants]


def is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether a dimension has no size, or -1 as in old files of PaddlePaddle."""
    return not dim.HasField("dim_value") or dim.dim_value < 0


def dimension_name(dim: onnx.TensorShapeProto.Dimension) -> str:
    """The name of a dimension; "" if it has none, or "?" as in files of PaddlePaddle, where several
    dimensions of different sizes have it."""
    return "" if dim.dim_param == "?" else dim.dim_param


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
                known[dimension_name(dim)] = dim.dim_value = size
    if known:
        _fix_results(copied, known)
    return copied


def with_dimensions(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """A copy of ``model`` whose open dimensions have these ``sizes``, by name (see
    `open_dimensions`); the model itself if there are none. Raises `ModelError` for a name that no
    input has, a negative size, or a size of 0 that empties more than caches."""
    if not sizes:
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    found = list(_open(copied))
    names = dict.fromkeys(name for *_, name in found if name)
    for name, size in sizes.items():
        require_open(name, names)
        if size < 0:
            raise ModelError(f"the dimension {name} cannot be {size}")
    for _, _, dim, name in found:
        if name in sizes:
            dim.dim_value = sizes[name]
    _require_elements(copied, [dimension for dimension in found if sizes.get(dimension[3]) == 0])
    _fix_results(copied, sizes)
    return copied


def require_open(name: str, names: Collection[str]) -> None:
    """Raises `ModelError` unless ``name`` is among the ``names`` of open dimensions."""
    if name not in names:
        known = ", ".join(names) or "none"
        raise ModelError(f"no input has an open dimension {name}; open dimensions: {known}")


def _require_elements(model: onnx.ModelProto, empty: Sequence[_Open]) -> None:
    """Raise `ModelError` if the dimensions of size 0, ``empty``, are not only those of caches: they
    leave no tokens, no mask, or no elements in any input."""
    names = {item.name for item, *_ in empty}
    for item, *_, name in empty:
        is_token = item.type.tensor_type.elem_type in _TOKENS
        if is_token or len(names) == len(inputs_of(model)):
            raise ModelError(
                f"the dimension {name} cannot be 0: the input {item.name} would have no elements, "
                "and only a cache may have none"
            )


def _fix_results(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Give named dimensions of outputs these ``sizes``, and remove the shapes of other tensors."""
    for item in model.graph.output:
        for dim in item.type.tensor_type.shape.dim:
            if (name := dimension_name(dim)) and name in sizes:
                dim.dim_value = sizes[name]
    # The file's shapes of other tensors assume open dimensions.
    del model.graph.value_info[:]


def open_dimensions(model: onnx.ModelProto) -> list[str]:
    """The names of the open dimensions of inputs that need a size: all except the number of images,
    which is the first dimension of each input and every dimension of the same name. A dimension
    without a name is called INPUT.POSITION, such as x.1."""
    images = {name for _, position, _, name in _open(model) if not position} - {""}
    found = (name for _, position, _, name in _open(model) if position and name not in images)
    return list(dict.fromkeys(found))


def _open(model: onnx.ModelProto) -> Iterator[_Open]:
    """Yield the open dimensions of inputs; a first dimension may have no name."""
    for item in inputs_of(model):
        for position, dim in enumerate(item.type.tensor_type.shape.dim):
            if is_open(dim):
                name = dimension_name(dim) or (f"{item.name}.{position}" if position else "")
                yield item, position, dim, name


def sizes_of(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes of `open_dimensions` for inputs of these ``shapes``. Raises `ModelError` if two
    inputs contradict each other."""
    wanted = set(open_dimensions(model))
    found: dict[str, tuple[int, str]] = {}
    for item, position, _, name in _open(model):
        shape = shapes.get(item.name, ())
        if name not in wanted or len(shape) != len(item.type.tensor_type.shape.dim):
            continue
        size = shape[position]
        other, of = found.setdefault(name, (size, item.name))
        if other != size:
            raise ModelError(
                f"the dimension {name} is {other} in the input {of} and {size} in {item.name}"
            )
    return {name: size for name, (size, _) in found.items()}


def axes_of(model: onnx.ModelProto, names: Collection[str]) -> dict[str, dict[int, str]]:
    """The open dimensions with these ``names``, by input and axis."""
    found: dict[str, dict[int, str]] = {}
    for item, position, _, name in _open(model):
        if name in names:
            found.setdefault(item.name, {})[position] = name
    return found


def require_sizes(model: onnx.ModelProto) -> None:
    """Raise `ModelError` if a dimension other than the number of images is open."""
    if names := open_dimensions(model):
        item, position, dim = next(
            (item, position, dim) for item, position, dim, name in _open(model) if name in names
        )
        sizes = "its size" if len(names) == 1 else "the sizes of all open dimensions"
        options = " ".join(f"--dim {name}=SIZE" for name in names)
        raise ModelError(
            f"{open_dimension(item.name, position, dim)}; give {sizes}: {options}, "
            "or inputs of that size"
        )


def fix_shapes(model: onnx.ModelProto, batch: int) -> None:
    """Fix the input shapes of ``model``, with ``batch`` for an open first dimension, and remove
    shapes that depend on it. Raises `ModelError` if another dimension is open."""
    for item in inputs_of(model):
        if not item.type.HasField("tensor_type"):
            raise ModelError(f"input {item.name} is not a tensor")
        if not item.type.tensor_type.HasField("shape"):
            raise ModelError(f"input {item.name} has no shape; give the model a fixed one")
        for position, dim in enumerate(item.type.tensor_type.shape.dim):
            # Only a cache may be empty.
            if not is_open(dim) and dim.dim_value < (position == 0):
                raise ModelError(f"input {item.name}: dimension {position} is {dim.dim_value}")
    require_sizes(model)
    for _, _, dim, _ in list(_open(model)):
        dim.dim_value = batch
    if DOMAIN in {item.domain for item in model.opset_import}:
        return  # converted from a file whose shapes are all fixed
    # The file's shapes of other tensors assume an open batch; they are inferred again.
    del model.graph.value_info[:]
    for item in model.graph.output:
        if not is_sequence(item):
            item.type.tensor_type.ClearField("shape")


def is_sequence(item: onnx.ValueInfoProto) -> bool:
    """Whether ``item`` is a sequence of tensors."""
    kind = item.type
    return kind.HasField("sequence_type") and kind.sequence_type.elem_type.HasField("tensor_type")


def open_dimension(name: str, position: int, dim: onnx.TensorShapeProto.Dimension) -> str:
    """Message about an open dimension of an input."""
    called = f" ({dimension_name(dim)})" if dimension_name(dim) else ""
    return f"input {name}: dimension {position}{called} is open"
