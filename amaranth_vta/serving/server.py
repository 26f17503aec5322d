"""A server that lends a device to one client at a time, over encrypted connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from amaranth_vta.sw.remote.keys import KeyFileError, Keys
from amaranth_vta.sw.remote.messages import (
    ALIVE_SECONDS,
    MAX_BYTES,
    MessageError,
    packed,
    unpacked,
)

from .machine import Served, ServingLimits

# Maximum number of waiting clients, and poll interval while a request is in progress.
_MAX_WAITING = 64
_POLL_MILLISECONDS = 5
_HEARTBEAT_MILLISECONDS = 3000

Say = Callable[[str], None]


@dataclass
class _Client:
    """A client that owns the device, or waits for it with a request to open it."""

    identity: bytes
    request: dict[str, Any]
    heard: float


class Server:
    """Serves ``device`` at ``address`` to the clients that ``keys`` admit.

    One client at a time owns a machine, from ``open`` until ``close``, until it disconnects, or
    until it has been idle for ``limits.idle_seconds`` while others wait. Requests are validated,
    and can only access the memory and the registers of a simulated machine or of a board. ``say``
    is called with a message when the owner changes. Raises `OSError` if the address cannot be
    bound.
    """

    def __init__(
        self, keys: Keys, address: str, device: str, limits: ServingLimits, say: Say
    ) -> None:
        import zmq
        from zmq.auth.thread import ThreadAuthenticator

        self._zmq: Any = zmq
        self._keys, self._device, self._limits, self._say = keys, device, limits, say
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self)
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.CURVE_SERVER, 1),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.MAXMSGSIZE, MAX_BYTES),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MILLISECONDS),
            (zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MILLISECONDS),
            (zmq.LINGER, 0),
        ):
            self._socket.setsockopt(option, value)
        self._socket.curve_secretkey = keys.server.secret.encode()
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, error.strerror, address) from None
        self.address = str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        self._thread = ThreadPoolExecutor(1)
        self._owner: _Client | None = None
        self._served: Served | None = None
        self._waiting: list[_Client] = []
        self._work: Future[tuple[dict[str, Any], bytes]] | None = None
        self._working_on = ""

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the client with the public ``key`` is admitted; called by pyzmq."""
        with suppress(KeyFileError):
            return key.decode() in self._keys.admitted()
        return False

    def serve(self, ends: Callable[[], bool] = lambda: False) -> None:
        """Serves until ``ends`` returns True or an exception is raised."""
        told = time.monotonic()
        while not ends():
            if self._socket.poll(_POLL_MILLISECONDS if self._work else 100):
                self._take()
            if self._work is not None and self._work.done():
                self._finish(self._work)
            if time.monotonic() - told > ALIVE_SECONDS:
                told = time.monotonic()
                self._tell_all()
            self._next()

    def close(self) -> None:
        """Waits for a request in progress, then closes all connections."""
        self._thread.shutdown()
        if self._served is not None:
            self._served.close()
        self._authenticator.stop()
        self._context.destroy(linger=0)

    def _take(self) -> None:
        identity, *parts = self._socket.recv_multipart()
        request: dict[str, Any] = {}
        try:
            request, data = unpacked(parts)
            self._act(identity, request, data)
        except MessageError as error:
            self._reply(identity, request, {"error": str(error)})

    def _act(self, identity: bytes, request: dict[str, Any], data: bytes) -> None:
        owns = self._owner is not None and self._owner.identity == identity
        if request.get("do") == "open":
            if owns or any(client.identity == identity for client in self._waiting):
                raise MessageError("a machine is open or requested already")
            if len(self._waiting) >= _MAX_WAITING:
                raise MessageError(f"{_MAX_WAITING} clients are waiting already")
            self._waiting.append(_Client(identity, request, time.monotonic()))
            return
        if not owns or self._served is None:
            raise MessageError("no machine is open; an idle machine may be given to another client")
        if self._work is not None:
            raise MessageError("the previous request has no reply yet")
        assert self._owner is not None
        self._owner.request, self._owner.heard = request, time.monotonic()
        if request.get("do") == "close":
            self._reply(identity, request, {})
            self._release("is done")
            return
        self._start(self._served.act, request, data)

    def _start(self, work: Callable[..., tuple[dict[str, Any], bytes]], *arguments: Any) -> None:
        self._working_on = "the run"
        self._work = self._thread.submit(work, *arguments)

    def _next(self) -> None:
        """Give the device to the client that has waited longest, if it is free or its owner has
        been idle.
        """
        if self._work is not None or not self._waiting:
            return
        if self._owner is not None:
            if time.monotonic() - self._owner.heard < self._limits.idle_seconds:
                return
            self._release("was idle, and others wait")
        self._owner = self._waiting.pop(0)
        self._served = Served(self._device, self._limits)
        self._say(f"client {self._name(self._owner)} has the machine")
        self._start(self._served.open, self._owner.request, self._progress)

    def _progress(self, step: str) -> None:
        self._working_on = step

    def _finish(self, work: Future[tuple[dict[str, Any], bytes]]) -> None:
        self._work = None
        owner = self._owner
        assert owner is not None
        owner.heard = time.monotonic()
        try:
            header, data = work.result()
        except Exception as error:
            # Device errors are sent to the client, and must not end the server.
            header, data = {"error": " ".join(f"{error}".split()) or type(error).__name__}, b""
        if not self._reply(owner.identity, owner.request, header, data):
            self._release("is gone")
        elif "error" in header and owner.request.get("do") == "open":
            self._release(f"is refused: {header['error']}")

    def _release(self, why: str) -> None:
        assert self._owner is not None
        self._say(f"client {self._name(self._owner)} {why}")
        self._owner = None
        if self._served is not None:
            self._served.close()
        self._served = None

    def _tell_all(self) -> None:
        """Send a heartbeat to all clients, and drop those that have disconnected."""
        for place, client in enumerate(list(self._waiting)):
            said = f"waiting for {place + 1} before" if self._owner or place else "its turn"
            if not self._send(client.identity, {"wait": said}):
                self._waiting.remove(client)
        if self._owner is not None:
            there = self._send(
                self._owner.identity, {"wait": self._working_on if self._work else ""}
            )
            if not there and self._work is None:
                self._release("is gone")

    def _reply(
        self, identity: bytes, request: dict[str, Any], header: dict[str, Any], data: bytes = b""
    ) -> bool:
        return self._send(identity, {**header, "reply": request.get("request")}, data)

    def _send(self, identity: bytes, header: dict[str, Any], data: bytes = b"") -> bool:
        """Send a message; False if the client has disconnected."""
        try:
            self._socket.send_multipart([identity, *packed(header, data)], self._zmq.NOBLOCK)
        except self._zmq.Again:
            return True  # connected, but not reading
        except self._zmq.ZMQError:
            return False
        return True

    def _name(self, client: _Client) -> str:
        return client.identity.hex()[-6:]
