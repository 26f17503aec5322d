"""Networks as PyTorch's and Keras's exporters write them, with the commands of their page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from amaranth_vta.cli import invoke
from tests.support.exported_forms import FORMS


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_network_goes_to_the_machine(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = FORMS[form]()
    onnx.checker.check_model(model, full_check=True)
    path, quantized, inputs = (str(tmp_path / name) for name in ("f.onnx", "q.onnx", "x.npz"))
    onnx.save(model, path)
    (given,) = model.graph.input
    shape = [dim.dim_value or 8 for dim in given.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {given.name: rng.normal(0, 1, shape).astype(np.float32)}
    np.savez(inputs, **arrays)
    assert invoke(["quantize", path, "-o", quantized, "--calibrate", inputs]) == 0
    capsys.readouterr()
    assert invoke(["run", quantized, "--inputs", inputs, "--check", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mismatches"] == 0
    assert report["summary"]["share_on_machine"] == 1
