"""`vta run --check`: comparisons, output, failures, and --allow-rounding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta.cli import invoke
from amaranth_vta.session import comparison, file_comparison
from amaranth_vta.session.file_comparison import FileComparison, LayerDifference, OutputDifference
from tests.support.few_bits import FewBits


@pytest.fixture
def few_bits(tmp_path: Path) -> list[str]:
    """A model file, and inputs for it."""
    form = FewBits(4, 4, classes=10)
    path, inputs = str(tmp_path / "few.onnx"), str(tmp_path / "x.npz")
    onnx.save(form.model(), path)
    np.savez(inputs, x=form.images(4))
    return [path, "--inputs", inputs]


@pytest.fixture
def coarse(tmp_path: Path) -> str:
    """A convolution whose sums have twice the step size of its result, and a bias between two
    steps.
    """
    values: dict[str, Any] = {
        "w": np.array([[127, 5], [3, 127]], np.int8).reshape(2, 2, 1, 1),
        "b": np.full(2, 0.28, np.float32),
        **{
            f"{name}_s": np.array(s, np.float32) for name, s in (("x", 0.4), ("w", 0.5), ("y", 0.1))
        },
        "zero": np.array(0, np.int8),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "x_s", "zero"], ["x_q"]),
            helper.make_node("DequantizeLinear", ["x_q", "x_s", "zero"], ["x_r"]),
            helper.make_node("DequantizeLinear", ["w", "w_s", "zero"], ["w_r"]),
            helper.make_node("Conv", ["x_r", "w_r", "b"], ["p"], "product"),
            helper.make_node("QuantizeLinear", ["p", "y_s", "zero"], ["y"]),
        ],
        "coarse",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [1, 2, 3, 3])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    path = tmp_path / "coarse.onnx"
    opset = helper.make_opsetid("", 13)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return str(path)


def report(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert invoke(["run", *arguments, "--json", "-"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_check_says_what_it_compared_with_what(
    few_bits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", *few_bits, "--check"]) == 0
    out = capsys.readouterr().out
    assert "0 of 40 output elements differ from the network in canonical form" in out
    assert "The file itself, without optimizations: " in out
    assert "the same greatest element in 4 of 4 samples" in out
    assert "Its layers, each run on the file's tensors: 7 tensors" in out
    assert "default session" not in out
    assert invoke(["run", *few_bits, "--check", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "The file in a default session, which optimizes: " in out


def test_the_figures_are_in_the_json(
    few_bits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(capsys, 0, *few_bits)["file"] is None
    found = report(capsys, 0, *few_bits, "--check")["file"]
    (output,) = found["outputs"].values()
    assert output.keys() == {"of_range", "steps", "same_class", "samples", "limit"}
    assert output["same_class"] == output["samples"] == 4
    assert len(found["layers"]) == 7
    assert all(layer["bound"] < 1 / 64 for layer in found["layers"].values())
    assert found["ok"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"outputs": {"y": OutputDifference(0.33, 5, 3, 4)}},
            "y differs by at most 33.00% of its range (5 steps); the same greatest element in 3 of "
            "4 samples; the limit is 25%, or 2 steps",
        ),
        (
            {"layers": {"t": LayerDifference(1, 0.9, 0.01)}},
            "t is up to 0.900 steps from what the file rounds; the limit is 0.526",
        ),
        ({"layers": {"t": LayerDifference(3, None, 0.0)}}, "t differs by 3 steps"),
    ],
)
def test_check_fails_if_results_are_far_from_the_files(
    few_bits: list[str],
    change: dict[str, Any],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = file_comparison.compare_with_file

    def wrong(*arguments: Any) -> FileComparison:
        return replace(right(*arguments), **change)

    monkeypatch.setattr(comparison, "compare_with_file", wrong)
    assert invoke(["run", *few_bits, "--check"]) == 1
    out = capsys.readouterr().out
    assert "0 of 40 output elements differ" in out
    assert text in out


def test_rounding_that_moves_results_too_far_is_left_to_the_host(
    coarse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = report(capsys, 0, coarse, "--check")
    reasons = {layer["operator"]: layer["reason"] for layer in whole["layers"] if layer["reason"]}
    assert reasons["Add"] == (
        "of product, rounding its bias to steps of the sums could move results by 0.8 steps "
        "(--allow-rounding)"
    )
    assert whole["summary"]["share_on_machine"] == 1
    (group,) = [item for item in whole["summary"]["host"] if "Add" in item["operators"]]
    assert group["reason"] == "biases whose rounding could move results by more than half a step"
    allowed = report(capsys, 0, coarse, "--check", "--allow-rounding")
    assert {layer["operator"] for layer in allowed["layers"]} == {"QuantizeLinear", "QLinearConv"}
    assert allowed["file"]["layers"]["y"]["bound"] == pytest.approx(0.8, abs=0.01)


def test_the_option_is_for_what_is_compiled(
    coarse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = str(tmp_path / "coarse.vta")
    assert invoke(["compile", coarse, "-o", compiled, "--allow-rounding"]) == 0
    assert "1 layer on the machine, 1 operator on the host" in capsys.readouterr().out
    assert invoke(["run", compiled, "--allow-rounding"]) == 2
    assert "--allow-rounding is for `vta compile`" in capsys.readouterr().err
    assert invoke(["show", coarse, "--after", "canonical", "--allow-rounding"]) == 0
    assert "QLinearConv" in capsys.readouterr().out
    assert invoke(["bench", "gemm", "--allow-rounding"]) == 2
    assert "--allow-rounding is for networks" in capsys.readouterr().err
