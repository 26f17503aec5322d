"""Transposed convolutions as one convolution for all phases, against the float operator. Scales are
powers of two, so that its sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session

Make = Callable[..., Any]

WAYS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 2]},
    {"strides": [2, 3], "pads": [1, 0, 2, 1]},
    {"strides": [3, 1], "dilations": [2, 1], "output_padding": [2, 0]},
    {"strides": [2, 2], "dilations": [1, 3], "pads": [2, 2, 1, 1], "output_padding": [1, 1]},
    {"strides": [2, 2], "group": 2},
    {"strides": [4, 4], "group": 4, "pads": [1, 1, 1, 1]},
]
SIZES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 6), {"strides": [2, 1], "auto_pad": "SAME_UPPER"}),
    ((1, 4, 5, 6), {"strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ((1, 4, 5, 6), {"strides": [1, 3], "auto_pad": "VALID"}),
    ((1, 4, 5, 6), {"strides": [2, 1], "output_shape": [10, 6]}),
    ((1, 4, 9), {"strides": [2]}),
    ((1, 4, 9), {"strides": [3], "pads": [1, 2]}),
    ((1, 4, 9), {"strides": [2], "output_shape": [18]}),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("channelwise", [False, True])
def test_a_transposed_convolution_is_exact(
    qdq: Make, way: dict[str, Any], dtype: Any, channelwise: bool
) -> None:
    low, groups = np.iinfo(dtype).min, way.get("group", 1)
    each = 4 // groups
    graph = qdq((1, 4, 5, 6), dtype).qdq(2**-5, low + 100)
    scale: Any = 2.0 ** -np.arange(5, 5 + each) if channelwise else 2**-6
    zero = 0 if channelwise else 9
    weights = graph.weights(4, each, 3, 2, scale=scale, axis=1, zero=zero)
    bias = graph.constant(graph.rng.integers(-40, 40, 4) * 2.0**-5, np.float32)
    graph.node("ConvTranspose", weights, bias, **way).node("Relu").qdq(2**-2, low + 4)
    model, x = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        on_host = {layer.operator for layer in session.layers if layer.placed_on == "host"}
        assert on_host <= {"QuantizeLinear", "DequantizeLinear", "Reshape", "layout"}
        assert session.report()["summary"]["share_on_machine"] == 1
    assert report.histogram == {}
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(report.outputs["y"], want)
    assert np.unique(want).size > 3


@pytest.mark.parametrize(("shape", "way"), SIZES)
def test_sizes_said_otherwise_and_sequences_are_exact(
    qdq: Make, shape: tuple[int, ...], way: dict[str, Any]
) -> None:
    graph = qdq(shape).qdq(2**-5, 100)
    weights = graph.weights(4, 5, *[3, 2][: len(shape) - 2], scale=2**-6, axis=1)
    graph.node("ConvTranspose", weights, **way).qdq(2**-2, 4)
    model, x = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        assert session.report()["summary"]["share_on_machine"] == 1
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    assert report.histogram == {}
    np.testing.assert_array_equal(report.outputs["y"], want)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("kernel", "pads"), [(1, 0), (3, 1), (3, 0), (3, 2), (3, 3)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_convolution_before_depth_to_space_stores_pixels(
    qdq: Make, mode: str, kernel: int, pads: int, dtype: Any
) -> None:
    """As in super-resolution networks. With more padding than the kernel reaches, the host moves
    the results to their pixels.
    """
    low = np.iinfo(dtype).min
    graph = qdq((1, 4, 5, 6), dtype).qdq(2**-5, low + 100)
    scales = 2.0 ** -np.repeat([5, 6, 7], 4)
    weights = graph.weights(12, 4, kernel, kernel, scale=scales)
    bias = graph.constant(graph.rng.integers(-40, 40, 12) * 2.0**-5, np.float32)
    graph.node("Conv", weights, bias, pads=[pads] * 4).node("Relu")
    graph.node("DepthToSpace", blocksize=2, mode=mode).qdq(2**-2, low + 4)
    model, x = graph.model(), graph.images()
    with Session(model, "tiny-extended") as session:
        report = session.check({"x": x})
        (layer,) = [item for item in session.layers if item.macs_per_run]
        assert layer.macs_per_run == 12 * 4 * kernel**2 * 30 or pads != kernel // 2
    assert layer.operator == ("QLinearConv" if pads == 3 else "QLinearConv+DepthToSpace")
    (want,) = exact_session(model.SerializeToString()).run(None, {"x": x})
    assert report.histogram == {}
    np.testing.assert_array_equal(report.outputs["y"], want)
    assert np.unique(want).size > 3
