"""Simulated boards with a processor, and the network of digits that they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.firmware.build import Firmware
from amaranth_vta.hw.boards.boards import Board
from amaranth_vta.sim.board_model.simulated import SimulatedBoard
from amaranth_vta.sw.board_drivers.link import Line
from amaranth_vta.sw.board_drivers.transport import open_line
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="session")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of the digits network, compiled for tiny-extended."""
    file = str(tmp_path_factory.mktemp("digits") / "digits.vta")
    model = str(DIGITS / "digits.onnx")
    assert invoke(["compile", model, "--config", "tiny-extended", "-o", file]) == 0
    return file


@contextmanager
def powered_up(
    board: Board, network: NetworkProgram, made: Firmware, timeout: float
) -> Iterator[tuple[SimulatedBoard, Line]]:
    """A simulated ``board`` that runs the firmware ``made``, and its line, with a ``timeout`` in
    seconds.
    """
    simulated = SimulatedBoard(network.config, None, board.name, made.image, made.data)
    with closing(simulated), closing(open_line(simulated.port)) as line:
        line.timeout = timeout
        yield simulated, line
