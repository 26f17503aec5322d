"""Softmax in fixed point equals LiteRT's reference kernel, and an error in any constant is seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from amaranth_vta.networks.tflite_file import TfliteFile
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.sw.compiler.graph import integer_softmax
from amaranth_vta.sw.compiler.graph.integer_softmax import exponentials
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session, run_session

CASES = ((0.02, 1.0, 10), (0.3, 1.0, 2), (0.1, 0.5, 40), (2.0**-10, 1.0, 3), (0.05, 3.0, 1))
ROWS = 64
RNG = np.random.default_rng(2)


def softmax(scale: float, beta: float, width: int, dtype: str) -> bytes:
    file = TfliteFile()
    x = file.input((ROWS, width), scale, 3, dtype)
    y = file.tensor((ROWS, width), 1 / 256, np.iinfo(dtype).min, dtype)
    file.operator("SOFTMAX", [x], [y], beta=beta)
    file.output(y)
    return file.bytes()


def different(dtype: str = "int8") -> int:
    """The number of elements that differ from the reference kernel's, over all cases."""
    total = 0
    for scale, beta, width in CASES:
        data = softmax(scale, beta, width, dtype)
        limits = np.iinfo(dtype)
        x = RNG.integers(limits.min, limits.max + 1, (ROWS, width)).astype(dtype)
        x[0] = limits.max
        network = Network.from_onnx(read_model(data))
        session = exact_session(network.to_onnx().SerializeToString())
        (found,) = run_session(session, network.outputs, {network.inputs[0]: x}).values()
        (wanted,) = reference(data, x)
        total += int((found != wanted).sum())
    return total


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_results_equal_the_reference_kernel(dtype: str) -> None:
    assert different(dtype) == 0


def test_exponentials_are_near_the_real_ones() -> None:
    table = exponentials(0.05, 1.0) / 2.0**31
    wanted = [math.exp(-0.05 * difference) for difference in range(256)]
    np.testing.assert_allclose(table, wanted, atol=1e-6)


def test_exponentials_beyond_the_integer_bits_are_zero() -> None:
    table = exponentials(1.0, 1.0)
    assert table[15] > 0
    assert not table[16:].any()


ERRORS: dict[str, Any] = {
    "_EXP_EIGHTH": 1895147668 + (1 << 22),
    "_THIRD": 715827883 // 2,
    "_48_OVER_17": 1515870810 // 4,
    "_MINUS_32_OVER_17": -1010580540 // 4,
    "_ONE": (1 << 31) - (1 << 25),
    "_SUM_BITS": 24,
    "_POWERS": (1672461947, 1302514674, 790015084 - (1 << 24), 290630308, 39332535, 720401, 242),
}


@pytest.mark.parametrize("constant", ERRORS)
def test_an_error_in_a_constant_is_seen(constant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_softmax, constant, ERRORS[constant])
    assert different() > 0
