"""The functions of vta_runtime.c, one by one, against NumPy, ONNX Runtime and LiteRT."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import amaranth_vta
from amaranth_vta.export.host_operators import HostOperator, host_operators
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.reference.header import header
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sw.runtime.network.factors import FactorBias, FactorWeights
from amaranth_vta.sw.runtime.network.network_program import RunHost
from amaranth_vta.sw.runtime.network.packing import Packing, Window
from amaranth_vta.sw.runtime.network.tile_layout import TileLayout
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from tests.support.exported_c import DONE, WRONG_INDEX, compile_c, pointer
from tests.support.seeds import each_seed
from tests.support.tflite_files import DrawnNetwork, case

SOURCES = Path(amaranth_vta.__path__[0]) / "export"


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("runtime")
    (folder / "vta.h").write_text(header(PRESETS["tiny"]))
    return compile_c([SOURCES / "vta_runtime.c"], folder / "runtime.so", "-O2", f"-I{folder}")


class Tensor(ctypes.Structure):
    """`vta_tensor`."""

    _fields_ = [
        ("sizes", ctypes.c_uint32 * 6),
        ("kernel", ctypes.c_uint32 * 2),
        ("strides", ctypes.c_uint32 * 2),
        ("dilations", ctypes.c_uint32 * 2),
        ("pads", ctypes.c_uint32 * 4),
        ("distances", ctypes.c_uint32 * 4),
        ("pad", ctypes.c_int8),
        ("flip", ctypes.c_uint8),
    ]


def test_tensors_are_packed_and_unpacked_as_by_the_session(c: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, channels = rng.integers(1, 4), rng.integers(1, 9)
        height, width = (int(item) for item in rng.integers(5, 9, 2))
        layout = TileLayout(int(rng.choice([1, 2, 4])), int(rng.choice([4, 8])), "int8")
        pairs = [tuple(rng.integers(1, high, 2).tolist()) for high in (4, 3, 3)]
        window = Window(*pairs, tuple(rng.integers(0, 3, 4).tolist()))
        packing = Packing(window, int(rng.integers(-128, 128)))
        image = (int(n), int(channels), height, width)
        flip, dtype = (0x80, np.uint8) if rng.random() < 0.5 else (0, np.int8)
        values = rng.integers(0, 256, image).astype(np.uint8).view(dtype)
        sizes = (*image, layout.batch, layout.block)
        if rng.random() < 0.5:  # channels last in memory
            values = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        table = Tensor(sizes, *pairs, window.pads, values.strides, packing.value, flip)
        packed = TiledTensor("x", image, layout, packing).pack(values)
        found = np.full(packed.size, 0xAA, np.uint8)
        c.vta_pack(ctypes.byref(table), pointer(values), pointer(found))
        np.testing.assert_array_equal(found, packed.view(np.uint8).reshape(-1))
        plain = Tensor(sizes, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), values.strides, 0, flip)
        tiles = TiledTensor("x", image, layout).pack(values)
        back = np.zeros(image, dtype)
        c.vta_unpack(ctypes.byref(plain), pointer(tiles), pointer(back))
        np.testing.assert_array_equal(back, values)


class Factor(ctypes.Structure):
    """`vta_factor`."""

    _fields_ = [
        ("sizes", ctypes.c_uint32 * 6),
        ("distances", ctypes.c_uint32 * 3),
        ("zero", ctypes.c_int16),
        ("flip", ctypes.c_uint8),
        ("terms", ctypes.c_uint32),
        ("rows", ctypes.c_uint32),
        ("multiplier", ctypes.c_int32),
        ("added", ctypes.c_int32),
        ("rest_count", ctypes.c_uint32),
        ("rest", ctypes.c_void_p),
    ]


def test_second_factors_are_packed_as_by_the_session(c: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        groups, inputs, outputs, rows = (int(item) for item in rng.integers(1, 20, 4))
        batch, block = int(rng.choice([1, 2, 4])), int(rng.choice([4, 8]))
        image = (groups, inputs, outputs, 1)
        flip, dtype = (0x80, np.uint8) if rng.random() < 0.5 else (0, np.int8)
        values = rng.integers(0, 256, image).astype(np.uint8).view(dtype)
        if rng.random() < 0.5:  # transposed in memory
            values = np.ascontiguousarray(values.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        zero, terms = int(rng.integers(-128, 128)), int(rng.integers(2, 4))
        rest = rng.integers(-(2**31), 2**31, rng.integers(0, 4)).astype(np.int32)
        first, added = int(rng.integers(-128, 128)), int(rng.integers(-(2**31), 2**31))
        weights = FactorWeights(zero, terms, block)
        bias = FactorBias(first, zero, added, tuple(rest.tolist()), rows, block)
        for packing, layout, function in (
            (weights, TileLayout(block, batch, "int8"), c.vta_pack_factor),
            (bias, TileLayout(batch, block, "int32"), c.vta_pack_factor_bias),
        ):
            packed = TiledTensor("x", image, layout, packing).pack(values).view(np.uint8)
            padded = -(-outputs // block) * block
            sizes = (groups, inputs, outputs, padded, layout.batch, layout.block)
            constants = (terms, rows, -first, added, rest.size, rest.ctypes.data)
            table = Factor(sizes, values.strides[:3], zero, flip, *constants)
            found = np.full(packed.size, 0xAA, np.uint8)
            function(ctypes.byref(table), pointer(values), pointer(found))
            np.testing.assert_array_equal(found, packed.reshape(-1))


def run_onnx(kind: str, x: np.ndarray, **attributes: Any) -> np.ndarray:
    graph = helper.make_graph(
        [helper.make_node(kind, ["x"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if kind == "ArgMax":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.1, 3e-39])
def test_floats_are_quantized_to_the_nearest_integer(
    dtype: Any, scale: float, c: ctypes.CDLL
) -> None:
    """Ties, their neighbours, and any bits; NaN has no nearest integer."""
    rng = np.random.default_rng(0)
    ties = np.arange(-2100, 2100, dtype=np.float32) * np.float32(scale / 2)
    random = rng.integers(0, 1 << 32, 20_000, np.uint32).view(np.float32)
    around = [np.nextafter(ties, np.float32(way * np.inf)) for way in (-1, 1)]
    x = np.concatenate([ties, *around, random[~np.isnan(random)]])
    low, zero = np.iinfo(dtype).min, 3
    with np.errstate(over="ignore"):
        quotient = (x / np.float32(scale)).astype(np.float64)
    away = np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)
    for function, nearest in ((c.vta_quantize, np.rint(quotient)), (c.vta_quantize_away, away)):
        found = np.zeros(x.shape, dtype)
        function(pointer(x), pointer(found), x.size, ctypes.c_float(scale), zero, int(low))
        np.testing.assert_array_equal(found, np.clip(nearest + zero, low, low + 255))


def test_softmax_is_within_its_bound(c: ctypes.CDLL) -> None:
    """The error is below 2^-22, and of small results below 2^-17 of the result. Large differences
    are rounded before the exponential, by ONNX Runtime, too."""
    rng = np.random.default_rng(0)
    for count, spread in ((2, 1.0), (10, 5.0), (1000, 20.0), (7, 0.0), (12, 200.0)):
        x = rng.normal(0, spread, (20, count)).astype(np.float32)
        found = np.zeros_like(x)
        c.vta_softmax(pointer(x), pointer(found), 20, count, 1)
        powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        exact = powers / powers.sum(1, keepdims=True)
        for result in (found, run_onnx("Softmax", x, axis=1)):
            assert np.abs(result - exact).max() < 2.0**-22
            np.testing.assert_allclose(result, exact, rtol=2.0**-17, atol=2.0**-120)


@pytest.mark.parametrize("count", [1, 5, 64, 1000])
@pytest.mark.parametrize("mean", [0, 100])
def test_layer_norm_has_a_bounded_error(count: int, mean: float, c: ctypes.CDLL) -> None:
    rng = np.random.default_rng(count)
    x, scale, bias = (
        rng.normal(mean, 1, shape).astype(np.float32) for shape in ((20, count), count, count)
    )
    x *= 10.0 ** rng.integers(-6, 6, (20, 1))
    found, epsilon = np.zeros_like(x), 1e-5
    given = (pointer(x), pointer(found), 20, count, pointer(scale), pointer(bias))
    c.vta_layer_norm(*given, ctypes.c_float(epsilon))
    exact = x.astype(np.float64) - x.mean(1, dtype=np.float64, keepdims=True)
    exact /= np.sqrt((exact**2).mean(1, keepdims=True) + np.float32(epsilon))
    bound = 2.0**-22 * (np.abs(exact * scale) + np.abs(bias))
    assert (np.abs(found - (exact * scale + bias)) <= bound).all()


def test_gather_counts_from_the_end_and_refuses_other_indices(c: ctypes.CDLL) -> None:
    table = np.arange(2 * 5 * 3, dtype=np.int16).reshape(2, 5, 3)
    for indices, wrong in (
        ([4, 0, -5, -1], False),
        ([5], True),
        ([0, -6], True),
        ([1 << 32], True),
    ):
        at = np.array(indices, np.int64)
        found = np.zeros((2, len(at), 3), np.int16)
        given = (pointer(table), pointer(at), pointer(found), 2, 5, 3 * 2, len(at))
        assert c.vta_gather(*given) == (WRONG_INDEX if wrong else DONE)
        if not wrong:
            np.testing.assert_array_equal(found, table.take(at, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
@pytest.mark.parametrize("last", [0, 1])
def test_argmax_takes_the_first_or_the_last(dtype: Any, last: int, c: ctypes.CDLL) -> None:
    suffix = "" if dtype is np.float32 else f"_{np.dtype(dtype)}"
    x = np.random.default_rng(0).integers(-3, 3, (4, 30, 5)).astype(np.int8).astype(dtype)
    found = np.zeros((4, 5), np.int64)
    getattr(c, f"vta_argmax{suffix}")(pointer(x), pointer(found), 4, 30, 5, last)
    wanted = run_onnx("ArgMax", x, axis=1, keepdims=0, select_last_index=last)
    np.testing.assert_array_equal(found, wanted)


def softmax_of(model: bytes) -> HostOperator:
    steps = compile_network(model).program.steps
    listed, _ = host_operators([step for step in steps if isinstance(step, RunHost)])
    (found,) = [item for operators in listed for item in operators if item.table is not None]
    return found


@each_seed(range(10), daily=4)
def test_softmax_of_integers_equals_tensorflow_lite(c: ctypes.CDLL, seed: int) -> None:
    net = DrawnNetwork(seed, "uint8" if seed % 3 == 2 else "int8")
    x = net.given(net.integer(1, 40), net.choose.choice((1, 2, 12, 300)))
    drawn = case(net, "SOFTMAX", "", [net.apply("SOFTMAX", x, beta=2.0 ** net.integer(-1, 2))])
    table = softmax_of(drawn.model).table
    assert table is not None
    for (given,), (wanted,) in zip(drawn.runs, drawn.wanted, strict=True):
        found, low = np.zeros_like(given), int(np.iinfo(given.dtype).min)
        exponentials = pointer(table.astype(np.int32))
        c.vta_softmax_8bit(pointer(given), pointer(found), *given.shape, exponentials, low)
        np.testing.assert_array_equal(found, wanted)
