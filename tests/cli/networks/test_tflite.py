"""Commands take TensorFlow Lite files where they take ONNX models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.explore.exploration import read_networks
from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.runtime.network.model_error import ModelError
from tests.support.damaged_tflite import small_tflite

CONFIG = ("--config", "tiny-extended")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tflite") / "small.tflite"
    path.write_bytes(small_tflite(keeps_state=False))
    return str(path)


@pytest.fixture
def stateful(tmp_path: Path) -> str:
    path = tmp_path / "state.tflite"
    path.write_bytes(small_tflite(keeps_state=True))
    return str(path)


def test_a_run_is_checked_with_the_reference_kernels(
    small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", small, *CONFIG, "--device", "functional", "--check"]) == 0
    text = capsys.readouterr().out
    assert "TensorFlow Lite's reference kernels: 0 of 5 output elements differ" in text


def test_a_compiled_network_runs_without_the_file(
    stateful: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = str(tmp_path / "state.vta")
    assert invoke(["compile", stateful, *CONFIG, "-o", compiled]) == 0
    Path(stateful).unlink()
    assert invoke(["run", compiled, "--device", "functional"]) == 0
    assert "layers on the machine" in capsys.readouterr().out


def test_show_and_lower_print_the_layers(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["show", small, *CONFIG]) == 0
    assert "fully_connected_9 (QLinearConv)" in capsys.readouterr().out
    assert invoke(["lower", small, *CONFIG, "--layer", "fully_connected_9"]) == 0
    assert "# instructions" in capsys.readouterr().out


def test_an_exploration_reads_the_file_and_its_conversion(stateful: str) -> None:
    found = read_networks(SimpleNamespace(networks=(stateful,)))  # type: ignore[arg-type]
    again = read_model(found["state"])
    assert len(Network.from_onnx(again).states) == 1


@pytest.mark.parametrize("without", ["source", "operators"])
def test_a_converted_model_is_converted_anew_from_its_source(stateful: str, without: str) -> None:
    """Nothing checks its operators and variables."""
    model = read_model(stateful)
    kept = [item for item in model.metadata_props if without != "source" or "state" in item.key]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    if without == "source":
        with pytest.raises(ModelError, match="operators of the domain amaranth_vta, and no source"):
            read_model(model.SerializeToString())
        return
    del model.graph.node[:]
    assert read_model(model.SerializeToString()).graph.node


def test_quantize_says_that_the_network_is_quantized(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["quantize", small, "-o", str(tmp_path / "int8.onnx")]) == 2
    assert capsys.readouterr().err == (f"vta: {small} is quantized already; give the float model\n")
