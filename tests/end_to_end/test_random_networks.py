"""Random convolutional networks, from ONNX through compiler and runtime to the machine.

Each element must equal that of a NumPy model of the same integer arithmetic, and ONNX Runtime's.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.session import Session
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.runtime.device import Device
from tests.support.golden import VECTORS
from tests.support.seeds import each_seed

Int8 = npt.NDArray[np.int8]
# log2 of the scales of the input and of all weights.
INPUT_SCALE = -5
WEIGHT_SCALE = -7


@dataclass(frozen=True)
class Convolution:
    """``weight`` (out, in, height, width), ``pads`` top, left, bottom, right."""

    weight: Int8
    bias: npt.NDArray[np.int32]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    relu: bool
    shift: int

    def sums(self, x: Int8) -> npt.NDArray[np.int64]:
        top, left, bottom, right = self.pads
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
        height, width = self.weight.shape[2:]
        windows = sliding_window_view(padded, (height, width), axis=(2, 3))
        windows = windows[:, :, :: self.strides[0], :: self.strides[1]]
        sums = np.einsum(
            "nihwyx,oiyx->nohw", windows, self.weight.astype(np.float64), optimize=True
        )
        return sums.astype(np.int64) + self.bias[:, None, None]


@dataclass(frozen=True)
class Dense:
    """``weight`` (out, in), over all elements of an image."""

    weight: Int8
    bias: npt.NDArray[np.int32]
    relu: bool
    shift: int

    def sums(self, x: Int8) -> npt.NDArray[np.int64]:
        return x.reshape(len(x), -1).astype(np.int64) @ self.weight.T + self.bias


@dataclass(frozen=True)
class Pooling:
    kernel: tuple[int, int]
    strides: tuple[int, int]


@dataclass
class Network:
    input_shape: tuple[int, int, int]
    layers: list[Convolution | Dense | Pooling] = field(default_factory=list)

    def integers(self, x: Int8) -> Int8:
        """The machine's arithmetic: sums, a shift that rounds half to even, saturation."""
        for layer in self.layers:
            x = apply(layer, x)
        return x

    @property
    def output_scale(self) -> float:
        shifts = [layer.shift for layer in self.layers if not isinstance(layer, Pooling)]
        return 2.0 ** (INPUT_SCALE + sum(WEIGHT_SCALE + shift for shift in shifts))


def apply(layer: Convolution | Dense | Pooling, x: Int8) -> Int8:
    if isinstance(layer, Pooling):
        windows = sliding_window_view(x, layer.kernel, axis=(2, 3))
        return windows[:, :, :: layer.strides[0], :: layer.strides[1]].max(axis=(4, 5))
    sums = layer.sums(x)
    rounded = np.rint(sums / 2.0**layer.shift).astype(np.int64)
    return np.clip(rounded, 0 if layer.relu else -128, 127).astype(np.int8)


def images(network: Network, count: int, seed: int) -> Int8:
    generator = np.random.default_rng(seed)
    return generator.integers(-128, 128, (count, *network.input_shape)).astype(np.int8)


def random_network(seed: int) -> Network:
    """One to four convolutions of 1 to 70 channels with poolings between, perhaps a dense layer."""
    choose = random.Random(seed)
    numbers = np.random.default_rng(seed)
    height, width = choose.choice([(13, 7), (7, 13), (9, 9), (16, 5), (11, 20), (1, 17), (8, 8)])
    network = Network((choose.choice([1, 3, 16, choose.randint(1, 70)]), height, width))
    x = images(network, 2, seed)

    def add(layer: Convolution | Dense | Pooling) -> None:
        nonlocal x
        network.layers.append(layer)
        x = apply(layer, x)

    def add_weighted(kind: Any, shape: tuple[int, ...], **rest: Any) -> None:
        weight = numbers.integers(-127, 128, shape).astype(np.int8)
        bias = numbers.integers(-8000, 8000, shape[0]).astype(np.int32)
        draft = kind(weight, bias, relu=choose.random() < 0.5, shift=0, **rest)
        # Some elements saturate, most do not.
        large = np.percentile(np.abs(draft.sums(x)), choose.choice([90, 99, 100]))
        shift = max(0, int(np.ceil(np.log2(max(large, 1) / 127))))
        add(kind(weight, bias, relu=draft.relu, shift=shift, **rest))

    for _ in range(choose.randint(1, 4)):
        channels, height, width = x.shape[1:]
        kernel = choose.randint(1, min(5, height + 2)), choose.randint(1, min(5, width + 2))
        top, bottom = (choose.randint(0, kernel[0] - 1) for _ in range(2))
        left, right = (choose.randint(0, kernel[1] - 1) for _ in range(2))
        top += max(0, kernel[0] - height - top - bottom)
        left += max(0, kernel[1] - width - left - right)
        add_weighted(
            Convolution,
            (choose.randint(1, 70), channels, *kernel),
            strides=(choose.randint(1, 3), choose.randint(1, 3)),
            pads=(top, left, bottom, right),
        )
        if min(x.shape[2:]) >= 3 and choose.random() < 0.5:
            size = choose.choice([2, 3])
            add(Pooling((size, size), (choose.choice([1, 2, size]),) * 2))
    if choose.random() < 0.5:
        add_weighted(Dense, (choose.randint(1, 70), int(np.prod(x.shape[1:]))))
    return network


