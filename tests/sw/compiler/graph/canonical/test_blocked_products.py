"""Products by weights with a scale per block are stacks of integer products."""

from __future__ import annotations

from collections import Counter
from functools import partial

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session
from amaranth_vta.sw.runtime.network.onnx_runtime import default_session
from tests.support.transformer_files import (
    Feeds,
    Graph,
    Linear,
    four_bit_dense,
    generative,
    held,
    in_float16,
    packed_dense,
    quantized_dense,
    single,
)

INPUTS, OUTPUTS = 72, 48


def after_quantization(linear: Linear) -> Linear:
    """``linear`` after a product whose result is quantized."""

    def made(g: Graph, x: str, rows: int, columns: int) -> str:
        return linear(g, held(g, quantized_dense(g, x, rows, rows)), rows, columns)

    return made


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(2, 32), (4, 16), (4, 128), (8, 32)])
@pytest.mark.parametrize("is_held", [False, True])
def test_packed_weights_are_on_the_machine(
    bits: int, block: int, zero_points: bool, opset: int, is_held: bool
) -> None:
    level = 0 if is_held else 4
    plain = partial(packed_dense, bits=bits, block=block, level=level, zero_points=zero_points)
    model, feeds = single(after_quantization(plain) if is_held else plain, INPUTS, opset)
    assert_exact_on_the_machine(model, feeds)


def assert_exact_on_the_machine(model: onnx.ModelProto, feeds: Feeds) -> None:
    """Up to rounding in float32."""
    with Session(model, "pynq-extended") as session:
        report = session.check(feeds)
        assert summary(session.layers)["share_on_machine"] == 1
    assert report.mismatches == 0
    assert report.file is not None
    (output,) = report.file.outputs.values()
    assert output.of_range < 1e-6


