"""The command line with standard streams of any encoding, open or closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DIGITS = str(ROOT / "examples" / "digits" / "digits.onnx")
VTA = (sys.executable, "-m", "amaranth_vta")


def call(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run([*VTA, *arguments], env=environment, capture_output=True, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "cp437", "utf-16"])
def test_tables_are_printed_in_any_encoding(encoding: str) -> None:
    done = call("run", DIGITS, "--config", "tiny", encoding=encoding)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode(encoding)
    assert "conv1" in text
    assert "?" not in text
    assert "-----" in text or "─────" in text


def test_characters_without_a_replacement_are_question_marks(tmp_path: Path) -> None:
    done = call("compile", DIGITS, "-o", str(tmp_path / "数.vta"), encoding="latin-1")
    assert done.returncode == 0, done.stderr
    assert b"?.vta: 4 layers on the machine" in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_the_null_device(closed: str, tmp_path: Path) -> None:
    command = f'"$@" {closed}'
    options = ("--config", "tiny", "--json", str(tmp_path / "run.json"))
    shell = ["sh", "-c", command, "sh", *VTA]
    done = subprocess.run([*shell, "run", DIGITS, *options], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["layers"]
    wrong = subprocess.run([*shell, "run", "no.onnx"], capture_output=True, check=False)
    assert wrong.returncode == 2


def test_a_file_name_that_is_not_text_is_printed_as_its_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    os.symlink(DIGITS, path + b".onnx")
    done = call("compile", os.fsdecode(path + b".onnx"), "-o", os.fsdecode(path + b".vta"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(path + b".vta: 4 layers")
    report = os.fsdecode(path + b".report")
    assert call("run", os.fsdecode(path + b".onnx"), "--report", report).returncode == 0
