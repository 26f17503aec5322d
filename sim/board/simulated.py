"""A whole board in Verilator, whose serial line is a pseudo-terminal: `SimulatedBoard`.

Host software opens its ``port`` as it would open that of a board: there is no other way to it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import tty
from pathlib import Path

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.rtl.build import Harness, Progress, design_library, kept_design

HARNESS = Harness(Path(__file__).with_name("harness.cpp"))
# Memory and clock of the simulated board, and its clock cycles per bit on the line: as few as the
# design can have.
MEMORY_BYTES = 256 << 10
CLOCK_HZ = 25_000_000
DIVISOR = 4
# Less than on a board, so that tests of interrupted requests simulate fewer cycles.
GAP_BITS = 1_000


class SimulatedBoard:
    """A board with the machine of ``config``, powered up.

    Attributes
    ----------
    port : path of its serial port, for pyserial

    Raises `ToolchainError` when the simulator cannot be built.
    """

    def __init__(self, config: Config, progress: Progress | None = None) -> None:
        functions = _load(board_library(config, progress))
        self._functions = functions
        self._stop = ctypes.c_int(0)
        self._board = functions.board_open(DIVISOR)
        self._line, self._host_end = os.openpty()
        tty.setraw(self._host_end)
        os.set_blocking(self._line, False)
        self.port = os.ttyname(self._host_end)
        # The clock runs in C++, without Python's lock.
        self._clock = threading.Thread(
            target=functions.board_serve,
            args=(self._board, self._line, ctypes.byref(self._stop)),
            daemon=True,
        )
        self._clock.start()

    @property
    def cycle(self) -> int:
        return int(self._functions.board_cycle(self._board))

    def close(self) -> None:
        """Ends the simulation and closes the port."""
        if self._board is not None:
            self._stop.value = 1
            self._clock.join()
            os.close(self._line)
            os.close(self._host_end)
            self._functions.board_close(self._board)
            self._board = None

    def __del__(self) -> None:
        self.close()


def board_library(config: Config, progress: Progress | None = None) -> Path:
    """The shared library with the board design of ``config``."""

    def elaborate() -> str:
        from amaranth_vta.sim.machine.elaborate import board_verilog

        return board_verilog(config, MEMORY_BYTES, CLOCK_HZ, DIVISOR, GAP_BITS)

    key = f"board {config.to_json()} {MEMORY_BYTES} {CLOCK_HZ} {DIVISOR} {GAP_BITS}"
    return design_library(kept_design(key, elaborate, progress), HARNESS, progress=progress)


def _load(library: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(library))
    board = ctypes.c_void_p
    for name, result, arguments in (
        ("open", board, [ctypes.c_uint]),
        ("close", None, [board]),
        ("serve", None, [board, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]),
        ("cycle", ctypes.c_uint64, [board]),
    ):
        function = getattr(functions, f"board_{name}")
        function.restype, function.argtypes = result, arguments
    return functions
