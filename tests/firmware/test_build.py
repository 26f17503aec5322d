"""Firmware for a board and a network, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.firmware.build import FirmwareError, firmware
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.sw.runtime.network.network_file import load_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

MODEL = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
ULX3S = BOARDS["ulx3s"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = str(tmp_path_factory.mktemp("digits") / "digits.vta")
    assert invoke(["compile", str(MODEL), "--config", "tiny-extended", "-o", file]) == 0
    return file


@pytest.fixture(scope="module")
def network(file: str) -> NetworkProgram:
    return load_network(file)


def test_firmware_depends_on_nothing_but_network_and_board(network: NetworkProgram) -> None:
    first, second = firmware(network, ULX3S), firmware(network, ULX3S)
    assert first.image == second.image
    assert len(first.image) % 4 == 0
    assert len(first.image) < ULX3S.firmware_bytes
    assert list(first.inputs) == ["image"]
    assert list(first.outputs) == ["logits"]


def test_a_network_that_needs_more_memory_is_refused(network: NetworkProgram) -> None:
    small = replace(ULX3S, memory_bytes=64 * 1024)
    with pytest.raises(FirmwareError, match="the network needs .* memory, and ULX3S has 65,536"):
        firmware(network, small)


def test_firmware_that_needs_more_memory_is_refused(network: NetworkProgram) -> None:
    small = replace(ULX3S, firmware_bytes=32 * 1024)
    message = r"takes \d+ bytes more than the 32,768 bytes that ULX3S has for it"
    with pytest.raises(FirmwareError, match=message):
        firmware(network, small)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["icebreaker"], "iCEBreaker has no processor; boards with one are ulx3s, ulx3s-sdram"),
        (["pynq-z1"], "PYNQ-Z1 is built by Vivado; --network is for boards that are built here"),
        (["zcu104"], "ZCU104 is built by Vivado"),
        (["ulx3s", "--config", "tiny"], "leave --config out: --network FILE has its own"),
    ],
)
def test_boards_without_a_processor_are_refused(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["build", *arguments, "--network", file]) == 2
    assert message in capsys.readouterr().err
