"""Trains the digits network, quantizes it to powers of two, and writes it as ONNX.

``python examples/digits/train.py`` writes ``digits.onnx``, ``images.npz`` and ``labels.npz`` into
its own folder. With ``--check`` it trains again, writes nothing, and compares the results with
those files: the images must be equal, the accuracies within half a percent (floating-point sums
depend on the processor, so weights may differ in their last bit).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from network import Array, Conv, Dense, Network
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from amaranth_vta.sw.runtime.network.onnx_runtime import default_session

HERE = Path(__file__).resolve().parent
SEED = 7
TEST_IMAGES = 360
EPOCHS = 40
BATCH = 64
RATE = 2e-3
OPSET = 21
IR_VERSION = 10
# Pixels are whole numbers from 0 to 16: with this scale the first quantization loses nothing.
PIXEL_EXPONENT = -4

Labels = npt.NDArray[np.int64]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the files, write none")
    arguments = parser.parse_args()
    train_x, test_x, train_y, test_y = digits()
    network = train(train_x, train_y)
    model = quantized(network, train_x)
    new = accuracy(model, test_x, test_y)
    plain = float((network.forward(test_x)["dense"].argmax(axis=1) == test_y).mean())
    print(f"test accuracy: {plain:.2%} in float, {new:.2%} quantized (ONNX Runtime)")
    if arguments.check:
        return check(test_x, test_y, new)
    onnx.save(model, HERE / "digits.onnx")
    np.savez_compressed(HERE / "images.npz", image=test_x)
    np.savez_compressed(HERE / "labels.npz", label=test_y)
    return 0


def digits() -> tuple[Array, Array, Labels, Labels]:
    """Training and test images, float32 (n, 1, 8, 8) from 0 to 1, then their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype(np.int64), test_size=TEST_IMAGES, random_state=SEED, stratify=labels
    )
    return train_x, test_x, train_y, test_y


def train(images: Array, labels: Labels) -> Network:
    """A network trained on the images, each shifted by at most a pixel every time it is seen."""
    rng = np.random.default_rng(SEED)
    network = Network(SEED)
    step = 0
    for epoch in range(EPOCHS):
        rate = RATE * (1 + np.cos(np.pi * epoch / EPOCHS)) / 2
        order = rng.permutation(len(images))
        losses = []
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            step += 1
            moved = shifted(images[chosen], rng)
            losses.append(network.train_step(moved, labels[chosen], rate, step))
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {np.mean(losses):.4f}", flush=True)
    return network


def shifted(images: Array, rng: np.random.Generator) -> Array:
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    result = np.empty_like(images)
    for index, (dy, dx) in enumerate(rng.integers(0, 3, (len(images), 2))):
        result[index] = padded[index, :, dy : dy + 8, dx : dx + 8]
    return result


def best_exponent(values: Array) -> int:
    """The e for which rounding to int8 multiples of 2^e, with saturation, changes values least."""
    largest = int(np.ceil(np.log2(np.abs(values).max() / 127)))

    def error(exponent: int) -> float:
        scaled = np.clip(np.rint(values / 2.0**exponent), -128, 127) * 2.0**exponent
        return float(((scaled - values) ** 2).mean())

    return min(range(largest - 3, largest + 1), key=error)


