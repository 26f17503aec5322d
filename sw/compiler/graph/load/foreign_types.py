"""Add types for operators that ONNX does not define, as inferred by ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session, with_outputs
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

from .undefined_operators import inferred, is_foreign

_ELEMENTS = {
    "bool": np.bool_,
    "double": np.float64,
    "float": np.float32,
    "float16": np.float16,
    "string": np.str_,
} | {
    name: np.dtype(name).type
    for name in (f"{sign}int{n}" for sign in ("", "u") for n in (8, 16, 32, 64))
}


def with_foreign_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add to ``model`` the types and shapes that ONNX cannot infer.

    ONNX's inference stops at operators that ONNX does not define, such as operators of
    com.microsoft. ONNX Runtime infers most of these; shapes of the others are measured in two runs
    of the model. If ONNX Runtime does not know an operator, ``model`` is unchanged.
    """
    if not any(map(_is_foreign, model.graph.node)):
        return model
    while open_names := _open_names(model):
        found = _types(model, open_names)
        _note(model, found)
        unknown = {name for name, info in found.items() if info.shape is None}
        made = [
            name
            for node in model.graph.node
            if _is_foreign(node)
            for name in node.output
            if name in unknown
        ]
        measured = _measured(model, found, made) if made else {}
        if not measured:
            return model
        _note(model, measured)
        try:
            model = inferred(model, strict=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            return model
    return model


def _is_foreign(node: onnx.NodeProto) -> bool:
    return node.domain not in ("", "ai.onnx") or is_foreign(node.domain, node.op_type)


def _open_names(model: onnx.ModelProto) -> list[str]:
    """Tensors without a type or without a shape."""
    known = {item.name: item for item in (*model.graph.value_info, *model.graph.output)}
    return [
        name
        for node in model.graph.node
        for name in node.output
        if name and (name not in known or not known[name].type.tensor_type.HasField("shape"))
    ]


def _types(model: onnx.ModelProto, names: list[str]) -> dict[str, TensorType]:
    """Types of tensors as inferred by ONNX Runtime; empty if it does not run ``model``, for example
    because of a user's operators or operators that the host will reject."""
    try:
        session = exact_session(with_outputs(model, names))
    except ModelError:
        return {}
    found, unsure = {}, []
    for item in session.get_outputs():
        element = item.type.removeprefix("tensor(").removesuffix(")")
        if item.name not in names or element not in _ELEMENTS:
            continue
        fixed = item.shape is not None and all(isinstance(size, int) for size in item.shape)
        found[item.name] = TensorType(
            np.dtype(_ELEMENTS[element]), tuple(item.shape) if fixed else None
        )
        unsure += [item.name] if item.shape == [] else []
    for name in unsure:
        if not _is_scalar(model, name):
            found[name] = TensorType(found[name].dtype, None)
    return found


def _is_scalar(model: onnx.ModelProto, name: str) -> bool:
    """Whether a tensor is a scalar: ONNX Runtime also reports an empty shape for unknown ranks."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    size = f"{name} as a vector"
    probe.graph.node.add(op_type="Shape", input=[name], output=[size])
    probe.graph.output.append(helper.make_empty_tensor_value_info(size))
    session = exact_session(probe.SerializeToString())
    return any(item.name == size and item.shape == [0] for item in session.get_outputs())


def _measured(
    model: onnx.ModelProto, found: dict[str, TensorType], names: list[str]
) -> dict[str, TensorType]:
    """The types of tensors whose shapes are equal in two runs of ``model`` with different
    inputs."""
    constants = {item.name for item in model.graph.initializer}
    given = [item for item in model.graph.input if item.name not in constants]
    rng = np.random.default_rng(0)
    runs = []
    try:
        session = exact_session(with_outputs(model, names))
        for bound in (1, 2):
            feeds = {}
            for item in given:
                tensor = item.type.tensor_type
                sizes = [dim.dim_value for dim in tensor.shape.dim]
                if not all(size > 0 for size in sizes):
                    return {}
                values = rng.integers(0, bound, sizes)
                feeds[item.name] = values.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            runs.append(run_session(session, names, feeds))
    except ModelError:
        return {}
    first, second = runs
    return {
        name: TensorType(found[name].dtype, first[name].shape)
        for name in names
        if first[name].shape == second[name].shape
    }


def _note(model: onnx.ModelProto, found: dict[str, TensorType]) -> None:
    """Write types into ``model``."""
    known = {item.name: item for item in (*model.graph.value_info, *model.graph.output)}
    for name, info in found.items():
        dtype = helper.np_dtype_to_tensor_dtype(info.dtype)
        item = helper.make_tensor_value_info(name, dtype, info.shape)
        if name in known:
            known[name].CopyFrom(item)
        else:
            model.graph.value_info.append(item)
