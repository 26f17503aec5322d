"""A board with a processor, from reset to label: processor, firmware, machine, memory and line."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from amaranth_vta.firmware.build import firmware
from amaranth_vta.firmware.client import Classifier
from amaranth_vta.hw import isa
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.board_model.simulated import SimulatedBoard
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sw.board_drivers.device import BoardDevice
from amaranth_vta.sw.board_drivers.transport import SerialTransport, open_line
from amaranth_vta.sw.runtime.driver import MismatchError
from amaranth_vta.sw.runtime.network.network_file import load_network
from tests.end_to_end.conftest import DIGITS, powered_up

BOARD = "ulx3s"
# Of a line of the simulated board: it may take seconds to copy the network.
TIMEOUT = 120


class Standalone(NamedTuple):
    """A simulated board that classifies digits, and the host's end of its line."""

    config: Config
    board: SimulatedBoard
    classifier: Classifier


@pytest.fixture(scope="module")
def standalone(digits_file: str) -> Iterator[Standalone]:
    network = load_network(digits_file)
    made = firmware(network, BOARDS[BOARD])
    with powered_up(BOARDS[BOARD], network, made, TIMEOUT) as (board, line):
        classifier = Classifier(line, made)
        classifier.wait_until_ready()
        yield Standalone(network.config, board, classifier)


def images(count: int, start: int = 0) -> list[npt.NDArray[np.float32]]:
    return [*np.load(DIGITS / "images.npz")["image"][start : start + count, None]]


def labels() -> list[int]:
    return [*np.load(DIGITS / "labels.npz")["label"]]


def test_digits_are_classified_as_onnx_runtime_does(standalone: Standalone) -> None:
    reference = onnxruntime.InferenceSession(DIGITS / "digits.onnx")
    for image in images(2):
        answer = standalone.classifier.run({"image": image})
        (expected,) = reference.run(["logits"], {"image": image})
        np.testing.assert_array_equal(answer.outputs["logits"], expected)
        assert answer.label == expected.argmax()
        assert 0 < answer.machine_cycles < answer.cycles


def test_boards_of_one_process_end_in_any_order(standalone: Standalone) -> None:
    kept, ended = (SimulatedBoard(standalone.config, board=BOARD, firmware=bytes(4)) for _ in "ab")
    ended.close()
    kept.close()
    (image,) = images(1)
    assert standalone.classifier.run({"image": image}).label == labels()[0]


def test_an_input_that_pauses_is_dropped(standalone: Standalone) -> None:
    """The rest of an interrupted input would shift all later ones."""
    board, (image,) = standalone.board, images(1, start=5)
    line = open_line(board.port)
    line.write(image.tobytes()[:100])
    pause = board.cycle + BOARDS[BOARD].clock_hz // 50
    while board.cycle < pause + 100_000:
        time.sleep(0.1)
    line.close()
    assert standalone.classifier.run({"image": image}).label == labels()[5]


def test_a_host_takes_over_the_board_and_leaves_it_again(standalone: Standalone) -> None:
    """The host's first access stops the processor, which starts again on request."""
    data = np.random.default_rng(1).integers(0, 256, 512, np.uint8)
    program = ProgramImage.assemble(standalone.config, data, 0, [isa.Finish()])
    transport = SerialTransport(open_line(standalone.board.port))
    device = BoardDevice(standalone.config, program.dram.size, transport)
    device.write(0, program.dram)
    assert device.run(program.insn_addr, program.insn_count).fault is None
    np.testing.assert_array_equal(device.read(0, program.dram.size), program.dram)
    transport.start_processor()
    device.close()
    standalone.classifier.wait_until_ready()
    (image,) = images(1, start=7)
    assert standalone.classifier.run({"image": image}).label == labels()[7]


def test_a_processor_for_other_firmware_is_refused(
    standalone: Standalone, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = SerialTransport(open_line(standalone.board.port))
    assert transport.firmware_bytes == BOARDS[BOARD].firmware_bytes
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "PROCESSOR_VERSION", protocol.PROCESSOR_VERSION + 1)
        with pytest.raises(MismatchError, match="has version 1 of its address map and not"):
            _ = transport.firmware_bytes
    transport.start_processor()
    transport.close()
    standalone.classifier.wait_until_ready()


def test_other_firmware_is_loaded_over_the_line(standalone: Standalone) -> None:
    """This one sends the byte behind it again and again; it is assembled by hand. The data cache
    must not keep the byte of the firmware before.
    """
    code = (
        0xC00002B7,  # lui t0, PERIPHERAL_BASE
        0x400003B7,  # lui t2, FIRMWARE_BASE
        0x0143C303,  # lbu t1, 20(t2)
        0x0062A223,  # sw t1, 4(t0)
        0xFFDFF06F,  # j to the store
    )
    line = open_line(standalone.board.port)
    transport = SerialTransport(line)
    for byte in b"VTA":
        transport.start_processor(struct.pack("<6I", *code, byte))
        line.timeout = TIMEOUT
        assert line.read(1) == bytes([byte])
    transport.close()
