"""Small float networks in the forms that exporters write.

They are built here operator by operator, since PyTorch and Keras are not installed where tests run.
Names, attributes, opsets, and the choice between constants and initializers follow the exporters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


class Exported:
    """A graph that grows; initializers by ``weight``, Constant nodes by ``constant``."""

    def __init__(self, opset: int, ir_version: int, shape: tuple[int | str, ...]) -> None:
        self.opset, self.ir_version, self.shape = opset, ir_version, shape
        self.rng = np.random.default_rng(opset)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> str:
        made = f"{name}_output_0"
        self.nodes.append(helper.make_node(operator, inputs, [made], name=name, **attributes))
        return made

    def weight(self, name: str, *shape: int) -> str:
        fan_in = max(1, int(np.prod(shape[1:])))
        values = self.rng.normal(0, fan_in**-0.5, shape).astype(np.float32)
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def given(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        tensor = numpy_helper.from_array(np.asarray(value, dtype))
        return self.node("Constant", name, value=tensor)

    def model(self, producer: str, source: str, result: str, out: tuple[Any, ...]) -> Any:
        self.nodes[-1].output[0] = result
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            [helper.make_tensor_value_info(source, TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, out)],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(
            graph, producer_name=producer, opset_imports=opsets, ir_version=self.ir_version
        )


def torch_convolutions() -> onnx.ModelProto:
    """``torch.onnx.export(…, dynamo=False)`` of a MobileNet: folded BatchNormalization, ReLU6 as
    Clip with bounds from Constant nodes, SiLU as Sigmoid and Mul, a dynamic batch dimension.
    """
    net = Exported(17, 8, ("batch", 3, 16, 16))
    around: dict[str, Any] = {"dilations": [1, 1], "pads": [1, 1, 1, 1]}
    x = net.node(
        *("Conv", "/features/0/Conv", "image"),
        *(net.weight("features.0.weight", 16, 3, 3, 3), net.weight("features.0.bias", 16)),
        **{**around, "group": 1, "kernel_shape": [3, 3], "strides": [2, 2]},
    )
    low = net.constant("/features/1/Constant", 0, np.float32)
    high = net.constant("/features/1/Constant_1", 6, np.float32)
    before = x = net.node("Clip", "/features/1/Clip", x, low, high)
    x = net.node(
        *("Conv", "/features/2/Conv", x),
        *(net.weight("features.2.weight", 16, 1, 3, 3), net.weight("features.2.bias", 16)),
        **{**around, "group": 16, "kernel_shape": [3, 3], "strides": [1, 1]},
    )
    gate = net.node("Sigmoid", "/features/3/Sigmoid", x)
    x = net.node("Mul", "/features/3/Mul", x, gate)
    x = net.node("Add", "/Add", x, before)
    x = net.node("HardSwish", "/features/4/HardSwish", x)
    x = net.node("GlobalAveragePool", "/pool/GlobalAveragePool", x)
    x = net.node("Flatten", "/Flatten", x, axis=1)
    weights = net.weight("classifier.weight", 10, 16), net.weight("classifier.bias", 10)
    x = net.node("Gemm", "/classifier/Gemm", x, *weights, alpha=1.0, beta=1.0, transB=1)
    return net.model("pytorch", "image", "logits", ("batch", 10))


def torch_dynamo() -> onnx.ModelProto:
    """``torch.onnx.export(…, dynamo=True)``: means with their axes as a tensor, Reshape with
    ``allowzero``, GELU as one operator, scalars as initializers.
    """
    net = Exported(20, 10, ("batch", 3, 16, 16))
    conv: dict[str, Any] = {
        "auto_pad": "NOTSET",
        "dilations": [1, 1],
        "group": 1,
        "strides": [1, 1],
    }
    weights = net.weight("conv1.weight", 16, 3, 3, 3), net.weight("conv1.bias", 16)
    x = net.node("Conv", "node_conv2d", "image", *weights, pads=[1, 1, 1, 1], **conv)
    x = net.node("Gelu", "node_gelu", x, approximate="none")
    window: dict[str, Any] = {"auto_pad": "NOTSET", "ceil_mode": 0, "dilations": [1, 1]}
    window |= {"kernel_shape": [2, 2], "pads": [0] * 4, "storage_order": 0, "strides": [2, 2]}
    x = net.node("MaxPool", "node_max_pool2d", x, **window)
    weights = net.weight("conv2.weight", 24, 16, 1, 1), net.weight("conv2.bias", 24)
    x = net.node("Conv", "node_conv2d_1", x, *weights, pads=[0, 0, 0, 0], **conv)
    x = net.node("Mul", "node_mul", x, net.given("scalar_tensor_default", 0.5, np.float32))
    axes = net.given("val_5", [-1, -2])
    x = net.node("ReduceMean", "node_mean", x, axes, keepdims=1, noop_with_empty_axes=0)
    x = net.node("Reshape", "node_view", x, net.given("val_9", [-1, 24]), allowzero=1)
    weights = net.weight("fc.weight", 10, 24), net.weight("fc.bias", 10)
    x = net.node("Gemm", "node_linear", x, *weights, alpha=1.0, beta=1.0, transA=0, transB=1)
    return net.model("pytorch", "image", "linear", ("batch", 10))


def torch_encoder() -> onnx.ModelProto:
    """``torch.onnx.export`` of an encoder: Linear as MatMul followed by Add(bias, product), heads
    by Reshape and Transpose, scaled scores, GELU by Erf.
    """
    net = Exported(17, 8, (1, 12, 32))

    def linear(name: str, x: str, inputs: int, outputs: int) -> str:
        part = f"/{name.replace('.', '/')}"
        product = net.node("MatMul", f"{part}/MatMul", x, net.weight(name, inputs, outputs))
        return net.node("Add", f"{part}/Add", net.weight(f"{name}.bias", outputs), product)

    def heads(name: str, x: str, order: list[int]) -> str:
        part, shape = f"/{name}", net.constant(f"/{name}/Constant", [1, 12, 2, 16])
        return net.node("Transpose", f"{part}/T", net.node("Reshape", part, x, shape), perm=order)

    query, key, value = (linear(f"attention.{name}", "tokens", 32, 32) for name in "qkv")
    scores = net.node(
        *("MatMul", "/MatMul"), heads("q", query, [0, 2, 1, 3]), heads("k", key, [0, 2, 3, 1])
    )
    scores = net.node("Div", "/Div", scores, net.constant("/root", 4, np.float32))
    shares = net.node("Softmax", "/Softmax", scores, axis=-1)
    mixed = net.node("MatMul", "/MatMul_1", shares, heads("v", value, [0, 2, 1, 3]))
    mixed = net.node("Transpose", "/Transpose_3", mixed, perm=[0, 2, 1, 3])
    mixed = net.node("Reshape", "/Reshape_3", mixed, net.constant("/shape", [1, 12, 32]))
    x = net.node("Add", "/residual/Add", linear("out", mixed, 32, 32), "tokens")
    scale = net.given("norm.weight", np.ones(32), np.float32)
    x = net.node("LayerNormalization", "/norm", x, scale, net.weight("norm.bias", 32), axis=-1)
    x = linear("up", x, 32, 64)
    inner = net.node("Div", "/gelu/Div", x, net.constant("/gelu/Constant", 2**0.5, np.float32))
    inner = net.node("Erf", "/gelu/Erf", inner)
    inner = net.node("Add", "/gelu/Add", inner, net.constant("/gelu/Constant_1", 1, np.float32))
    inner = net.node("Mul", "/gelu/Mul", x, inner)
    x = net.node("Mul", "/gelu/Mul_1", inner, net.constant("/gelu/Constant_2", 0.5, np.float32))
    linear("down", x, 64, 32)
    return net.model("pytorch", "tokens", "output", (1, 12, 32))


def keras_convolutions() -> onnx.ModelProto:
    """tf2onnx export of a Keras model: channels last, hence a Transpose first, ReLU6 as Clip, a
    mean of rows and columns that is squeezed, Dense as MatMul and Add.
    """
    net = Exported(15, 8, ("unk__1", 16, 16, 3))
    x = net.node("Transpose", "model/conv2d/Conv2D__6", "image", perm=[0, 3, 1, 2])
    weights = net.weight("model/conv2d/W", 16, 3, 3, 3), net.weight("model/conv2d/b", 16)
    same: dict[str, Any] = {"dilations": [1, 1], "kernel_shape": [3, 3]}
    x = net.node(
        *("Conv", "model/conv2d/BiasAdd", x, *weights),
        **{**same, "group": 1, "pads": [0, 0, 1, 1], "strides": [2, 2]},
    )
    bounds = net.given("zero", 0, np.float32), net.given("six", 6, np.float32)
    x = net.node("Clip", "model/re_lu/Relu6", x, *bounds)
    x = net.node(
        *("Conv", "model/depthwise/depthwise", x, net.weight("model/depthwise/W", 16, 1, 3, 3)),
        **{**same, "group": 16, "pads": [1, 1, 1, 1], "strides": [1, 1]},
    )
    given = [net.given(f"bn/{n}", net.rng.uniform(0.5, 1.5, 16), np.float32) for n in range(4)]
    x = net.node("BatchNormalization", "model/bn/FusedBatchNormV3", x, *given, epsilon=0.001)
    x = net.node("LeakyRelu", "model/leaky_re_lu/LeakyRelu", x, alpha=0.3)
    x = net.node("GlobalAveragePool", "model/global_average_pooling2d/Mean", x)
    axes = net.given("const_axes__22", [2, 3])
    x = net.node("Squeeze", "model/global_average_pooling2d/Mean_Squeeze", x, axes)
    x = net.node("MatMul", "model/dense/MatMul", x, net.weight("model/dense/W", 16, 10))
    x = net.node("Add", "model/dense/BiasAdd", x, net.weight("model/dense/b", 10))
    x = net.node("Softmax", "model/dense/Softmax", x, axis=-1)
    return net.model("tf2onnx", "image", "dense", ("unk__1", 10))


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    form.__name__: form
    for form in (torch_convolutions, torch_dynamo, torch_encoder, keras_convolutions)
}
