"""Small quantized networks for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.session import Session

Array = npt.NDArray[Any]


class Qdq:
    """A builder of an ONNX graph; each method appends nodes to ``value``, the last result."""

    def __init__(self, shape: tuple[int | str, ...], dtype: type[np.integer] = np.int8) -> None:
        self.shape = shape
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.value = "x"
        self.scale = 0.0
        self.rng = np.random.default_rng(len(shape))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> Qdq:
        name = f"{operator.lower()}{len(self.nodes)}"
        inputs = (self.value, *inputs)
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        self.value = name
        return self

    def upsample(self) -> Qdq:
        """Double rows and columns of images."""
        return self.node(
            "Resize",
            "",
            self.constant([1, 1, 2, 2], np.float32),
            coordinate_transformation_mode="asymmetric",
            mode="nearest",
            nearest_mode="floor",
        )

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def quantize(self, scale: float, zero: int = 0) -> Qdq:
        self.scale = scale
        parameters = (self.constant(scale, np.float32), self.constant(zero, self.dtype))
        return self.node("QuantizeLinear", *parameters)

    def dequantize(self, zero: int = 0) -> Qdq:
        parameters = (self.constant(self.scale, np.float32), self.constant(zero, self.dtype))
        return self.node("DequantizeLinear", *parameters)

    def qdq(self, scale: float, zero: int = 0) -> Qdq:
        return self.quantize(scale, zero).dequantize(zero)

    def weights(
        self, *shape: int, scale: Any = 2**-6, axis: int = 0, zero: Any = 0, bound: int = 100
    ) -> str:
        """A dequantized constant of random int8, not above ``bound``."""
        data = self.constant(self.rng.integers(-bound, bound, shape), np.int8)
        scale = np.asarray(scale, np.float32)
        name = f"w{len(self.constants)}"
        inputs = [data, self.constant(scale), self.constant(np.full(scale.shape, zero), np.int8)]
        attributes: Any = {"axis": axis} if scale.ndim else {}
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [name], **attributes))
        return name

    def bias(self, channels: int, scale: Any) -> str:
        """A dequantized constant of random int32."""
        data = self.constant(self.rng.integers(-900, 900, channels), np.int32)
        name = f"b{len(self.constants)}"
        inputs = [data, self.constant(scale, np.float32)]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [name], axis=0))
        return name

    def conv(self, inputs: int, outputs: int, size: int = 3, **attributes: Any) -> Qdq:
        weight = self.weights(outputs, inputs, size, size)
        return self.node("Conv", weight, self.bias(outputs, self.scale * 2**-6), **attributes)

    def model(self, opset: int = 17) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self.nodes,
            "test",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        domains = sorted({node.domain for node in self.nodes if node.domain})
        opsets = [helper.make_opsetid("", opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        output = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
        model.graph.output[0].type.tensor_type.shape.CopyFrom(output.shape)
        return model

    def images(self, count: int = 1) -> Array:
        """Inputs that the first quantization rounds, some of them beyond its range."""
        shape = tuple(count if isinstance(size, str) else size for size in self.shape)
        return self.rng.normal(0, 1.5, shape).astype(np.float32)

    def on_machine(self, config: str = "tiny-extended") -> list[str]:
        """Check the network, and that the host only converts; return the machine's operators in
        order.
        """
        with Session(self.model(), config) as session:
            report = session.check({"x": self.images()})
            layers = session.layers
        assert report.histogram == {}
        assert np.unique(report.outputs["y"]).size > 3
        host = {item.operator for item in layers if item.placed_on == "host"}
        assert host <= {"QuantizeLinear", "DequantizeLinear", "Reshape", "layout"}
        return [item.operator for item in layers if item.placed_on == "machine"]


@pytest.fixture
def qdq() -> Callable[..., Qdq]:
    return Qdq
