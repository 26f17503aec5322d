"""`vta quantize`: a float model that then runs on the machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from amaranth_vta import cli
from tests.support.quantized_files import Case

CASE = Case(3, "images", (1, 5, 9, 8), 17, (("conv", 1), ("activation", 9), ("classifier", 0)))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "float.onnx"
    onnx.save(CASE.float_model(), path)
    return path


def scales(path: Path) -> list[np.ndarray]:
    model = onnx.load(path)
    named = {node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    found = [numpy_helper.to_array(i) for i in model.graph.initializer if i.name in named]
    return [item.reshape(-1) for item in found]


@pytest.mark.parametrize("options", [[], ["--per-tensor"], ["--percentile", "99.9"]])
def test_what_is_quantized_runs_on_the_machine(
    options: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "int8.onnx"
    assert cli.invoke(["quantize", str(model), "-o", str(result), *options]) == 0
    text = capsys.readouterr().out
    assert "Calibrated with random inputs" in text
    assert text.splitlines()[-1] == f"Next: vta run {result} --check"
    assert cli.invoke(["run", str(result), "--check", "--json", "-"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["share_on_machine"] == 1
    one_each = all(item.size == 1 for item in scales(result))
    assert one_each == (options == ["--per-tensor"])


def test_powers_of_two_are_for_the_base_machine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "int8.onnx"
    assert cli.invoke(["quantize", str(model), "-o", str(result), "--power-of-two"]) == 0
    assert f"vta run {result} --config pynq --check" in capsys.readouterr().out
    for scale in scales(result):
        np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)


@pytest.mark.parametrize("form", ["file", "folder", "arrays"])
def test_calibration_is_with_the_inputs_given(
    form: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scale of the input follows from the greatest value of the samples."""
    given = tmp_path / "given"
    given.mkdir()
    images = np.linspace(-4, 4, 6 * 5 * 9 * 8, dtype=np.float32).reshape(6, 5, 9, 8)
    if form == "arrays":
        for number, image in enumerate(images):
            np.save(given / f"{number}.npy", image)
    else:
        np.savez(given / "some.npz", x=images)
    path = given / "some.npz" if form == "file" else given
    result = tmp_path / "int8.onnx"
    arguments = ["quantize", str(model), "-o", str(result), "--calibrate", str(path)]
    assert cli.invoke(arguments) == 0
    assert "random" not in capsys.readouterr().out
    assert any(np.allclose(scale, 8 / 255) for scale in scales(result))


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"y": np.zeros((2, 5, 9, 8))}, "has no array for the input x"),
        ({"x": np.zeros((2, 4, 9, 8))}, r"x has shape [2, 4, 9, 8], not [1, 5, 9, 8]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    arrays: dict[str, np.ndarray],
    what: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, result = tmp_path / "bad.npz", tmp_path / "int8.onnx"
    np.savez(path, allow_pickle=False, **arrays)
    arguments = ["quantize", str(model), "-o", str(result), "--calibrate", str(path)]
    assert cli.invoke(arguments) == 2
    assert what in capsys.readouterr().err
    assert not result.exists()


def test_what_is_quantized_already_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "int8.onnx", tmp_path / "again.onnx"
    assert cli.invoke(["quantize", str(model), "-o", str(first)]) == 0
    assert cli.invoke(["quantize", str(first), "-o", str(second)]) == 2
    assert "is quantized already; give the float model" in capsys.readouterr().err
