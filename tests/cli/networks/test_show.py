"""`vta show`, and the error of `vta run` for models without operators that can run on the
machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta import cli
from tests.support.decoders import of_integers

DIGITS = Path(__file__).parents[3] / "examples/digits/digits.onnx"


def saved(path: Path, nodes: list[onnx.NodeProto]) -> Path:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weights],
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def float_model(folder: Path) -> Path:
    return saved(folder / "float.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])])


def dynamic_model(folder: Path) -> Path:
    """A product of integers and one of floats."""
    nodes = [*dynamic_product("i"), helper.make_node("MatMul", ["x", "w"], ["f"])]
    return saved(folder / "dynamic.onnx", [*nodes, helper.make_node("Add", ["i", "f"], ["y"])])


def dynamic_product(result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DynamicQuantizeLinear", ["w"], ["wq", "ws", "wz"]),
        helper.make_node("MatMulInteger", ["q", "wq", "z", "wz"], ["sums"]),
        helper.make_node("Cast", ["sums"], [result], to=TensorProto.FLOAT),
    ]


@pytest.mark.parametrize(
    ("make", "what", "runs", "on_machine", "on_host"),
    [
        (float_model, "is a float model", "nothing of it runs on the machine", 0, 12),
        (
            dynamic_model,
            "is quantized dynamically, with scales",
            "50.0% of its MACs run on the machine",
            12,
            12,
        ),
    ],
)
def test_a_model_without_scales_runs_only_if_that_is_asked_for(
    make: Callable[[Path], Path],
    what: str,
    runs: str,
    on_machine: int,
    on_host: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(make(tmp_path))
    assert cli.invoke(["run", model]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vta: {model} {what}")
    assert runs in error
    assert "`vta quantize FLOAT.onnx -o INT8.onnx`" in error
    assert cli.invoke(["run", model, "--allow-host", "--check", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mismatches"] == 0
    assert report["summary"]["layers_on_machine"] == (on_machine > 0)
    assert report["summary"]["macs_on_machine"] == on_machine
    assert report["summary"]["macs_on_host"] == on_host
    groups = [item for item in report["summary"]["host"] if "`vta quantize`" in item["advice"]]
    assert sum(item["macs"] for item in groups) == on_host
    assert 1 in groups[0]["operators"].values()


def test_a_dynamic_model_with_its_products_on_the_machine_runs_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path / "dynamic.onnx", dynamic_product("y"))
    assert cli.invoke(["run", str(model), "--check"]) == 0
    assert "0 of 3 output elements differ" in capsys.readouterr().out


def test_show_prints_the_graph_after_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["show", str(DIGITS), "--config", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        *("loaded:", "canonical:", "placed:", "planned:")
    ]
    text = "\n".join(lines)
    assert " = QLinearConv(" in text
    assert "  machine  " in text
    assert "because float tensors are the host's" in text
    assert "  to machine   " in text


def test_show_prints_one_step_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["show", str(DIGITS), "--config", "tiny", "--after", "placed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["placed:"]


def test_show_marks_what_is_known_for_the_tokens_of_a_decoder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(of_integers(16), tmp_path / "decoder.onnx")
    shown = ["show", str(tmp_path / "decoder.onnx"), "--after", "planned"]
    assert cli.invoke([*shown, "--context", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (known,) = [line for line in lines if line.startswith("  known ")]
    assert "cumsum (CumSum)" in known
    (computed,) = [line for line in lines if line.startswith("  host ")]
    assert computed.split() == ["host", "logits_DequantizeLinear", "(DequantizeLinear)"]
