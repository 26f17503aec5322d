"""Types of the results of operators that ONNX does not define, as ONNX Runtime infers them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

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
    """``model``, whose shapes ONNX has inferred, with the types and shapes that ONNX leaves out.

    ONNX's inference stops at operators of other domains, ONNX Runtime's own com.microsoft among
    them. Where ONNX Runtime does not know them either, the model stays as it is.
    """
    if all(node.domain in ("", "ai.onnx") for node in model.graph.node):
        return model
    outputs = {item.name: item for item in model.graph.output}
    known = {item.name: item for item in (*model.graph.value_info, *model.graph.output)}
    # Tensors without a type, or with a type but no shape.
    open_names = [
        name
        for node in model.graph.node
        for name in node.output
        if name and (name not in known or not known[name].type.tensor_type.HasField("shape"))
    ]
    if not open_names:
        return model
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in open_names if name not in outputs
    )
    try:
        session = exact_session(probe.SerializeToString())
    except ModelError:  # a user's operator, or one that the host will refuse
        return model
    for found in session.get_outputs():
        element = found.type.removeprefix("tensor(").removesuffix(")")
        if element not in _ELEMENTS:
            continue
        fixed = found.shape is not None and all(isinstance(size, int) for size in found.shape)
        info = helper.make_tensor_value_info(
            found.name,
            helper.np_dtype_to_tensor_dtype(np.dtype(_ELEMENTS[element])),
            found.shape if fixed else None,
        )
        if found.name in known:
            known[found.name].CopyFrom(info)
        else:
            model.graph.value_info.append(info)
    return model
