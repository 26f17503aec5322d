"""A complete board in Verilator, whose serial line is a pseudo-terminal: `SimulatedBoard`.

Host software opens ``port`` like the serial port of a real board; there is no other access.
"""

from __future__ import annotations

import ctypes
import os
import threading
import tty
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.machine.rtl.build import (
    Harness,
    Progress,
    design_library,
    flags_of,
    kept_design,
    version_of,
)
from amaranth_vta.sim.trace.wave_file import wave_format
from amaranth_vta.sw.board_drivers.transport import BoardError

HARNESS = Harness(Path(__file__).with_name("harness.cpp"))
# The board simulated by default.
DEFAULT_BOARD = "ulx3s"
# Clock cycles per bit on the line: the minimum when both ends share a clock.
DIVISOR = 2
# The same on a board with a processor: it must store a byte before the next one arrives, even if
# that misses the cache while the memory refreshes.
PROCESSOR_DIVISOR = 16
# Less than on a board, so that tests of interrupted requests simulate fewer cycles.
GAP_BITS = 2_000


class SimulatedBoard:
    """A powered-up board with the machine of ``config`` and its memory, without clock and pins.
    ``board`` is one of the names accepted by `vta build`, of a board with its own memory. With
    ``firmware``, in whole words, the board has a processor, which starts to run it; its flash
    memory contains ``flash`` from the address `Board.flash_offset` on. ``waves`` is a file with all
    signals from power-up on, in its `wave_format`. ``library`` is the compiled design, by default
    `board_library`.

    Attributes
    ----------
    port : path of its serial port, for pyserial

    Raises `BoardError` for an unknown board, and `ToolchainError` if the simulator cannot be built.
    """

    def __init__(
        self,
        config: Config,
        progress: Progress | None = None,
        board: str = DEFAULT_BOARD,
        firmware: bytes | None = None,
        flash: bytes = b"",
        waves: str | Path | None = None,
        library: Path | None = None,
    ) -> None:
        processor = firmware is not None
        traced = None if waves is None else wave_format(waves)
        library = library or board_library(config, progress, board, processor, traced)
        self._library = _load(library)
        if waves is not None:
            Path(waves).open("wb").close()  # the library would not report an error
        stop = ctypes.c_int(0)
        with TemporaryDirectory() as folder:
            contents = {"firmware": np.frombuffer(firmware or b"", "<u4")}
            if flash:
                contents["flash"] = np.frombuffer(flash, np.uint8)
            arguments = (ctypes.c_char_p * len(contents))()
            for at, (memory, values) in enumerate(contents.items()):
                file = Path(folder, memory)
                file.write_text("".join(f"{value:0{2 * values.itemsize}x}\n" for value in values))
                arguments[at] = f"+{memory}={file}".encode()
            self._board = self._library.board_open(
                _divisor(processor),
                len(arguments) if processor else 0,
                arguments,
                None if waves is None else str(waves).encode(),
            )
        ends = line, host_end = os.openpty()
        tty.setraw(host_end)
        os.set_blocking(line, False)
        self.port = os.ttyname(host_end)
        # The clock runs in C++, without holding Python's lock.
        clock = threading.Thread(
            target=self._library.board_serve,
            args=(self._board, line, ctypes.byref(stop)),
            daemon=True,
        )
        clock.start()
        # Runs at the latest before the interpreter exits, in which the clock could not go on.
        self._end = weakref.finalize(self, _end, self._library, self._board, stop, clock, ends)

    @property
    def cycle(self) -> int:
        return int(self._library.board_cycle(self._board))

    def close(self) -> None:
        """End the simulation, complete its wave file and close the port."""
        self._end()


def _end(
    library: ctypes.CDLL,
    board: int,
    stop: ctypes.c_int,
    clock: threading.Thread,
    ends: tuple[int, int],
) -> None:
    """Stop the ``clock`` of a simulated ``board``, and free it and both ``ends`` of its line."""
    stop.value = 1
    clock.join()
    for end in ends:
        os.close(end)
    library.board_close(board)


def board_library(
    config: Config,
    progress: Progress | None = None,
    board: str = DEFAULT_BOARD,
    processor: bool = False,
    traced: str | None = None,
) -> Path:
    """The shared library for the design of ``config`` on ``board``, with a ``processor`` or
    without; it writes waves in the format ``traced``, if given.
    """

    def elaborate() -> str:
        from amaranth_vta.sim.machine import elaborate as design

        check_board(board)
        return design.board_verilog(config, board, divisor, GAP_BITS, processor)

    divisor = _divisor(processor)
    key = f"board {board} {config.to_json()} {divisor} {GAP_BITS}"
    if processor:
        key += f" {version_of('pythondata-cpu-vexriscv')}"
    verilog = kept_design(key, elaborate, progress)
    return design_library(verilog, HARNESS, flags_of(traced), progress=progress)


def check_board(board: str) -> None:
    """Raises `BoardError` unless the board called ``board`` can be simulated."""
    from amaranth_vta.sim.machine import elaborate as design

    if board not in design.simulated_boards():
        raise BoardError(
            f"a board {board} cannot be simulated; the boards are "
            f"{', '.join(design.simulated_boards())}"
        )


def _divisor(processor: bool) -> int:
    return PROCESSOR_DIVISOR if processor else DIVISOR


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    board, texts = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
    for name, result, arguments in (
        ("open", board, [ctypes.c_uint, ctypes.c_int, texts, ctypes.c_char_p]),
        ("close", None, [board]),
        ("serve", None, [board, ctypes.c_int, ctypes.POINTER(ctypes.c_int)]),
        ("cycle", ctypes.c_uint64, [board]),
    ):
        function = getattr(library, f"board_{name}")
        function.restype, function.argtypes = result, arguments
    return library
