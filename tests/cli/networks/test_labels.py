"""`vta run --labels` and `--float`: accuracy in the text, in JSON and in the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta import cli

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
MODEL, IMAGES = str(DIGITS / "digits.onnx"), str(DIGITS / "images.npz")


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    with np.load(DIGITS / "labels.npz") as file:
        return file["label"]


def test_labels_give_the_accuracy(
    labels: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"npz": DIGITS / "labels.npz", "npy": tmp_path / "l.npy", "text": tmp_path / "l.txt"}
    np.save(files["npy"], labels)
    np.savetxt(files["text"], labels, fmt="%d")
    results = str(tmp_path / "y.npz")
    for path in files.values():
        arguments = ["--inputs", IMAGES, "--labels", str(path), "--outputs", results]
        assert cli.invoke(["run", MODEL, *arguments, "--json", "-"]) == 0
        accuracy = json.loads(capsys.readouterr().out)["accuracy"]
        with np.load(results) as file:
            right = file["logits"].argmax(axis=1) == labels
        assert accuracy["top1"] == right.mean()
        assert 0.9 < accuracy["top1"] < accuracy["top5"] <= 1
        assert (accuracy["output"], accuracy["images"]) == ("logits", 360)
        assert accuracy["agreement"] is None


def test_labels_among_the_inputs_and_a_float_model(
    labels: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, report = str(tmp_path / "x.npz"), tmp_path / "report"
    with np.load(IMAGES) as file:
        np.savez(inputs, image=file["image"], labels=labels)
    arguments = ["run", MODEL, "--inputs", inputs, "--float", MODEL, "--report", str(report)]
    assert cli.invoke([*arguments, "--check"]) == 0
    (line,) = (text for text in capsys.readouterr().out.splitlines() if "top-1" in text)
    assert line.startswith("Accuracy of logits on 360 images: top-1 ")
    assert line.endswith("the same top-1 as the float model 100.00%")
    assert line in (report / "report.html").read_text()
    numbers = json.loads((report / "report.json").read_text())["accuracy"]
    assert numbers["float_top1"] == numbers["top1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", IMAGES], "--labels needs --inputs, the labelled images"),
        (["--labels", MODEL, "--inputs", IMAGES], "digits.onnx is no .npy, no .npz, and no text"),
        (["--labels", "none", "--inputs", IMAGES], "--labels none cannot be read: No such file"),
        (["--labels", IMAGES, "--inputs", IMAGES], r"labels are float32 of shape"),
        (["--float", IMAGES, "--skip", "alu"], "--float needs correct results, which --skip"),
        (["--float", "none.onnx"], "none.onnx"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["run", MODEL, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
