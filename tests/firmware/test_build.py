"""Firmware for a board and a network, and refused networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_vta.cli import invoke
from amaranth_vta.export.network_memory import NetworkMemory
from amaranth_vta.firmware.build import FirmwareError, firmware, standalone_firmware
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.session.compilation import compile as compile_network
from amaranth_vta.sw.runtime.network.network_file import load_network
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from tests.support.tflite_graphs import kept_by_host

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


def test_memory_for_variables_of_the_host_counts() -> None:
    network = compile_network(kept_by_host(), "pynq-extended").program
    needed = NetworkMemory(network).size
    assert needed > network.program.placed_bytes(network.launched("network"))
    assert firmware(network, replace(ULX3S, memory_bytes=needed)).image
    with pytest.raises(FirmwareError, match=f"the network needs {needed:,} bytes"):
        firmware(network, replace(ULX3S, memory_bytes=needed - 64))


def test_the_first_output_may_be_a_class() -> None:
    model = onnx.load(MODEL)
    (logits,) = model.graph.output
    model.graph.node.append(helper.make_node("ArgMax", [logits.name], ["class"], axis=1))
    logits.CopyFrom(helper.make_tensor_value_info("class", TensorProto.INT64, None))
    network = compile_network(model, "tiny-extended").program
    assert firmware(network, ULX3S).outputs["class"].shape == (1, 1)


def test_data_that_do_not_fit_are_outside_the_firmware(network: NetworkProgram) -> None:
    """In the shared memory, after the part that the network uses."""
    whole = firmware(network, ULX3S)
    assert not whole.data
    made = firmware(network, replace(ULX3S, firmware_bytes=32 * 1024))
    weights = network.program.contents[max(network.program.contents, key=_size(network))]
    assert weights.tobytes() in made.data
    assert weights.tobytes() not in made.image
    assert made.data_address >= NetworkMemory(network).size
    assert 0 <= len(made.image) + len(made.data) - len(whole.image) < 1024


def _size(network: NetworkProgram) -> Callable[[str], int]:
    return lambda buffer: network.program.contents[buffer].size


def test_data_need_a_flash_memory_without_a_host(network: NetworkProgram) -> None:
    small = replace(BOARDS["ecpix5"], firmware_bytes=32 * 1024)
    assert firmware(network, small).data
    message = "of ECPIX-5, whose processor has no flash memory; boards with one are ulx3s, ulx3s-s"
    with pytest.raises(FirmwareError, match=message):
        standalone_firmware(network, small)
    assert standalone_firmware(network, replace(small, flash_offset=4096)).data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"firmware_bytes": 2048}, "the firmware of .* more than the 2,048 bytes that ULX3S has"),
        (
            {"firmware_bytes": 32 * 1024, "memory_bytes": 128 * 1024},
            r"the data of this network take [\d,]+ bytes more than the 24,576 bytes that ULX3S has",
        ),
    ],
)
def test_a_network_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, network: NetworkProgram
) -> None:
    with pytest.raises(FirmwareError, match=message):
        firmware(network, replace(ULX3S, **change))


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
