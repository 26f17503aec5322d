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


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--per-tensor"],
        ["--percentile", "99.9"],
        ["--weights", "int4", "--force"],
        ["--integer-only"],
    ],
)
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


@pytest.mark.parametrize("other", ["--weights int4", "--integer-only"])
def test_powers_of_two_exclude_other_options(
    other: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "int8.onnx"
    options = [*other.split(), "--power-of-two"]
    assert cli.invoke(["quantize", str(model), "-o", str(result), *options]) == 2
    assert f"{other} and --power-of-two exclude each other" in capsys.readouterr().err
    assert not result.exists()


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
    """The scale of the input follows from the maximum of the samples."""
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


def test_open_sizes_become_those_of_the_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, result, samples = (str(tmp_path / name) for name in ("f.onnx", "q.onnx", "x.npz"))
    any_size = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3, height, width] x) => (float[n, 4, height, width] y)
        <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = Conv(x, w) }
    """)
    onnx.save(any_size, model)
    arguments = ["quantize", model, "-o", result]
    assert cli.invoke(arguments) == 2
    options = "--dim height=SIZE --dim width=SIZE"
    assert f"dimension 2 (height) is open; give the sizes of all open dimensions: {options}" in (
        capsys.readouterr().err
    )
    np.savez(samples, x=np.ones((2, 3, 6, 9), np.float32))
    for given in (["--calibrate", samples], ["--dim", "height=6", "--dim", "width=9"]):
        assert cli.invoke([*arguments, *given]) == 0
        assert shape_of(result) == ["n", 3, 6, 9]
        assert cli.invoke(["run", result, "--check"]) == 0


def shape_of(path: str) -> list[str | int]:
    (given,) = onnx.load(path).graph.input
    return [dim.dim_param or dim.dim_value for dim in given.type.tensor_type.shape.dim]


def test_sizes_called_question_mark_are_independent(tmp_path: Path) -> None:
    """PaddlePaddle's exporter gives several open dimensions this name."""
    model, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    unnamed = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[n, 3, h, w] x) => (float[n, 4, h, w] y)
        <float[4, 3, 1, 1] k = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> { y = Conv(x, k) }
    """)
    for item in (*unnamed.graph.input, *unnamed.graph.output):
        for dim in item.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = "?"
    onnx.save(unnamed, model)
    sizes = ["--dim", "x.2=6", "--dim", "x.3=9"]
    assert cli.invoke(["quantize", model, "-o", result, *sizes]) == 0
    assert shape_of(result) == ["?", 3, 6, 9]
    assert cli.invoke(["run", result, "--check"]) == 0


def test_the_bias_of_a_product_may_be_a_row(tmp_path: Path) -> None:
    model, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    dense = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] x) => (float[1, 3] y)
        <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[1, 3] b = {1, -2, 3}>
        { product = MatMul(x, w) y = Add(product, b) }
    """)
    onnx.save(dense, model)
    assert cli.invoke(["quantize", model, "-o", result]) == 0
    assert cli.invoke(["run", result, "--check"]) == 0


