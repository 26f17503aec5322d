"""Host side of the link to a board: sends requests, receives replies, retransmits lost frames.

The frames are those of `amaranth_vta.hw.boards.protocol`. The line is any object with pyserial's
methods, in practice a `serial.Serial`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.boards import protocol
from amaranth_vta.hw.boards.protocol import MAX_WORDS, WORD_BYTES, Command, Status

# Time for which requests are repeated without a reply before the board counts as missing.
PATIENCE_SECONDS = 6.0
# Silence of the board after which a request or its reply counts as lost, as a part of this time.
_SILENT = 1 / 6
# Timeout of one read of the line, and the maximum number of empty reads in a row that are awaited
# to detect silence.
_WAIT_SECONDS = 0.05
_MAX_WAITS = 8
# Maximum bytes of replies in flight: what the kernel buffers for a serial line.
_REPLY_BYTES = 4096
# Maximum requests in flight: fewer than half of the sequence numbers.
_MAX_REQUESTS = 64
_FRAME_BYTES = 1 + protocol.CHECKSUM_BYTES


class LinkError(VtaError, RuntimeError):
    """The board does not answer, or its serial port has disappeared; the message names the port."""


class Line(Protocol):
    """The methods of `serial.Serial` that the link uses."""

    port: str
    timeout: float | None

    def read(self, size: int = 1) -> bytes: ...
    def write(self, data: bytes) -> int | None: ...
    def close(self) -> None: ...
    @property
    def in_waiting(self) -> int: ...


@dataclass(frozen=True)
class LinkRequest:
    """One request: a READ asks for ``words`` words, the others carry theirs in ``payload``."""

    command: Command
    address: int = 0
    payload: bytes = b""
    words: int = 0

    @property
    def reply_words(self) -> int:
        return self.words if self.command in (Command.READ, Command.IDENTIFY) else 0

    @property
    def reply_bytes(self) -> int:
        header = protocol.REPLY_HEADER_BYTES
        return _FRAME_BYTES + header + WORD_BYTES * self.reply_words + 1

    def frame(self, sequence: int) -> bytes:
        words = len(self.payload) // WORD_BYTES or self.words
        header = bytes([sequence, self.command, words]) + self.address.to_bytes(4, "little")
        body = header + self.payload
        return bytes([protocol.REQUEST_START]) + body + crc32(body).to_bytes(4, "little")


@dataclass(frozen=True)
class Reply:
    sequence: int
    payload: bytes
    status: int


@dataclass
class _Sent:
    sequence: int
    request: LinkRequest
    frame: bytes


class Link:
    """Sends requests to the board at the other end of ``line``; each is executed exactly once.

    Every method raises `LinkError` if the board does not answer within ``patience`` seconds; a
    sixth of them without a byte means that a request or its reply was lost. Slow simulations need
    more than a board.
    """

    def __init__(self, line: Line, patience: float = PATIENCE_SECONDS) -> None:
        self._line = line
        self._patience = patience
        self._silent = patience * _SILENT
        self._sequence = 0
        self._received = bytearray()
        # Number of retransmission rounds.
        self.resent = 0
        line.timeout = _WAIT_SECONDS

    def identify(self) -> list[int]:
        """Read the board's first registers, and synchronize the sequence numbers of both ends."""
        request = LinkRequest(Command.IDENTIFY, words=protocol.IDENTIFY_WORDS)
        (payload,) = self._exchange([request])
        return _words(payload)

    def read(self, address: int, count: int) -> bytes:
        """Read ``count`` words at byte ``address``, a multiple of 4."""
        requests = [
            LinkRequest(Command.READ, address + WORD_BYTES * at, words=min(MAX_WORDS, count - at))
            for at in range(0, count, MAX_WORDS)
        ]
        return b"".join(self._exchange(requests))

    def write(self, address: int, payload: bytes) -> None:
        """Write ``payload``, whole words, at byte ``address``, a multiple of 4."""
        most = MAX_WORDS * WORD_BYTES
        self._exchange(
            [
                LinkRequest(Command.WRITE, address + at, payload[at : at + most])
                for at in range(0, len(payload), most)
            ]
        )

    def fill(self, address: int, count: int, word: int = 0) -> None:
        """Write ``word`` ``count`` times, from byte ``address`` on."""
        if count:
            payload = word.to_bytes(4, "little") + count.to_bytes(4, "little")
            self._exchange([LinkRequest(Command.FILL, address, payload)])

    def read_words(self, address: int, count: int) -> list[int]:
        return _words(self.read(address, count))

    def write_words(self, address: int, words: Sequence[int]) -> None:
        self.write(address, b"".join(word.to_bytes(WORD_BYTES, "little") for word in words))

    def close(self) -> None:
        self._line.close()

    def _exchange(self, requests: Sequence[LinkRequest]) -> list[bytes]:
        """Send requests, with as many in flight as both ends can buffer; returns the payloads of
        the replies.
        """
        waiting = deque(requests)
        sent: deque[_Sent] = deque()
        payloads: list[bytes] = []
        deadline, tries = time.monotonic() + self._patience, 0
        while waiting or sent:
            while waiting and _fits(sent, waiting[0]):
                request = waiting.popleft()
                self._sequence = (self._sequence + 1) % 256
                sent.append(_Sent(self._sequence, request, request.frame(self._sequence)))
                self._send(sent[-1].frame)
            oldest = sent[0]
            reply = self._receive()
            if reply is not None and not any(reply.sequence == item.sequence for item in sent):
                continue  # a second reply to a retransmitted request
            if reply is not None and _answers(reply, oldest):
                if reply.status != Status.DONE:
                    raise LinkError(
                        f"the board at {self._line.port} refuses to {oldest.request.command.name} "
                        f"at {oldest.request.address:#x}"
                    )
                payloads.append(reply.payload)
                sent.popleft()
                deadline, tries = time.monotonic() + self._patience, 0
                continue
            if time.monotonic() > deadline:
                raise LinkError(
                    f"the board at {self._line.port} does not answer: is it programmed with "
                    "`vta program`, and is this its port?"
                )
            tries += 1
            self._settle(tries)
            for item in sent:
                self._send(item.frame)
        return payloads

    def _send(self, frame: bytes) -> None:
        try:
            self._line.write(frame)
        except OSError as error:
            raise disconnected(self._line, error) from None

    def _settle(self, tries: int) -> None:
        """Drop replies in flight by waiting for silence, longer with each try; meanwhile the board
        drops an incomplete request.
        """
        self.resent += 1
        deadline = time.monotonic() + self._silent
        quiet, longest = 0, min(1 << tries, _MAX_WAITS)
        while quiet < longest and time.monotonic() < deadline:
            quiet = 0 if self._take() else quiet + 1
        self._received.clear()

    def _receive(self) -> Reply | None:
        """The next reply with a valid checksum; None if the line stays silent."""
        deadline = time.monotonic() + self._silent
        while True:
            for reply in self._replies():
                return reply
            if self._take():
                deadline = time.monotonic() + self._silent
            elif time.monotonic() > deadline:
                return None

    def _take(self) -> bool:
        """Append bytes that have arrived, with a short timeout; returns whether there were any."""
        try:
            received = self._line.read(max(1, self._line.in_waiting))
        except OSError as error:
            raise disconnected(self._line, error) from None
        self._received += received
        return bool(received)

    def _replies(self) -> Iterator[Reply]:
        """Yields complete replies; each is first removed from the received bytes."""
        received = self._received
        while True:
            start = received.find(protocol.REPLY_START)
            del received[: start if start >= 0 else len(received)]
            if len(received) < 1 + protocol.REPLY_HEADER_BYTES:
                return
            body = protocol.REPLY_HEADER_BYTES + WORD_BYTES * received[2] + 1
            end = 1 + body
            if received[2] > MAX_WORDS:
                del received[0]
                continue
            if len(received) < end + protocol.CHECKSUM_BYTES:
                return
            checksum = int.from_bytes(received[end : end + protocol.CHECKSUM_BYTES], "little")
            if crc32(received[1:end]) != checksum:
                del received[0]
                continue
            reply = Reply(received[1], bytes(received[3 : end - 1]), received[end - 1])
            del received[: end + protocol.CHECKSUM_BYTES]
            yield reply


def disconnected(line: Line, error: OSError) -> LinkError:
    """The error to raise after an ``error`` of ``line``."""
    return LinkError(f"the serial port {line.port} was disconnected: {error}")


def _fits(sent: deque[_Sent], request: LinkRequest) -> bool:
    """Whether the buffers of board and kernel have room for ``request`` and its reply."""
    if not sent:
        return True
    asked = sum(len(item.frame) for item in sent) + len(request.frame(0))
    answered = sum(item.request.reply_bytes for item in sent) + request.reply_bytes
    return (
        asked <= protocol.RECEIVE_BYTES and answered <= _REPLY_BYTES and len(sent) < _MAX_REQUESTS
    )


def _answers(reply: Reply, sent: _Sent) -> bool:
    if reply.sequence != sent.sequence or reply.status == Status.OUT_OF_ORDER:
        return False
    return (
        reply.status != Status.DONE or len(reply.payload) == WORD_BYTES * sent.request.reply_words
    )


def _words(payload: bytes) -> list[int]:
    return [
        int.from_bytes(payload[at : at + WORD_BYTES], "little")
        for at in range(0, len(payload), WORD_BYTES)
    ]
