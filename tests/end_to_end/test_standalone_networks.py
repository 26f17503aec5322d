"""Boards with a processor: networks in flash memory, `vta classify`, and MLPerf Tiny's runner."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.firmware.build import Firmware, standalone_firmware
from amaranth_vta.firmware.client import Classifier, ClassifierError
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.networks import generate_tiny
from amaranth_vta.networks.tflite_network import reference
from amaranth_vta.serving.mlperf_tiny.tasks import TinyNetwork
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sw.board_drivers.link import Line
from amaranth_vta.sw.runtime.network.network_file import load_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from tests.end_to_end.conftest import DIGITS, powered_up

BOARD = BOARDS["ulx3s"]
# Of a line of the simulated board: it may take seconds to load the network.
TIMEOUT = 240


@pytest.fixture(scope="module")
def in_flash(digits_file: str) -> tuple[NetworkProgram, Firmware]:
    """The digits, and their firmware for less memory than the board has."""
    network = load_network(digits_file)
    return network, standalone_firmware(network, replace(BOARD, firmware_bytes=32 * 1024))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_network_is_loaded_from_flash(
    is_damaged: bool, in_flash: tuple[NetworkProgram, Firmware]
) -> None:
    network, made = in_flash
    flash = bytearray(made.data)
    flash[-20] ^= is_damaged
    with powered_up(BOARD, network, replace(made, data=bytes(flash)), TIMEOUT) as (_, line):
        classifier = Classifier(line, made)
        if is_damaged:
            with pytest.raises(ClassifierError, match="the data of the network are not in the"):
                classifier.wait_until_ready()
            return
        classifier.wait_until_ready()
        image = np.load(DIGITS / "images.npz")["image"][3:4]
        assert classifier.run({"image": image}).label == np.load(DIGITS / "labels.npz")["label"][3]


def test_the_command_prints_a_label_per_image(
    digits_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VTA_PORT", f"simulated:{BOARD.name}")
    images = str(DIGITS / "images.npz")
    assert invoke(["classify", digits_file, "--inputs", images, "--images", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = np.load(DIGITS / "labels.npz")["label"][:2]
    assert [line.split(",")[0] for line in lines] == [
        f"{number}: label {label}" for number, label in enumerate(labels)
    ]


def test_waves_of_a_real_board_are_refused(
    digits_file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VTA_PORT", "/dev/ttyUSB0")
    images, waves = DIGITS / "images.npz", tmp_path / "waves.fst"
    command = ["classify", digits_file, "--inputs", str(images), "--waves", str(waves)]
    assert invoke(command) != 0
    assert "a real board has no waves" in capsys.readouterr().err
    assert not waves.exists()


@pytest.mark.nightly  # builds a simulator for this test alone
def test_the_runner_of_mlperf_tiny_gets_the_results_of_litert() -> None:
    model = generate_tiny("mlperf-keywords")
    task = TinyNetwork.of(model, "keywords")
    board = BOARDS["ulx3s-sdram"]
    network = compile_network(model, board.config).program
    made = standalone_firmware(network, board, task)
    values = np.random.default_rng(1).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)
    with powered_up(board, network, made, TIMEOUT) as (_, line):
        assert _lines(line) == ["m-init-done"]
        assert _command(line, "profile")[1] == "m-model-[kws01]"
        sent = values.tobytes()
        _command(line, f"db load {len(sent)}")
        for start in range(0, len(sent), 32):
            answer = _command(line, f"db {sent[start : start + 32].hex()}")
        assert answer == ["m-load-done"]
        answer = _command(line, "infer 1 0")
    (wanted,) = reference(model, values)
    numbers = ",".join(f"{value:.3f}" for value in task.results(wanted, sent))
    assert answer[-1] == f"m-results-[{numbers}]"
    begin, end = (int(text.removeprefix("m-lap-us-")) for text in answer if "lap" in text)
    assert 1_000 < end - begin < 100_000


def _command(line: Line, text: str) -> list[str]:
    line.write(text.encode() + b"%")
    return _lines(line)


def _lines(line: Line) -> list[str]:
    """The lines up to ``m-ready``, without it."""
    text = b""
    while not text.endswith(b"m-ready\r\n"):
        byte = line.read(1)
        assert byte, f"silent after {text!r}"
        text += byte
    return text.decode().splitlines()[:-1]
