"""Open dimensions are rounded up to buckets where padding cannot change results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_vta import cli
from amaranth_vta.session import InputError, Session
from amaranth_vta.sw.runtime.array_file import write_arrays
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.onnx_runtime import exact_session
from tests.support.transformer_files import (
    EACH,
    HEADS,
    WIDE,
    Feeds,
    Graph,
    generative,
    held,
    quantized_dense,
)

LENGTHS = (5, 12, 16, 17)


def encoder(
    length: int = 12, hidden: float | None = -10000.0, hold: bool = True
) -> tuple[onnx.ModelProto, Feeds]:
    """Attention over ``sequence`` tokens, whose mask adds ``hidden`` to scores, if it is not None;
    with ``hold`` the scores are quantized before."""
    g = Graph()
    ids = g.input("ids", g.rng.integers(0, 9, (1, length)), 1, "sequence")
    x = g.add("Gather", g.constant(g.normal(9, WIDE)), ids)
    query, key, value = (_heads(g, quantized_dense(g, x, WIDE, WIDE)) for _ in range(3))
    turned = g.add("Transpose", held(g, key), perm=[0, 1, 3, 2])
    scores = g.add("MatMul", held(g, query), turned)
    if hold:
        scores = held(g, g.add("Mul", scores, g.constant(np.float32(EACH**-0.5))))
    if hidden is not None:
        mask = g.input("mask", np.ones((1, length), np.int64), 1, "sequence")
        flags = g.add("Unsqueeze", g.add("Cast", mask, to=TensorProto.FLOAT), g.numbers(1, 2))
        off = g.add("Sub", g.constant(np.float32(1)), flags)
        scores = g.add("Add", scores, g.add("Mul", off, g.constant(np.float32(hidden))))
    parameters = g.constant(np.float32(1 / 255)), g.constant(np.uint8(0))
    shares = g.add("QuantizeLinear", g.add("Softmax", scores, axis=-1), *parameters)
    shares = g.add("DequantizeLinear", shares, *parameters)
    mixed = g.add("Transpose", g.add("MatMul", shares, held(g, value)), perm=[0, 2, 1, 3])
    y = quantized_dense(g, g.add("Reshape", mixed, g.numbers(0, 0, WIDE)), WIDE, WIDE)
    g.output(g.add("Add", x, y), g.add("Gather", y, g.constant(np.int64(0)), axis=1))
    return g.made()


def _heads(g: Graph, x: str) -> str:
    cut = g.add("Reshape", x, g.numbers(0, 0, HEADS, EACH))
    return str(g.add("Transpose", cut, perm=[0, 2, 1, 3]))


def test_padded_runs_equal_runs_of_each_length() -> None:
    model, _ = encoder()
    reference = exact_session(model.SerializeToString())
    with (
        Session(model, "pynq-extended", buckets={"sequence": 16}) as padded,
        Session(model, "pynq-extended") as plain,
    ):
        for length in LENGTHS:
            _, inputs = encoder(length)
            inputs["mask"][0, length // 2] = 0
            outputs, alone = padded.run(inputs), plain.run(inputs)
            expected = reference.run(list(outputs), inputs)
            for name, wanted in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(outputs[name], alone[name])
                np.testing.assert_allclose(outputs[name], wanted, atol=1e-5)
            assert padded.inputs["ids"].shape == (1, -(-length // 16) * 16)
            report = padded.check(inputs)
            assert report.mismatches == 0
            assert {name: item.shape for name, item in report.outputs.items()} == {
                name: item.shape for name, item in outputs.items()
            }


def test_prompts_of_a_decoder_with_attention_as_one_operator_are_padded() -> None:
    """The mask may end with padding of its own."""
    model, _ = generative(quantized_dense, 0, 7, is_open=True)
    buckets = {"sequence": 16, "total": 16}
    with (
        Session(model, "pynq-extended", buckets=buckets) as padded,
        Session(model, "pynq-extended") as plain,
    ):
        for length, hidden in ((7, 0), (12, 3)):
            _, inputs = generative(quantized_dense, 0, length, is_open=True)
            inputs["attention_mask"][0, length - hidden :] = 0
            outputs, alone = padded.run(inputs), plain.run(inputs)
            for name, values in alone.items():
                np.testing.assert_array_equal(outputs[name], values)
            assert padded.inputs["input_ids"].shape[1] == 16
            assert padded.check(inputs).ok


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"hidden": None}, r"sequence=12 cannot be rounded up to 16: no mask hides padding from"),
        ({"hidden": -10.0}, "no mask hides padding from"),
        # Scores without a bound may exceed the mask.
        ({"hold": False}, "no mask hides padding from"),
    ],
)
def test_padding_that_would_be_seen_is_refused(how: dict[str, Any], message: str) -> None:
    model, inputs = encoder(**how)
    with (
        Session(model, "pynq-extended", buckets={"sequence": 16}) as session,
        pytest.raises(ModelError, match=message),
    ):
        session.run(inputs)


def test_a_mask_has_zeros_and_ones() -> None:
    model, inputs = encoder()
    inputs["mask"][0, 1] = 2
    with (
        Session(model, "pynq-extended", buckets={"sequence": 16}) as session,
        pytest.raises(InputError, match="input mask has other values than 0 and 1"),
    ):
        session.run(inputs)


def test_a_mask_of_the_lowest_floats_needs_no_bound_of_scores() -> None:
    model, inputs = encoder(hidden=float(np.finfo(np.float32).min), hold=False)
    with Session(model, "pynq-extended", buckets={"sequence": 16}) as session:
        assert session.check(inputs).ok


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({"rows": 16}, "no input has an open dimension rows; open dimensions: sequence"),
        ({"sequence": 0}, "the bucket of the dimension sequence cannot be 0"),
    ],
)
def test_wrong_buckets_are_refused(buckets: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Session(encoder()[0], "pynq-extended", buckets=buckets)


def test_the_command_rounds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, inputs = encoder()
    onnx.save(model, tmp_path / "encoder.onnx")
    with open(tmp_path / "in.npz", "wb") as file:
        write_arrays(file, inputs)
    command = ["run", str(tmp_path / "encoder.onnx"), "--config", "pynq-extended", "--check"]
    command += ["--bucket", "sequence=16"]
    assert cli.invoke(command) == 2
    assert "--bucket pads the arrays of --inputs" in capsys.readouterr().err
    files = ["--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz")]
    assert cli.invoke([*command, *files]) == 0
    outputs = dict(np.load(tmp_path / "out.npz"))
    assert sorted(item.shape for item in outputs.values()) == [(1, 12, WIDE), (1, WIDE)]
