"""Compare the shapes in a TensorFlow Lite file with ONNX's shape inference."""

from __future__ import annotations

import onnx

from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.model_error import ModelError


def require_shapes(network: Network) -> None:
    """Raise `ModelError` unless ``network`` has the shapes that ONNX infers. Results of
    operators of other domains are not inferred."""
    given = {name for node in network.nodes if node.domain for name in node.outputs}
    model = network.with_roundings()
    inner = sorted(given - set(network.outputs))
    model.graph.value_info.extend(network.value_info(name) for name in inner)
    for item in model.graph.output:
        if item.name not in given:
            item.type.tensor_type.ClearField("shape")
    try:
        found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        raise ModelError("the shapes of its tensors contradict each other") from None
    for item in (*found.value_info, *found.output):
        dims = item.type.tensor_type.shape.dim
        shape = tuple(dim.dim_value for dim in dims if dim.HasField("dim_value"))
        wanted = network.types[item.name].shape
        has_shape = item.type.tensor_type.HasField("shape") and len(shape) == len(dims)
        if has_shape and shape != wanted:
            raise ModelError(f"tensor {item.name} has the shape {wanted} instead of {shape}")
