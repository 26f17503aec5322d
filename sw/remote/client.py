"""A device that forwards to a machine served by another computer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.device import Fault, Limits, RunResult, limit_of

from .keys import Credentials
from .messages import ALIVE_SECONDS, MAX_BYTES, SILENCE_SECONDS, VERSION, packed, unpacked

# Granularity of memory sizes, as on other devices.
_UNIT = 64
_PART = MAX_BYTES


class RemoteError(VtaError, RuntimeError):
    """A server does not answer, refuses a request, or has disconnected; the message names it."""


class RemoteDevice:
    """The `Device` of the server named by ``credentials``, with the machine of ``config``.

    Waits while others use the server; ``progress`` is called with the reason. `close`, or the end
    of this process, releases the machine. ``dram`` is the memory model of the server's simulator.

    Raises `RemoteError` if the server does not answer, does not know the key, or rejects the
    machine or its memory size.
    """

    name = "remote"

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        credentials: Credentials,
        dram: str = "ideal",
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.memory_bytes = -(-memory_bytes // _UNIT) * _UNIT
        self._address, self._requests, self._progress = credentials.address, 0, progress
        self._is_there = True
        self._limits: list[int] = []
        self._connect(credentials)
        try:
            self._ask(
                "open",
                version=VERSION,
                config=config.to_dict(),
                memory_bytes=self.memory_bytes,
                dram=dram,
            )
        except BaseException:
            self._disconnect()
            raise

    def _connect(self, credentials: Credentials) -> None:
        import zmq

        self._zmq: Any = zmq
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.curve_serverkey = credentials.server.encode()
        self._socket.curve_publickey = credentials.public.encode()
        self._socket.curve_secretkey = credentials.secret.encode()
        failures = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        failures |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED
        self._events = self._socket.get_monitor_socket(failures)
        try:
            self._socket.connect(credentials.address)
        except zmq.ZMQError as error:
            self._disconnect()
            raise RemoteError(f"{credentials.address} is not an address: {error}") from None

    def read(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """A copy of ``size`` bytes; raises `ValueError` beyond the memory."""
        self._check_bounds(address, size)
        parts = [
            self._ask("read", address=first, size=min(_PART, address + size - first))[1]
            for first in range(address, address + size, _PART)
        ]
        return np.frombuffer(b"".join(parts), np.uint8).copy()

    def write(self, address: int, data: npt.NDArray[np.generic] | bytes) -> None:
        """Write the bytes of ``data``; raises `ValueError` beyond the memory."""
        raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        self._check_bounds(address, len(raw))
        for first in range(0, len(raw), _PART):
            part = memoryview(raw)[first : first + _PART]
            self._ask("write", part, address=address + first)

    def set_limits(self, limits: Limits) -> None:
        """See `Device.set_limits`."""
        self._limits = [limit_of(limits, memory) for memory in isa.LIMITED]

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        """Run ``insn_count`` instructions from byte ``insn_addr``; ``watched`` as in `Device.run`.

        The server stops a run after ``time_limit`` seconds, or at its own limit, with a
        ``timeout``.
        """
        if insn_addr < 0 or insn_count < 0:
            raise ValueError("a program's address and length cannot be negative")
        header, _ = self._ask(
            "run",
            insn_addr=insn_addr,
            insn_count=insn_count,
            time_limit=time_limit,
            watched=[int(index) for index in watched],
            limits=self._limits,
        )
        result = header["result"]
        fault, reached = result.pop("fault"), tuple(result.pop("reached"))
        return RunResult(**result, fault=Fault(**fault) if fault else None, reached=reached)

    def close(self) -> None:
        """Release the machine for the next client; idempotent."""
        if self._context.closed:
            return
        try:
            if self._is_there:
                self._ask("close")
        except RemoteError:
            pass  # the server has already released it
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _check_bounds(self, address: int, size: int) -> None:
        if address < 0 or size < 0 or address + size > self.memory_bytes:
            raise ValueError(
                f"{size} bytes from {address} are not within {self.memory_bytes} bytes of memory"
            )

    def _ask(
        self, what: str, data: bytes | memoryview = b"", **values: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the reply; raises `RemoteError`."""
        self._requests += 1
        self._socket.send_multipart(packed({"do": what, "request": self._requests, **values}, data))
        heard = time.monotonic()
        while True:
            if self._socket.poll(int(1000 * ALIVE_SECONDS)):
                header, data = unpacked(self._socket.recv_multipart())
                heard = time.monotonic()
                if header.get("reply") == self._requests:
                    break
                if self._progress is not None and header.get("wait"):
                    self._progress(str(header["wait"]))
            elif time.monotonic() - heard > SILENCE_SECONDS:
                self._is_there = False
                raise RemoteError(f"nothing answers at {self._address}")
            else:
                self._check_connection()
        if "error" in header:
            raise RemoteError(f"the server at {self._address}: {header['error']}")
        return header, bytes(data)

    def _check_connection(self) -> None:
        from zmq.utils.monitor import recv_monitor_message

        if not self._events.poll(0):
            return
        self._is_there = False
        event = recv_monitor_message(self._events)["event"]
        if event == self._zmq.EVENT_DISCONNECTED and self._requests > 1:
            raise RemoteError(f"the server at {self._address} is gone")
        raise RemoteError(f"the server at {self._address} does not know this key, or is another")
