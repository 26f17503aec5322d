"""Connects to a board, simulated or real, that runs a network by itself: `open_classifier`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from amaranth_vta.hw.boards.boards import BOARDS
from amaranth_vta.sim.board_model.device import SIMULATED, board_port, require_simulated
from amaranth_vta.sim.board_model.simulated import DEFAULT_BOARD, SimulatedBoard, check_board
from amaranth_vta.sim.machine.rtl.build import Progress
from amaranth_vta.sw.board_drivers.transport import SerialTransport, open_line
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

from .build import firmware, standalone_firmware
from .client import Classifier

# Longest time without a byte from the board.
_SECONDS, _SIMULATED_SECONDS = 10.0, 600.0


class ConnectedBoard:
    """A `Target` at a serial port, as its registers describe it. The host loads it, not the flash
    memory."""

    def __init__(self, port: str, transport: SerialTransport) -> None:
        self.title = f"the board at {port}"
        self.memory_bytes = transport.memory_bytes
        self.firmware_bytes = transport.firmware_bytes
        self.clock_hz = transport.clock_hz
        self.flash_offset = 0


@contextmanager
def open_classifier(
    network: NetworkProgram, progress: Progress, waves: Path | None = None
) -> Iterator[Classifier]:
    """A board at $VTA_PORT that runs ``network`` after a reset: for ``simulated:BOARD`` one that
    contains the firmware, and otherwise a board with a processor, into which the firmware is
    loaded. ``waves`` is a file with the signals of a simulated board, complete when it is closed.

    Raises `BoardError` if there is no board, or for waves of a real one, `ClassifierError` if its
    machine is another one, and what `firmware` raises, for instance if it has no processor.
    """
    port = board_port()
    require_simulated(port, waves)
    kind, _, name = port.partition(":")
    with ExitStack() as stack:
        if kind == SIMULATED:
            name = name or DEFAULT_BOARD
            check_board(name)
            made = standalone_firmware(network, BOARDS[name])
            board = SimulatedBoard(network.config, progress, name, made.image, made.data, waves)
            stack.callback(board.close)
            line = open_line(board.port)
            stack.callback(line.close)
            line.timeout = _SIMULATED_SECONDS
        else:
            line = open_line(port)
            stack.callback(line.close)
            transport = SerialTransport(line)
            made = firmware(network, ConnectedBoard(port, transport))
            if made.data:
                transport.write(made.data_address, made.data)
            transport.start_processor(made.image)
            line.timeout = _SECONDS
        classifier = Classifier(line, made)
        classifier.wait_until_ready()
        yield classifier
