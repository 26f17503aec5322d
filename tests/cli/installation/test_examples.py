"""Examples are listed and copied, and the copies run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from amaranth_vta import cli
from amaranth_vta.example_files import EXAMPLES, example_path
from amaranth_vta.explore.exploration import read_networks
from amaranth_vta.explore.spec import load_spec

ROOT = Path(__file__).parents[3]


def test_all_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["examples"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in EXAMPLES)
    there = {path.name for path in (ROOT / "examples").iterdir() if path.name[0] not in "_."}
    assert there == {file for file, *_ in EXAMPLES.values() if "/" not in file}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_copied(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["examples", name, "-o", str(tmp_path / "mine")]
    assert cli.invoke(call) == 0
    source = example_path(name)
    copy = tmp_path / "mine" / source.name
    assert copy.is_dir() == source.is_dir()
    if source.is_file():
        assert copy.read_bytes() == source.read_bytes()
    # A copy, which the user may have changed, is not overwritten.
    assert cli.invoke(call) == 2
    assert "is not replaced" in capsys.readouterr().err


def test_an_unknown_example_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="no example is called digit; there are digits, "):
        example_path("digit")


def test_the_example_of_your_own_network_writes_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["examples", "own-network", "-o", str(tmp_path)]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["own_network.py", "-o", "out"])
    runpy.run_path("own_network.py", run_name="__main__")
    said = capsys.readouterr().out
    assert "ONNX Runtime: 0 of " in said
    assert (tmp_path / "out/report/report.html").exists()


def test_the_digits_are_classified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["examples", "digits", "-o", str(tmp_path)]) == 0
    call = ["demo.py", "--config", "tiny-extended", "--images", "8"]
    monkeypatch.setattr(sys, "argv", call)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "digits/demo.py"), run_name="__main__")
    assert ended.value.code == 0
    assert "RTL and functional model agree in every byte of DRAM" in capsys.readouterr().out


def test_the_sweep_is_of_twelve_machines(tmp_path: Path) -> None:
    assert cli.invoke(["examples", "exploration", "-o", str(tmp_path)]) == 0
    spec = load_spec(tmp_path / "exploration/digits.toml")
    assert spec.combinations == 12
    assert list(read_networks(spec)) == ["digits"]
