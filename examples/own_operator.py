"""An operator added to a network: the magnitude of int8, which the compiler does not have.

    .venv/bin/python examples/own_operator.py

ONNX calls it Abs. An operator of another domain is registered likewise, with its domain, and ONNX
has to be told the type of its result: `onnx.defs.register_schema`.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import amaranth_vta as vta
from amaranth_vta import te
from amaranth_vta.sw.compiler.build import build
from amaranth_vta.sw.compiler.graph.layers.support.layer import Layer, Unsupported, identifier
from amaranth_vta.sw.compiler.graph.layers.support.tensors import Tensors
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor


@vta.register_operator("Abs")
def magnitude(node: Node, tensors: Tensors) -> Layer:
    """The layer of one Abs. The message of an `Unsupported` is the reason why it runs on the
    host."""
    source, result = node.inputs[0], node.outputs[0]
    tensors.require_bytes(source, result)
    if tensors.network.types[source].dtype != np.int8:
        raise Unsupported("the machine holds uint8 less by 128, which has another magnitude")
    # Activations are held as (N/BATCH, C/BLOCK_OUT, H, W, BATCH, BLOCK_OUT) after any layer.
    image, layout = tensors.held(source, tensors.image(source)), tensors.output_layout
    env, shape = tensors.env, layout.shape(image)

    # The expression: |x| = max(x, -x) in accumulators, of which the low eight bits are stored.
    x = te.placeholder(shape, "x", env.out_dtype)
    wide = te.compute(shape, lambda *i: x(*i).astype(env.acc_dtype), "wide")
    negative = te.compute(shape, lambda *i: wide(*i) * -1, "negative")
    larger = te.compute(shape, lambda *i: te.max(wide(*i), negative(*i)), "larger")
    y = te.compute(shape, lambda *i: larger(*i).astype(env.out_dtype), "y")

    # Its schedule: one row of the image at a time.
    s = te.create_schedule(y.op)
    row = s[y].op.axis[2]
    for tensor in (wide, negative, larger):
        s[tensor].set_scope(env.acc_scope)
        s[tensor].compute_at(s[y], row)
    s[wide].pragma(wide.op.axis[0], env.dma_copy)
    s[negative].pragma(negative.op.axis[0], env.alu)
    s[larger].pragma(larger.op.axis[0], env.alu)
    s[y].pragma(y.op.axis[3], env.dma_copy)
    return Layer(
        name=node.name,
        operator=node.operator,
        nodes=(node,),
        sources=(TiledTensor(tensors.root(source), image, layout),),
        result=TiledTensor(result, image, layout),
        find_function=lambda: build(s, [x, y], name=identifier(node.name), env=env),
        constants={},
        macs=0,
    )


def network(height: int = 6, width: int = 5) -> onnx.ModelProto:
    """Quantize, Abs, MaxPool, dequantize: 20 channels."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="quantize"),
        helper.make_node("Abs", ["q"], ["magnitudes"], name="magnitude"),
        helper.make_node("MaxPool", ["magnitudes"], ["m"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("DequantizeLinear", ["m", "scale", "zero"], ["y"], name="dequantize"),
    ]
    constants = {"scale": np.float32(2**-5), "zero": np.int8(0)}
    graph = helper.make_graph(
        nodes,
        "magnitudes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 20, height, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 20, height - 1, width - 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    images = np.random.default_rng(0).normal(0, 2, (3, 20, 6, 5)).astype(np.float32)
    with vta.Session(network()) as session:
        checked = session.check({"x": images})
        print(session.plan_table())
    print(f"{checked.mismatches} of {checked.elements:,} elements differ from ONNX Runtime")


if __name__ == "__main__":
    main()