def test_sums_match_the_definition() -> None:
    """Compared with NumPy in float64, which unpacks the bytes itself."""
    model, feeds = single(partial(packed_dense, bits=4, block=16), INPUTS)
    with Session(model, "pynq-extended") as session:
        (got,) = session.run(feeds).values()
    x = feeds["x"].astype(np.float64).reshape(-1, INPUTS)
    padded = np.pad(x, ((0, 0), (0, -INPUTS % 16))).reshape(len(x), -1, 16)
    steps = np.abs(padded).max(axis=2, keepdims=True) / 127
    held = np.rint(padded / steps) * steps
    packed, scales, zeros = (numpy_helper.to_array(item) for item in model.graph.initializer)
    wanted = np.zeros((len(x), OUTPUTS))
    for column in range(OUTPUTS):
        for block in range(padded.shape[1]):
            zero = zeros.reshape(OUTPUTS, -1)[column, block // 2] >> 4 * (block % 2) & 15
            bytes_of_block = packed[column, block]
            weights = np.ravel(np.column_stack([bytes_of_block & 15, bytes_of_block >> 4]))
            scale = float(scales.reshape(OUTPUTS, -1)[column, block])
            wanted[:, column] += held[:, block] @ (weights.astype(int) - int(zero)) * scale
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", [8, 24, 64])
def test_blockwise_dequantized_weights_are_on_the_machine(block: int) -> None:
    model, feeds = single(partial(four_bit_dense, block=block), INPUTS, 21)
    with Session(model, "pynq-extended") as session:
        assert session.check(feeds).ok
        assert summary(session.layers)["share_on_machine"] == 1


@pytest.mark.parametrize("dtype", [np.dtype(np.int8), np.dtype(ml_dtypes.int4)])
@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_transposed_weights_in_blocks(operator: str, dtype: np.dtype) -> None:
    """With a scale and a zero point per block of 16 inputs."""
    g, blocks = Graph(), (OUTPUTS, -(-INPUTS // 16))
    limits = ml_dtypes.iinfo(dtype)
    weights, zeros = (
        g.constant(g.rng.integers(limits.min, limits.max + 1, shape).astype(dtype))
        for shape in ((OUTPUTS, INPUTS), blocks)
    )
    scales = g.constant(g.rng.uniform(0.01, 0.03, blocks).astype(np.float32))
    real = g.add("DequantizeLinear", weights, scales, zeros, axis=1, block_size=16)
    x = held(g, g.input("x", g.normal(3, INPUTS)))
    if operator == "Gemm":
        result = g.add("Gemm", x, real, g.constant(g.normal(OUTPUTS)), transB=1)
    else:
        result = g.add("MatMul", x, g.add("Transpose", real, perm=[1, 0]))
    g.output(result)
    assert_exact_on_the_machine(*g.made(21))


@pytest.mark.parametrize("block", [16, 32])
def test_padding_of_the_last_block_is_not_counted(block: int) -> None:
    model, feeds = single(partial(packed_dense, block=block), INPUTS)
    with Session(model, "pynq-extended") as session:
        session.run(feeds)
        assert session.macs == feeds["x"].size * OUTPUTS


def test_products_of_one_tensor_share_its_blocks() -> None:
    """Queries, keys and values are products of the same rows, and so are both halves of SwiGLU."""
    model, feeds = generative(packed_dense)
    with Session(model, "pynq-extended") as session:
        assert session.check(feeds).ok
        operators = Counter(layer.operator for layer in session.layers)
    assert operators["MatMulInteger"] == 7
    assert operators["ReduceMax"] == operators["Round"] == 4


def biased(g: Graph, x: str, rows: int, columns: int) -> str:
    packed = g.constant(g.rng.integers(0, 256, (columns, -(-rows // 32), 16)).astype(np.uint8))
    scales = g.constant(g.rng.uniform(0.02, 0.05, columns * -(-rows // 32)).astype(np.float32))
    how = {"K": rows, "N": columns, "bits": 4, "block_size": 32, "accuracy_level": 4}
    bias = g.constant(g.normal(columns))
    return str(g.add("ms.MatMulNBits", x, packed, scales, "", "", bias, **how))


@pytest.mark.parametrize("linear", [packed_dense, partial(packed_dense, block=16), biased])
def test_products_of_float16_compute_in_float32(linear: Linear) -> None:
    """ONNX Runtime rounds the results of float32 to float16, too."""
    model, feeds = in_float16(*single(linear, INPUTS))
    with Session(model, "pynq-extended") as session:
        (got,) = session.run(feeds).values()
        assert session.check(feeds).mismatches == 0
        assert summary(session.layers)["share_on_machine"] == 1
    (wanted,) = default_session(model.SerializeToString()).run(None, feeds)
    assert got.dtype == wanted.dtype == np.float16
    # The order of float32 additions may move a result to the next float16.
    np.testing.assert_allclose(got, wanted, rtol=2**-10, atol=2**-12)


@pytest.mark.parametrize(("past", "length"), [(11, 1), (0, 7)])
def test_a_decoder_of_float16(past: int, length: int) -> None:
    """Compared with ONNX Runtime's default session: without optimizations, version 1.31 reads zeros
    in place of the last product of this file, unless that is an output too."""
    model, feeds = in_float16(*generative(packed_dense, past, length))
    with Session(model, "pynq-extended") as session:
        outputs = session.run(feeds)
        assert session.check(feeds).mismatches == 0
        share = summary(session.layers)["share_on_machine"]
    assert share is not None
    assert share > 0.9
    expected = default_session(model.SerializeToString()).run(list(outputs), feeds)
    for value, wanted in zip(outputs.values(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=0.01 * np.ptp(wanted.astype("f4")))


def in_float(linear: Linear) -> tuple[onnx.ModelProto, Feeds]:
    """``linear`` of an input in float, without quantization."""
    return single(linear, INPUTS)


def with_float_zero_points() -> tuple[onnx.ModelProto, Feeds]:
    model, feeds = single(packed_dense, INPUTS)
    points = model.graph.initializer[2]
    points.CopyFrom(numpy_helper.from_array(np.full(OUTPUTS * 3, 7.5, np.float32), points.name))
    return model, feeds


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            partial(in_float, partial(packed_dense, level=0)),
            "its first factor is in float, and accuracy_level 0 keeps it so",
        ),
        (
            lambda: in_float16(*in_float(partial(packed_dense, level=0))),
            "its first factor is in float, and accuracy_level 0 keeps it so",
        ),
        (with_float_zero_points, "its zero points are no constant integers"),
    ],
)
def test_other_products_are_the_hosts(make: object, reason: str) -> None:
    assert callable(make)
    model, feeds = make()
    with Session(model, "pynq-extended") as session:
        assert session.check(feeds).ok
        assert [layer.reason for layer in session.layers] == [reason]
