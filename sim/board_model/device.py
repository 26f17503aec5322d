"""The device ``board``: a machine on a real board or on a simulated one."""

from __future__ import annotations

import os
from pathlib import Path

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.rtl.build import Progress
from amaranth_vta.sw.board_drivers.device import BoardDevice
from amaranth_vta.sw.board_drivers.link import PATIENCE_SECONDS
from amaranth_vta.sw.board_drivers.mapped import KINDS, open_mapped
from amaranth_vta.sw.board_drivers.transport import (
    BoardError,
    SerialTransport,
    Transport,
    open_line,
)

from .simulated import DEFAULT_BOARD, SimulatedBoard

# Environment variable with the board's serial port, or the place where its machine is mapped; and
# its value for a simulated board, optionally followed by a colon and the board's name.
PORT = "VTA_PORT"
SIMULATED = "simulated"
# Seconds without a reply after which a simulated board with waves counts as missing: it runs some
# 20,000 cycles per second.
_PATIENCE_WITH_WAVES = 120.0


def open_board(
    config: Config,
    memory_bytes: int,
    progress: Progress | None = None,
    waves: str | Path | None = None,
) -> BoardDevice:
    """Open the board at $VTA_PORT: a path, a URL of pyserial, a place for `open_mapped`, or
    ``simulated`` or ``simulated:BOARD`` for a board in Verilator.

    Without $VTA_PORT, opens the board at the only serial port on USB. ``waves`` is a file with the
    signals of a simulated board. Raises `BoardError` if there is no board, or more than one, and
    for waves of a real board.
    """
    port = board_port()
    require_simulated(port, waves)
    if port.startswith(KINDS):
        return _opened(config, memory_bytes, open_mapped(port, memory_bytes))
    with explain_missing_extras():
        kind, _, board = port.partition(":")
        if kind == SIMULATED:
            chosen = board or DEFAULT_BOARD
            return SimulatedBoardDevice(config, memory_bytes, progress, chosen, waves)
        return _opened(config, memory_bytes, SerialTransport(open_line(port)))


def board_port() -> str:
    """$VTA_PORT, or else the only serial port on USB; raises `BoardError` if there is none, or more
    than one.
    """
    return os.environ.get(PORT) or _only_port()


def require_simulated(port: str, waves: object) -> None:
    """Raises `BoardError` if there are to be ``waves`` of a real board at ``port``."""
    if waves is not None and port.partition(":")[0] != SIMULATED:
        raise BoardError(f"a real board has no waves; {PORT}={SIMULATED} simulates one")


class SimulatedBoardDevice(BoardDevice):
    """A `BoardDevice` on a `SimulatedBoard`; closing the device ends the simulation."""

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        progress: Progress | None = None,
        board: str = DEFAULT_BOARD,
        waves: str | Path | None = None,
    ) -> None:
        self._board = SimulatedBoard(config, progress, board, waves=waves)
        patience = PATIENCE_SECONDS if waves is None else _PATIENCE_WITH_WAVES
        line = open_line(self._board.port)
        super().__init__(config, memory_bytes, SerialTransport(line, patience))

    def close(self) -> None:
        super().close()
        self._board.close()


def _opened(config: Config, memory_bytes: int, transport: Transport) -> BoardDevice:
    try:
        return BoardDevice(config, memory_bytes, transport)
    except BaseException:
        transport.close()
        raise


def _only_port() -> str:
    with explain_missing_extras():
        from serial.tools import list_ports

    ports = [port.device for port in list_ports.comports() if port.vid is not None]
    if len(ports) == 1:
        return str(ports[0])
    found = f"there are several serial ports ({', '.join(ports)})" if ports else "no board is found"
    raise BoardError(
        f"{found}: {PORT}=/dev/ttyUSB0 in the environment says which port it is, and "
        f"{PORT}={SIMULATED} simulates a board"
    )
