"""Error messages for files that are not ONNX models."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.sw.compiler.graph.load.foreign_files import kind_of

DIGITS = Path(__file__).parents[5] / "examples" / "digits" / "digits.onnx"
MODEL = DIGITS.read_bytes()


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(DIGITS, "digits.onnx")
    return file.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


FILES = {
    "empty": b"",
    "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n",
    "an HTML page": b"\n<!DOCTYPE html><html><body>404</body></html>",
    "an HTML page and": b"<html lang=en>",
    "an XML document": b'<?xml version="1.0"?><net name="m"></net>',
    "a JSON document": b'{"error": "Repository not found"}',
    "a text file": b"Entry not found\n",
    "a model in ONNX Runtime's own format": b"\x1c\0\0\0ORTM" + bytes(100),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "compressed by gzip": gzip.compress(MODEL),
    "compressed by bzip2": bz2.compress(MODEL),
    "compressed by xz": lzma.compress(MODEL),
    "a tar archive": tarred(),
    "a zip archive": zipped("model.onnx"),
    "a PyTorch file": zipped("m/data.pkl", "m/data/0"),
    "a Keras archive": zipped("config.json", "model.weights.h5"),
    "an .npz of NumPy arrays": zipped("a.npy"),
    "a NumPy array": array(),
    "a Python pickle": pickle.dumps({"w": 1}, protocol=2),
    "a safetensors file": safetensors(),
    "a GGUF file": b"GGUF\3\0\0\0",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(FILES[kind])
    assert invoke(["run", str(path)]) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"vta: {path} is not an ONNX model: it is {kind}")
    assert text.count("\n") == 1
    assert kind_of(path) == kind_of(FILES[kind])


def test_a_compiled_network_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "digits.vta")
    assert invoke(["compile", str(DIGITS), "--config", "tiny", "-o", path]) == 0
    assert invoke(["show", path]) == 2
    assert "it is a compiled network or a program image" in capsys.readouterr().err


def test_a_model_that_is_cut_off_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL[:3000])
    assert invoke(["run", str(path)]) == 2
    assert "is not an ONNX model, or is damaged or cut off" in capsys.readouterr().err


def test_a_model_is_of_no_other_kind() -> None:
    assert kind_of(DIGITS) == kind_of(MODEL) == ""
