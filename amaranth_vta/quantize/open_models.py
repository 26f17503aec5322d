"""Models with open dimensions as networks, and back: `closed`, `folded`, `reopened`."""

from __future__ import annotations

from dataclasses import replace

import onnx

from amaranth_vta.sw.compiler.graph.load.foreign_types import with_foreign_types
from amaranth_vta.sw.compiler.graph.load.input_shapes import is_open
from amaranth_vta.sw.compiler.graph.load.onnx_model import load_network
from amaranth_vta.sw.compiler.graph.network import Network


def closed(model: onnx.ModelProto) -> Network:
    """The network of ``model`` with open dimensions of its inputs set to 1."""
    copied = _of_size_one(model)
    network = Network.from_onnx(with_foreign_types(onnx.shape_inference.infer_shapes(copied)))
    if any(info.shape is None for info in network.types.values()):
        # Exporters compute shapes from the open dimensions by Shape, Gather and Concat.
        known = folded(model).types
        for name, info in network.types.items():
            if info.shape is None and name in known:
                network.types[name] = replace(info, shape=known[name].shape)
    return network


def folded(model: onnx.ModelProto) -> Network:
    """The network of `closed`, with operators on constants and shapes folded."""
    return load_network(_of_size_one(model), 1)


def _of_size_one(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for item in copied.graph.input:
        for size in item.type.tensor_type.shape.dim:
            if is_open(size):
                size.dim_value = 1
    for item in copied.graph.output:
        item.type.tensor_type.ClearField("shape")
    del copied.graph.value_info[:]
    return copied


def reopened(network: Network, model: onnx.ModelProto) -> onnx.ModelProto:
    """``network``, which `closed` made of ``model``, with the metadata and open dimensions of
    ``model``.
    """
    network.drop_unused()
    result = network.to_onnx()
    result.metadata_props.extend(model.metadata_props)
    for own, given in (
        (result.graph.input, model.graph.input),
        (result.graph.output, model.graph.output),
    ):
        del own[:]
        own.extend(given)
    return result