def test_averages_and_maxima_over_pixels_are_quantized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means within a normalization are not quantized."""
    model, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    float_model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 5, 6] x) => (float[1, 2, 1, 1] y, float[1, 2, 1, 1] z, float[1, 2, 30] n)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}, int64[3] flat = {1, 2, 30}> {
            c = Conv(x, w)
            t = Tanh(c)
            y = GlobalMaxPool(t)
            z = ReduceMean <axes = [-1, -2]> (t)
            rows = Reshape(c, flat)
            mean = ReduceMean <axes = [2]> (rows)
            n = Sub(rows, mean)
        }
    """)
    onnx.save(float_model, model)
    assert cli.invoke(["quantize", model, "-o", result]) == 0
    capsys.readouterr()
    assert cli.invoke(["run", result, "--check", "--json", "-"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    placed = {layer["operator"]: layer["placed_on"] for layer in layers}
    assert placed["MaxPool"] == "machine"
    assert {layer["name"] for layer in layers if layer["operator"] == "ReduceMean"} == {
        "ReduceMean_mean"
    }
    assert placed["ReduceMean"] == placed["Sub"] == "host"


def test_what_is_quantized_already_is_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "int8.onnx", tmp_path / "again.onnx"
    assert cli.invoke(["quantize", str(model), "-o", str(first)]) == 0
    assert cli.invoke(["quantize", str(first), "-o", str(second)]) == 2
    assert "is quantized already; give the float model" in capsys.readouterr().err


def test_an_input_of_rank_0_takes_one_value_per_sample_or_one_for_all(tmp_path: Path) -> None:
    model, result, samples = (str(tmp_path / name) for name in ("f.onnx", "q.onnx", "x.npz"))
    scaled = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 4, 4] x, int64 rate) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
            c = Conv(x, w) f = Cast <to = 1> (rate) m = Mul(c, f) y = Conv(m, w)
        }
    """)
    onnx.save(scaled, model)
    x = np.random.default_rng(1).normal(0, 1, (4, 2, 4, 4)).astype(np.float32)
    for rate in (np.arange(1, 5), np.array(3), np.arange(1, 5).reshape(4, 1)):
        np.savez(samples, x=x, rate=rate)
        assert cli.invoke(["quantize", model, "-o", result, "--calibrate", samples]) == 0
        if rate.ndim < 2:
            assert cli.invoke(["run", result, "--inputs", samples, "--check"]) == 0
    # The scale of the product covers all samples.
    np.savez(samples, x=x, rate=np.array([1, 1, 1, 50]))
    assert cli.invoke(["quantize", model, "-o", result, "--calibrate", samples]) == 0
    greatest = max(item.item() for item in scales(Path(result)) if item.size == 1)
    np.savez(samples, x=x, rate=np.array(1))
    assert cli.invoke(["quantize", model, "-o", result, "--calibrate", samples]) == 0
    assert greatest > 20 * max(item.item() for item in scales(Path(result)) if item.size == 1)


def cancelling(path: Path, offset: float) -> None:
    """Write a network that adds ``offset`` and subtracts it again, which amplifies rounding."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[n, 2, 4, 4] x) => (float[n, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}> {
            [first] c = Conv(x, w)
            [second] s = Add(c, plus)
            turned = Transpose <perm = [0, 1, 3, 2]> (s)
            [third] t = Add(turned, minus)
            [fourth] y = Conv(t, w)
        }
    """)
    for name, sign in (("plus", 1), ("minus", -1)):
        values = np.full((1, 2, 1, 1), sign * offset, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("offset", "code", "decibels"), [(100, 0, "warn"), (20000, 1, "refuse"), (1, 0, "fine")]
)
def test_poor_accuracy_is_a_warning_and_noise_is_refused(
    offset: float,
    code: int,
    decibels: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, result, samples = (tmp_path / name for name in ("f.onnx", "q.onnx", "x.npz"))
    cancelling(model, offset)
    x = np.random.default_rng(2).normal(0, 0.05, (8, 2, 4, 4)).astype(np.float32)
    np.savez(samples, x=x)
    arguments = ["quantize", str(model), "-o", str(result), "--calibrate", str(samples)]
    assert cli.invoke(arguments) == code
    out, err = capsys.readouterr()
    assert result.exists() == (code == 0)
    if decibels == "fine":
        assert err == ""
        return
    assert "vta: warning: below 10 dB, in the order of the graph: t (Add, " in err
    assert "--percentile 99.9" in err
    assert "--in-float t" in err
    assert "--calibrate" not in err
    if code == 0:
        return
    assert f"{result} was not written" in err
    assert "Next" not in out
    assert cli.invoke([*arguments, "--force"]) == 0
    assert result.exists()
    capsys.readouterr()
    assert cli.invoke([*arguments, "--in-float", "third", "--in-float", "s"]) == 0
    assert capsys.readouterr().err == ""


def test_what_is_zero_in_all_samples_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    dead = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}, float[2] b = {-99, -99}> {
            c = Conv(x, w, b) r = Relu(c) d = Conv(x, w) y = Add(r, d)
        }
    """)
    onnx.save(dead, model)
    assert cli.invoke(["quantize", model, "-o", result]) == 0
    err = capsys.readouterr().err
    assert err == (
        "vta: warning: zero in all samples, so that the scale is a guess: r. Add samples in "
        "which it is not zero\n"
    )
    assert cli.invoke(["run", result, "--check"]) == 0


def test_names_of_the_model_that_the_quantizer_would_use_are_kept(tmp_path: Path) -> None:
    """The quantizer calls the second copy of the bias b0."""
    model, result = str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx")
    shared = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float[2, 2, 1, 1] w = {1, -2, 3, 4}, float[2] b = {1, -1}>
        { b0 = Conv(x, w, b) t = Sigmoid(b0) y = Conv(t, w, b) }
    """)
    onnx.save(shared, model)
    assert cli.invoke(["quantize", model, "-o", result]) == 0
    assert cli.invoke(["run", result, "--check"]) == 0


def test_functions_of_rows_in_float_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[16, 16] x) => (float[16, 16] y)
        { a = MatMul(x, w)  columns = Softmax <axis = 0> (a)  b = MatMul(columns, w)  y = Relu(b) }
        """
    )
    values = np.random.default_rng(6).normal(0, 1, (16, 16)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(values, "w"))
    file = tmp_path / "columns.onnx"
    onnx.save(model, file)
    assert cli.invoke(["quantize", str(file), "-o", str(tmp_path / "q"), "--integer-only"]) == 0
    assert (
        "vta: warning: in float, so that the host computes them: columns. The documentation on "
        "exporting names the forms that --integer-only replaces\n"
    ) in capsys.readouterr().err
