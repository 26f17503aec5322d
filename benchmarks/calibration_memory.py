"""Peak memory and time of ``vta quantize`` for small and large numbers of samples.

    python benchmarks/calibration_memory.py

Quantizes seven 3×3 convolutions of 32 channels with Relu, with samples of 3×224×224, for ranges
that cover all values and 99.9 % of the values. The peak is of the whole process.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLES = (4, 64)
LAYERS, CHANNELS, SIZE = 7, 32, 224


def seven_convolutions() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, tensor, channels = [], [], "x", 3
    for layer in range(LAYERS):
        values = rng.normal(0, (2 / (9 * channels)) ** 0.5, (CHANNELS, channels, 3, 3))
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{layer}"))
        convolution = [tensor, f"w{layer}"], [f"c{layer}"]
        nodes.append(helper.make_node("Conv", *convolution, pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        tensor, channels = f"r{layer}", CHANNELS
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, SIZE, SIZE])
    y = helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", CHANNELS, SIZE, SIZE])
    graph = helper.make_graph(nodes, "seven", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(seven_convolutions(), folder / "float.onnx")
        for options in ([], ["--percentile", "99.9"]):
            for count in SAMPLES:
                images = np.random.default_rng(1).normal(0, 1, (count, 3, SIZE, SIZE))
                np.savez(folder / "x.npz", x=images.astype(np.float32))
                arguments = ["float.onnx", "-o", "int8.onnx", "--calibrate", "x.npz", *options]
                start = perf_counter()
                # RUSAGE_CHILDREN holds the maximum over all children so far, so each run has its
                # own parent.
                peak = subprocess.run(
                    [sys.executable, __file__, *arguments],
                    cwd=folder,
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                print(
                    f"{' '.join(options) or 'all values':18} {count:3} samples: {int(peak):5,} MB, "
                    f"{perf_counter() - start:.0f} s"
                )


def measured(arguments: list[str]) -> int:
    """The peak of ``vta quantize`` with these arguments, in MB."""
    command = [sys.executable, "-m", "amaranth_vta", "quantize", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measured(sys.argv[1:]))
    else:
        main()
