"""Random networks with any quantization: scales per tensor or per channel, int8 and uint8, zero
points, weights of both types; as QDQ and as QOperator; groups, residual additions and averages.

Every element must equal ONNX Runtime's, and everything must be on the machine.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from amaranth_vta.networks import generate
from amaranth_vta.session import Session, random_inputs
from tests.support.random_networks import QuantizedNetwork, residual_network
from tests.support.seeds import each_seed

Array = npt.NDArray[Any]
FLOATS = "float tensors are the host's"


def random_network(seed: int, form: str, dtype: Any, **options: bool) -> QuantizedNetwork:
    """One to four convolutions with residuals and poolings between them, perhaps a matrix product,
    with the ``options`` of `QuantizedNetwork`.
    """
    choose = random.Random(seed)
    channels = choose.choice([1, 3, choose.randint(1, 40)])
    network = QuantizedNetwork(seed, form, dtype, (channels, 9, 8), **options)

    def chance(probability: float) -> bool:
        return choose.random() < probability

    for _ in range(choose.randint(1, 4)):
        height, width = network.shape[2:]
        kernel = choose.randint(1, min(4, height)), choose.randint(1, min(3, width))
        top, left, bottom, right = (choose.randint(0, k - 1) for k in (*kernel, *kernel))
        pads = (top, left, bottom, right) if chance(0.5) else (0, 0, 0, 0)
        strides = choose.randint(1, 2), choose.randint(1, 2)
        network.convolution(choose.randint(5, 40), kernel, strides, pads, chance(0.5))
        if chance(0.4):
            branch, deviation, channels = (
                network.dequantized(),
                network.deviation,
                network.shape[1],
            )
            groups = choose.choice([1, channels])
            network.convolution(channels, (3, 3), (1, 1), (1, 1, 1, 1), chance(0.5), groups)
            network.add(branch, deviation, chance(0.5))
        if min(network.shape[2:]) > 2 and chance(0.4):
            kernel = choose.randint(1, 3), choose.randint(1, 3)
            top, right = choose.randint(0, kernel[0] - 1), choose.randint(0, kernel[1] - 1)
            strides = choose.randint(1, 3), choose.randint(1, 3)
            network.pooling(kernel, strides, (top, 0, 0, right), chance(0.5))
    if chance(0.3):
        network.average()
    if chance(0.5):
        network.matrix_product(choose.randint(5, 30), chance(0.5))
    return network


def assert_exact(network: QuantizedNetwork, config: str, device: str, images: int) -> None:
    """Every element equals ONNX Runtime's; the host only converts floats and packs the input."""
    assert_equal(network.model(), {"x": network.images(images)}, config, device)


def assert_equal(
    model: onnx.ModelProto, inputs: dict[str, Array], config: str, device: str
) -> None:
    with Session(model, config, device) as session:
        report = session.check(inputs)
        assert report.elements
        assert report.histogram == {}
        (output,) = report.outputs.values()
        assert np.unique(output).size > 2
        host = [layer for layer in session.layers if layer.placed_on == "host"]
    assert {layer.operator for layer in host} <= {"QuantizeLinear", "DequantizeLinear", "layout"}
    assert {layer.reason for layer in host if layer.operator != "layout"} == {FLOATS}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@each_seed(range(15), daily=5)
def test_a_random_quantized_network_is_exact(seed: int, form: str, dtype: Any) -> None:
    assert_exact(random_network(seed, form, dtype), "tiny-extended", "functional", 3)


@pytest.mark.parametrize("small", [False, True])
@each_seed(range(30, 34), daily=2)
def test_a_random_network_of_moved_weights_is_exact(seed: int, small: bool) -> None:
    network = random_network(seed, "qdq", np.uint8, moved=True, small=small)
    assert_exact(network, "tiny-extended", "functional", 3)


@pytest.mark.parametrize("small", [False, True])
@each_seed(range(30, 36), daily=2)
def test_moved_weights_are_the_same_weights(seed: int, small: bool) -> None:
    """Networks with and without moves have the same results."""
    results: list[Array] = []
    for moved in (False, True):
        network = random_network(seed, "qdq", np.int8, moved=moved, small=small)
        inputs = {"x": network.images(2)}
        with Session(network.model(), "pynq-extended") as session:
            results.append(session.run(inputs)["y"])
    assert np.array_equal(results[0], results[1])


@each_seed(range(15, 20), daily=2)
def test_a_random_quantized_network_is_exact_on_the_extended_default(seed: int) -> None:
    assert_exact(random_network(seed, "qdq", np.uint8), "pynq-extended", "functional", 8)


@each_seed(range(20, 26), daily=4)
def test_a_random_quantized_network_is_exact_on_rtl(seed: int) -> None:
    dtype, form = [np.int8, np.uint8][seed % 2], ["qdq", "qoperator"][seed // 2 % 2]
    assert_exact(random_network(seed, form, dtype), "tiny-extended", "rtl", 2)


def network_of_moves(seed: int, form: str, dtype: Any) -> QuantizedNetwork:
    """Convolutions with operators between them that only move elements."""
    choose = random.Random(seed)
    size = choose.choice([(8, 6), (6, 10), (5, 12)])
    network = QuantizedNetwork(seed, form, dtype, (choose.choice([3, 16]), *size))
    for _ in range(choose.randint(1, 2)):
        outputs = choose.choice([4, 8, 12, 16, 20, 32])
        network.convolution(outputs, (1, 1), (1, 1), (0, 0, 0, 0), choose.random() < 0.5)
        for _ in range(choose.randint(1, 3)):
            network.move()
    network.convolution(6, (1, 1), (1, 1), (0, 0, 0, 0), choose.random() < 0.5)
    return network


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@each_seed(range(100, 107), daily=2)
def test_elements_of_a_random_network_move_on_the_machine(seed: int, form: str, dtype: Any) -> None:
    assert_exact(network_of_moves(seed, form, dtype), "pynq-extended", "functional", 2)


@each_seed(range(115, 118))
def test_elements_of_a_random_network_move_on_rtl(seed: int) -> None:
    dtype, form = [np.int8, np.uint8][seed % 2], ["qdq", "qoperator"][seed // 2 % 2]
    model = network_of_moves(seed, form, dtype).model()
    with Session(model, "tiny-extended", "rtl") as session:
        assert session.check(random_inputs(session)).mismatches == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(
    ("config", "device"), [("pynq-extended", "functional"), ("tiny-extended", "rtl")]
)
def test_a_residual_network_is_on_the_machine_as_a_whole(
    config: str, device: str, dtype: Any
) -> None:
    blocks = [(16, 1), (32, 2), (32, 1)]
    assert_exact(residual_network(dtype, (3, 32, 32), blocks, 10), config, device, 2)


def test_resnet18_is_on_the_machine_as_a_whole() -> None:
    network = generate("resnet18")
    assert_equal(network.model, network.inputs, "pynq-extended", "functional")
