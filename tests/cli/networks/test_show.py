"""`vta show`, and the error of `vta run` for models without operators that can run on the
machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta import cli

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
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DynamicQuantizeLinear", ["w"], ["wq", "ws", "wz"]),
        helper.make_node("MatMulInteger", ["q", "wq", "z", "wz"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    return saved(folder / "dynamic.onnx", nodes)


@pytest.mark.parametrize(
    ("make", "what", "on_machine"),
    [
        (float_model, "is a float model", 0),
        (dynamic_model, "is quantized dynamically, with scales", 12),
    ],
)
def test_a_model_without_scales_runs_only_if_that_is_asked_for(
    make: object, what: str, on_machine: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    model = str(make(tmp_path))
    assert cli.invoke(["run", model]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vta: {model} {what}")
    assert "`vta quantize FLOAT.onnx -o INT8.onnx`" in error
    assert cli.invoke(["run", model, "--allow-host", "--check", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mismatches"] == 0
    assert report["summary"]["layers_on_machine"] == (on_machine > 0)
    assert report["summary"]["macs_on_machine"] == on_machine
    assert report["summary"]["macs_on_host"] == 12 - on_machine
    groups = [item for item in report["summary"]["host"] if "`vta quantize`" in item["advice"]]
    assert sum(item["macs"] for item in groups) == 12 - on_machine
    assert 1 in groups[0]["operators"].values()


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