def onnx_model(network: Network) -> onnx.ModelProto:
    """The network in floats with QuantizeLinear and DequantizeLinear around each operator."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, npt.NDArray[Any]] = {
        "zero": np.array(0, np.int8),
        "zero32": np.array(0, np.int32),
    }

    def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def scale(log2: int) -> str:
        constants[f"scale_{-log2}"] = np.array(2.0**log2, np.float32)
        return f"scale_{-log2}"

    def requantized(value: str, log2: int) -> str:
        node("QuantizeLinear", [value, scale(log2), "zero"], f"{value}_q")
        return node("DequantizeLinear", [f"{value}_q", scale(log2), "zero"], f"{value}_dq")

    def constant(name: str, data: npt.NDArray[Any], log2: int) -> str:
        constants[name] = data
        zero = "zero" if data.dtype == np.int8 else "zero32"
        return node("DequantizeLinear", [name, scale(log2), zero], f"{name}_dq")

    log2 = INPUT_SCALE
    value = requantized("x", log2)
    for number, layer in enumerate(network.layers):
        if isinstance(layer, Pooling):
            attributes = {"kernel_shape": layer.kernel, "strides": layer.strides}
            value = node("MaxPool", [value], f"pool{number}", **attributes)
            value = requantized(value, log2)
            continue
        weight = constant(f"weight{number}", layer.weight, WEIGHT_SCALE)
        bias = constant(f"bias{number}", layer.bias, log2 + WEIGHT_SCALE)
        if isinstance(layer, Convolution):
            value = node(
                "Conv",
                [value, weight, bias],
                f"conv{number}",
                kernel_shape=layer.weight.shape[2:],
                strides=layer.strides,
                pads=layer.pads,
            )
        else:
            value = requantized(node("Flatten", [value], f"flat{number}"), log2)
            value = node("Gemm", [value, weight, bias], f"dense{number}", transB=1)
        if layer.relu:
            value = node("Relu", [value], f"relu{number}")
        log2 += WEIGHT_SCALE + layer.shift
        value = requantized(value, log2)
    nodes[-1].output[0] = "y"
    shape = network.integers(images(network, 1, 0)).shape[1:]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *network.input_shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", *shape])],
        [numpy_helper.from_array(data, name) for name, data in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def float_images(x: Int8) -> npt.NDArray[np.float32]:
    return x.astype(np.float32) * np.float32(2.0**INPUT_SCALE)


SEEDS = range(20)
# Two rows and square tiles: the machine of a conformance vector.
SQUARE = ProgramImage.load(VECTORS / "batch2-1.npz").config


def assert_exact(seed: int, config: Config | str, device: Device | str) -> npt.NDArray[np.uint8]:
    """Compares a network's results; returns the whole memory of the device."""
    network = random_network(seed)
    x = images(network, 2, seed + 100)
    expected = network.integers(x) * network.output_scale
    with Session(onnx_model(network), config, device) as session:
        on_machine = [layer for layer in session.layers if layer.placed_on == "machine"]
        # A pooling may be fused into the preceding layer.
        operators = [part for layer in on_machine for part in layer.operator.split("+")]
        assert len(operators) == len(network.layers)
        result = session.run({"x": float_images(x)})["y"]
        assert result.shape == expected.shape
        assert (result == expected).all()
        return session.device.read(0, session.device.memory_bytes)


@pytest.mark.nightly
@each_seed(SEEDS)
def test_a_random_network_is_exact_on_functional_model_and_rtl(seed: int) -> None:
    functional, rtl = (assert_exact(seed, "pynq", device) for device in ("functional", "rtl"))
    assert (functional == rtl).all()


@pytest.mark.parametrize(
    "name", ["tiny", "batch2", pytest.param("square", marks=pytest.mark.nightly)]
)
@each_seed([0, 7, 11, 15], daily=2)
def test_a_random_network_is_exact_on_a_small_machine(seed: int, name: str) -> None:
    config = SQUARE if name == "square" else name
    functional, rtl = (assert_exact(seed, config, device) for device in ("functional", "rtl"))
    assert (functional == rtl).all()


@pytest.mark.parametrize("order", ["reverse", "random:1", "random:2"])
@each_seed(SEEDS, daily=2)
def test_a_random_network_is_exact_in_any_order_that_its_tokens_allow(
    seed: int, order: str
) -> None:
    assert_exact(seed, "tiny", FunctionalDevice(PRESETS["tiny"], 1 << 22, order))


def test_no_element_differs_from_onnx_runtimes(capsys: pytest.CaptureFixture[str]) -> None:
    elements, histogram = 0, Counter[float]()
    for seed in SEEDS:
        network = random_network(seed)
        with Session(onnx_model(network)) as session:
            report = session.check({"x": float_images(images(network, 8, seed + 200))})
        elements += report.elements
        histogram.update(report.histogram)
    with capsys.disabled():
        print(f"\nof {elements} elements differ from ONNX Runtime's, by steps: {dict(histogram)}")
    assert elements > 10_000
    assert not histogram
