"""Layers inside an If that chooses by the open number of images are named, with the remedy."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from amaranth_vta import cli

_TEXT = """<ir_version: 8, opset_import: ["": 17]>
network (float[{images}, 16] x, float[1] a) => (float[n, 16] y)
<float[16, 16] w, float[16, 16] v, int64 zero = {{0}}, int64 one = {{1}}, float[1] half = {{0.5}}>
{{
    sizes = Shape (x)
    images = Gather (sizes, zero)
    single = Equal (images, one)
    positive = Greater (a, half)
    z = If ({condition}) <
        then_branch = one_image () => (float[n, 16] p) {{ p = {operator} (x, w) }},
        else_branch = images () => (float[n, 16] q) {{ q = {operator} (x, v) }}
    >
    y = MatMul (z, w)
}}"""


def quantized(
    tmp_path: Path, images: str, condition: str = "single", operator: str = "MatMul", *options: str
) -> int:
    model = parser.parse_model(_TEXT.format(images=images, condition=condition, operator=operator))
    for item in ("w", "v"):
        values = [((index * 7) % 16 - 7.5) / 8 for index in range(256)]
        del model.graph.input[2:]
        tensor = onnx.helper.make_tensor(item, onnx.TensorProto.FLOAT, (16, 16), values)
        model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "float.onnx")
    paths = [str(tmp_path / "float.onnx"), "-o", str(tmp_path / "int8.onnx")]
    return cli.invoke(["quantize", *paths, "--force", *options])


def test_the_option_of_the_warning_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantized(tmp_path, "batch") == 0
    message = "(If) stay in float, since the condition depends on the number of images, which is"
    error = capsys.readouterr().err
    assert message in error
    assert "; --dim batch=1 quantizes them" in error
    assert quantized(tmp_path, "batch", "single", "MatMul", "--dim", "batch=1") == 0
    assert "stay in float" not in capsys.readouterr().err


def test_a_dimension_without_a_name_needs_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantized(tmp_path, "?") == 0
    assert "a model with a fixed first dimension of its inputs quantizes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("images", "condition", "operator"),
    [("2", "single", "MatMul"), ("batch", "positive", "MatMul"), ("batch", "single", "Max")],
)
def test_other_branches_are_not_named(
    images: str,
    condition: str,
    operator: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert quantized(tmp_path, images, condition, operator) == 0
    assert "stay in float" not in capsys.readouterr().err
