"""The host's end of the line to a board that classifies by itself."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from amaranth_vta.firmware.build import Firmware
from amaranth_vta.firmware.client import Classifier, ClassifierError, ClassifierInputError
from amaranth_vta.sw.board_drivers.link import LinkError
from amaranth_vta.sw.runtime.network.tensor_type import TensorType

FIRMWARE = Firmware(
    b"",
    {
        "bytes": TensorType(np.dtype("int8"), (1, 3)),
        "halves": TensorType(np.dtype("float32"), (1, 2)),
    },
    {"scores": TensorType(np.dtype("float32"), (1, 2))},
)
INPUTS = {"bytes": np.array([[1, -2, 3]]), "halves": np.array([[0.5, -0.5]])}


class Line:
    """A board whose answers are given."""

    port = "nowhere"
    timeout: float | None = None
    in_waiting = 0

    def __init__(self, answers: bytes) -> None:
        self.answers = answers
        self.sent = b""

    def read(self, size: int = 1) -> bytes:
        data, self.answers = self.answers[:size], self.answers[size:]
        return data

    def write(self, data: bytes) -> int:
        self.sent += data
        return len(data)

    def close(self) -> None:
        pass


def test_an_answer_has_label_scores_and_cycles() -> None:
    line = Line(struct.pack("<4I2f", 0, 1, 900, 100, -1.5, 2.25))
    answer = Classifier(line, FIRMWARE).run(INPUTS)
    assert line.sent == struct.pack("<3b2f", 1, -2, 3, 0.5, -0.5)
    assert (answer.label, answer.cycles, answer.machine_cycles) == (1, 900, 100)
    np.testing.assert_array_equal(answer.outputs["scores"], [[-1.5, 2.25]])


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"\x5a\x00amaranth-vta: LOG_BLOCK_IN\r\n", "the machine differs in LOG_BLOCK_IN"),
        (b"amaranth-vta: no network\r\n", "the data of the network are not in the board's memory"),
        (b"amaranth", "the board sent 0 of 1 bytes in time"),
    ],
)
def test_a_board_that_is_not_ready_is_reported(greeting: bytes, message: str) -> None:
    with pytest.raises(ClassifierError, match=message):
        Classifier(Line(greeting), FIRMWARE).wait_until_ready()


def test_a_board_is_ready_when_it_says_so() -> None:
    Classifier(Line(b"noise amaranth-vta: ready\r\n"), FIRMWARE).wait_until_ready()


def test_a_run_that_fails_is_reported() -> None:
    line = Line(struct.pack("<4I2f", 2, 0, 0, 0, 0, 0))
    with pytest.raises(ClassifierError, match="the network did not run: fault"):
        Classifier(line, FIRMWARE).run(INPUTS)


class UnpluggedLine(Line):
    """A line whose adapter is removed after ``answers``, or before anything is sent."""

    def read(self, size: int = 1) -> bytes:
        if not self.answers:
            raise OSError("device reports readiness to read but returned no data")
        return super().read(size)

    def write(self, data: bytes) -> int:
        if not self.answers:
            raise OSError("write failed: [Errno 5] Input/output error")
        return super().write(data)


@pytest.mark.parametrize("answers", [b"", bytes(16)])
def test_an_unplugged_line_is_reported(answers: bytes) -> None:
    with pytest.raises(LinkError, match="the serial port nowhere was disconnected: "):
        Classifier(UnpluggedLine(answers), FIRMWARE).run(INPUTS)
    with pytest.raises(LinkError, match="the serial port nowhere was disconnected: "):
        Classifier(UnpluggedLine(answers), FIRMWARE).wait_until_ready()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((1, 4)), r"bytes has shape \(1, 4\), not \(1, 3\)"),
        (np.array([[1, 2, 200]]), "bytes has values that int8 does not hold"),
        (np.array([[1, 2, 0.5]]), "bytes has values that int8 does not hold"),
    ],
)
def test_other_inputs_are_refused(values: np.ndarray, message: str) -> None:
    line = Line(b"")
    with pytest.raises(ClassifierInputError, match=message):
        Classifier(line, FIRMWARE).run({**INPUTS, "bytes": values})
    assert not line.sent