def quantized(network: Network, images: Array) -> onnx.ModelProto:
    """The network in QDQ form: symmetric int8, every scale a power of two."""
    outputs = network.forward(images)
    graph = _Graph()
    graph.quantize("image", "image", PIXEL_EXPONENT)
    graph.weighted("Conv", network.layers["conv1"], "conv1", pads=[1, 1, 1, 1])
    graph.node("Relu", "relu1")
    graph.quantize("relu1", "relu1", best_exponent(outputs["relu1"]))
    graph.weighted("Conv", network.layers["conv2"], "conv2", pads=[1, 1, 1, 1])
    graph.node("Relu", "relu2")
    graph.quantize("relu2", "relu2", best_exponent(outputs["relu2"]))
    graph.node("MaxPool", "pool", kernel_shape=[2, 2], strides=[2, 2])
    graph.quantize("pool", "pool", graph.exponent)
    graph.weighted("Conv", network.layers["conv3"], "conv3", pads=[1, 1, 1, 1])
    graph.node("Relu", "relu3")
    graph.quantize("relu3", "relu3", best_exponent(outputs["relu3"]))
    graph.node("Flatten", "flatten", axis=1)
    graph.quantize("flatten", "flatten", graph.exponent)
    graph.weighted("Gemm", network.layers["dense"], "dense", transB=1)
    graph.quantize("dense", "dense", best_exponent(outputs["dense"]), output="logits")
    return graph.model()


class _Graph:
    """An ONNX graph that grows at its end: ``value`` is the tensor there, of scale 2^exponent."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.value = "image"
        self.exponent = 0

    def node(self, operator: str, name: str, *inputs: str, **attributes: Any) -> None:
        inputs = (self.value, *inputs)
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        self.value = name

    def quantize(self, name: str, value: str, exponent: int, output: str = "") -> None:
        """QuantizeLinear and DequantizeLinear."""
        parameters = self._parameters(name, exponent, np.int8(0))
        self.node("QuantizeLinear", f"{name}_quantized", *parameters)
        self.node("DequantizeLinear", output or f"{name}_dequantized", *parameters)
        self.exponent = exponent

    def weighted(self, operator: str, layer: object, name: str, **attributes: Any) -> None:
        """A layer with constant int8 weights and an int32 bias."""
        assert isinstance(layer, Conv | Dense)
        exponent = best_exponent(layer.weight.value)
        weight = np.clip(np.rint(layer.weight.value / 2.0**exponent), -127, 127).astype(np.int8)
        bias = np.rint(layer.bias.value / 2.0 ** (self.exponent + exponent)).astype(np.int32)
        self._constant(f"{name}_weight", weight, exponent)
        self._constant(f"{name}_bias", bias, self.exponent + exponent)
        self.node(operator, name, f"{name}_weight", f"{name}_bias", **attributes)

    def _constant(self, name: str, value: npt.NDArray[np.signedinteger], exponent: int) -> None:
        self.constants.append(numpy_helper.from_array(value, f"{name}_quantized"))
        inputs = [f"{name}_quantized", *self._parameters(name, exponent, value.dtype.type(0))]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [name], name=name))

    def _parameters(self, name: str, exponent: int, zero: np.signedinteger) -> tuple[str, str]:
        scale = numpy_helper.from_array(np.array(2.0**exponent, np.float32), f"{name}_scale")
        self.constants += [scale, numpy_helper.from_array(np.array(zero), f"{name}_zero")]
        return f"{name}_scale", f"{name}_zero"

    def model(self) -> onnx.ModelProto:
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
        graph = helper.make_graph(self.nodes, "digits", [image], [logits], self.constants)
        model = helper.make_model(
            graph,
            producer_name="examples/digits/train.py",
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def accuracy(model: onnx.ModelProto, images: Array, labels: Labels) -> float:
    session = default_session(model.SerializeToString())
    (logits,) = session.run(None, {"image": images})
    return float((logits.argmax(axis=1) == labels).mean())


def check(images: Array, labels: Labels, new: float) -> int:
    with np.load(HERE / "images.npz") as file:
        same = np.array_equal(file["image"], images)
    with np.load(HERE / "labels.npz") as file:
        same = same and np.array_equal(file["label"], labels)
    kept = accuracy(onnx.load(HERE / "digits.onnx"), images, labels)
    print(f"digits.onnx: {kept:.2%}; images.npz and labels.npz {'equal' if same else 'DIFFER'}")
    return 0 if same and abs(kept - new) <= 0.005 else 1


if __name__ == "__main__":
    sys.exit(main())
