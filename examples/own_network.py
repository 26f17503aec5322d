"""Your own network, from a float model to a report of its run on the machine.

    .venv/bin/python examples/own_network.py [-o DIR] [--device rtl]

Where PyTorch is installed, it makes and exports the network; elsewhere the same network is written
as ONNX. For your own, replace `Classifier` and `images`. Each step is a command that is printed
before it runs: quantize with calibration images, compare with ONNX Runtime, report.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta import cli

# Input and output channels of each convolution (3×3, stride 2), classes, and height of an image.
CHANNELS, CLASSES, SIZE = ((3, 16), (16, 32), (32, 64)), 10, 32


def export_pytorch(path: Path) -> None:
    """The network in PyTorch, exported with an open number of images."""
    import torch
    from torch import nn

    class Classifier(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            layers: list[Any] = []
            for inputs, outputs in CHANNELS:
                layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
            self.features = nn.Sequential(*layers)
            self.classes = nn.Linear(CHANNELS[-1][1], CLASSES)

        def forward(self, image: Any) -> Any:
            return self.classes(self.features(image).mean((2, 3)))

    torch.manual_seed(0)
    torch.onnx.export(
        Classifier().eval(),
        (torch.zeros(1, CHANNELS[0][0], SIZE, SIZE),),
        str(path),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "n"}, "logits": {0: "n"}},
        opset_version=17,
        dynamo=False,
    )


def write_onnx(path: Path) -> None:
    """The same network without PyTorch."""
    numbers = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        scale = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1
        data = numbers.normal(0, scale, shape).astype(np.float32)
        weights.append(numpy_helper.from_array(data, name))
        return name

    value = "image"
    for number, (inputs, outputs) in enumerate(CHANNELS):
        names = [weight(f"w{number}", outputs, inputs, 3, 3), weight(f"b{number}", outputs)]
        nodes.append(
            helper.make_node(
                "Conv", [value, *names], [f"c{number}"], strides=[2, 2], pads=[1, 1, 1, 1]
            )
        )
        value = f"r{number}"
        nodes.append(helper.make_node("Relu", [f"c{number}"], [value]))
    names = [weight("classes", CLASSES, CHANNELS[-1][1]), weight("bias", CLASSES)]
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", *names], ["logits"], transB=1),
    ]
    image: list[str | int] = ["n", CHANNELS[0][0], SIZE, SIZE]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    # ONNX Runtime may not read the newest version of the format yet.
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def images(count: int) -> npt.NDArray[np.float32]:
    """Calibration images: put ``count`` of your own here, prepared as for training."""
    shape = (count, CHANNELS[0][0], SIZE, SIZE)
    return np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)


def call(*arguments: object) -> None:
    """Runs a command as the shell would, and ends with its code if that is not 0."""
    texts = [str(argument) for argument in arguments]
    print(f"\n$ vta {shlex.join(texts)}", flush=True)
    if code := cli.invoke(texts):
        sys.exit(code)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", type=Path, default=Path("build/own_network"), metavar="DIR")
    parser.add_argument("--device", default="estimate", help="rtl simulates the design (estimate)")
    options = parser.parse_args(arguments)
    folder = options.o
    folder.mkdir(parents=True, exist_ok=True)
    model, quantized, samples = (
        folder / name for name in ("float.onnx", "int8.onnx", "images.npz")
    )
    if importlib.util.find_spec("torch") is None:
        write_onnx(model)
    else:
        export_pytorch(model)
    np.savez(samples, image=images(32))
    call("quantize", model, "-o", quantized, "--calibrate", samples)
    device = ("--device", options.device, "--dram", "ddr")
    call("run", quantized, *device, "--check", "--report", folder / "report")
    print(f"\n{folder / 'report' / 'report.html'} shows where the cycles went")


if __name__ == "__main__":
    main()
