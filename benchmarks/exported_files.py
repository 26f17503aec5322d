"""ONNX files from PyTorch's and Keras's own exporters, with samples for calibration.

    python benchmarks/exported_files.py torch|torchscript|keras|tflite FOLDER [NAME ...]

The frameworks are not dependencies of this project: run this script in a separate environment for
each. ``torch`` and ``torchscript`` need the packages torch, torchvision and onnxscript; ``keras``
and ``tflite`` need tensorflow-cpu and tf2onnx. ``tflite`` files are quantized by TensorFlow, the
others are float. Weights are random. Writes NAME.onnx and NAME.npz to the folder for each NAME, for
`vta quantize --calibrate` and `vta run --inputs`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 8


def torch_models() -> dict[str, tuple[Any, tuple[int, ...]]]:
    import torch
    import torchvision
    from torch import nn
    from torch.nn import functional

    class Branches(nn.Module):
        """A network that branches: a gate, an addition, a pyramid of maximum pools, upsampling."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.PReLU(16))
            self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 16, 1), nn.Sigmoid())
            self.wide = nn.Sequential(nn.Conv2d(16, 16, 3, padding=2, dilation=2), nn.Mish())
            self.up = nn.ConvTranspose2d(64, 8, 4, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            x = x * self.gate(x) + self.wide(x)
            pools = [functional.max_pool2d(x, size, 1, size // 2) for size in (5, 9, 13)]
            return self.up(torch.cat([x, *pools], 1)).mean([2, 3])

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions = nn.ModuleList(nn.Conv1d(16, 16, 3, dilation=d) for d in (1, 2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.convolutions:
                x = x + functional.gelu(layer(functional.pad(x, (2 * layer.dilation[0], 0))))
            return x.amax(-1)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            block = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
            self.blocks = nn.TransformerEncoder(block, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x).mean(1)

    zoo = torchvision.models
    return {
        "branches": (Branches(), (3, 32, 32)),
        "causal": (Causal(), (16, 50)),
        "encoder": (Encoder(), (24, 32)),
        "resnet18": (zoo.resnet18(num_classes=100), (3, 64, 64)),
        "mobilenet_v2": (zoo.mobilenet_v2(width_mult=0.35, num_classes=100), (3, 96, 96)),
        "mobilenet_v3": (zoo.mobilenet_v3_small(num_classes=100), (3, 96, 96)),
        "efficientnet_b0": (zoo.efficientnet_b0(num_classes=100), (3, 64, 64)),
        "shufflenet_v2": (zoo.shufflenet_v2_x0_5(num_classes=100), (3, 96, 96)),
        "vit": (zoo.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10), (3, 32, 32)),
    }


def write_torch(exporter: str, folder: Path, names: list[str]) -> None:
    import torch

    torch.manual_seed(0)
    models = torch_models()
    for name in names or models:
        model, shape = models[name]
        sample = torch.randn(2, *shape)
        options = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim("batch")},)}
        if exporter == "torchscript":
            options = {"dynamo": False, "opset_version": 17, "dynamic_axes": {"x": {0: "batch"}}}
        path = folder / f"{name}.onnx"
        torch.onnx.export(model.eval(), (sample,), path, input_names=["x"], **options)
        values = np.random.default_rng(0).normal(0, 1, (SAMPLES, *shape))
        np.savez(path.with_suffix(".npz"), x=values.astype(np.float32))


def keras_models() -> dict[str, Any]:
    import keras
    from keras import layers

    def sequence(*shape: int) -> keras.Model:
        parts = (
            layers.Conv1D(32, 5, strides=2, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Conv1D(32, 3, padding="causal", activation="tanh"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(12),
        )
        return keras.Sequential([keras.Input(shape, name="x"), *parts])

    def image(*shape: int) -> keras.Model:
        parts = (
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu6"),
            layers.DepthwiseConv2D(3, padding="same", activation="swish"),
            layers.SeparableConv2D(24, 3, padding="same", activation="elu"),
            layers.AveragePooling2D(2, padding="same"),
            layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="leaky_relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        )
        return keras.Sequential([keras.Input(shape, name="x"), *parts])

    zoo = keras.applications
    sizes = {"weights": None, "classes": 50}
    return {
        "image": image(32, 32, 3),
        "sequence": sequence(98, 40),
        "mobilenet": zoo.MobileNet((96, 96, 3), alpha=0.25, **sizes),
        "mobilenet_v3": zoo.MobileNetV3Small((96, 96, 3), **sizes),
    }


def write_keras(exporter: str, folder: Path, names: list[str]) -> None:
    import keras
    import onnx
    import tensorflow
    import tf2onnx

    keras.utils.set_random_seed(0)
    models = keras_models()
    for name in names or models:
        model, path = models[name], folder / f"{name}.onnx"
        shape = (SAMPLES, *model.input_shape[1:])
        values = np.random.default_rng(0).random(shape).astype(np.float32)
        model(values[:1])  # without a call the exporter refuses it
        if exporter == "keras":
            model.export(path, format="onnx", verbose=False)
        else:
            converter = tensorflow.lite.TFLiteConverter.from_keras_model(model)
            converter.optimizations = [tensorflow.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda v=values: ([item[None]] for item in v)
            path.with_suffix(".tflite").write_bytes(converter.convert())
            lite = str(path.with_suffix(".tflite"))
            tf2onnx.convert.from_tflite(lite, opset=17, output_path=str(path))
        (given,) = onnx.load(path).graph.input
        arrays: dict[str, Any] = {given.name: values}
        np.savez(path.with_suffix(".npz"), **arrays)


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in ("torch", "torchscript", "keras", "tflite"):
        sys.exit(__doc__)
    exporter, folder, *names = sys.argv[1:]
    write = write_torch if exporter in ("torch", "torchscript") else write_keras
    Path(folder).mkdir(parents=True, exist_ok=True)
    write(exporter, Path(folder), names)


if __name__ == "__main__":
    main()
