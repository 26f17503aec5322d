"""The serial line to the runner: a pseudo-terminal, or a serial port."""

from __future__ import annotations

import errno
import os
import select
import termios
import tty
from collections.abc import Callable
from contextlib import suppress

from .protocol import MAX_COMMAND, TERMINATOR, Responder

_POLL_SECONDS = 0.1


class SerialLine:
    """The serial port at ``path``, at 115,200 baud; by default a new pseudo-terminal, which runners
    open at ``path``.

    Raises `OSError`, also if the port is closed at the other end.
    """

    def __init__(self, path: str | None = None) -> None:
        if path is None:
            # The runner's end is held open, so that runners may come and go.
            self._line, end = os.openpty()
            self._open = {self._line, end}
        else:
            # Other than a blocking open, this does not wait for a modem.
            self._line = end = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            self._open = {end}
        try:
            self.path = path or os.ttyname(end)
            tty.setraw(end)
            settings = termios.tcgetattr(end)
            settings[2] |= termios.CLOCAL | termios.CREAD
            settings[4:6] = [termios.B115200] * 2
            termios.tcsetattr(end, termios.TCSANOW, settings)
            os.set_blocking(end, True)
        except termios.error:
            self.close()
            raise OSError(errno.ENOTTY, "this is not a serial port", path) from None

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open = set()

    def serve(self, responder: Responder, ends: Callable[[], bool] = lambda: False) -> None:
        """Answers commands until ``ends`` returns True or an exception is raised."""
        command = bytearray()
        while not ends():
            for byte in self._read():
                if byte == TERMINATOR:
                    for line in responder.answer(bytes(command)):
                        self._write(line)
                    command.clear()
                elif len(command) <= MAX_COMMAND:  # longer ones are refused
                    command.append(byte)

    def _read(self) -> bytes:
        if not select.select([self._line], [], [], _POLL_SECONDS)[0]:
            return b""
        with suppress(OSError):
            if data := os.read(self._line, 4096):
                return data
        raise self._closed()

    def _write(self, line: str) -> None:
        data = f"{line}\r\n".encode("ascii", "replace")
        while data:
            try:
                data = data[os.write(self._line, data) :]
            except OSError:
                raise self._closed() from None

    def _closed(self) -> OSError:
        return OSError(errno.EIO, "the other end has closed the serial port", self.path)
