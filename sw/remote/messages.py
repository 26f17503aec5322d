"""Messages between client and server: a JSON header and bytes.

The field ``do`` of a request is the action: open (with ``config``, ``memory_bytes``, ``dram``),
write (``address``, and the bytes), read (``address``, ``size``), run (``insn_addr``,
``insn_count``, ``time_limit``, ``watched``), close. Each request has one reply, whose ``reply``
equals the request's number ``request``; ``error`` is present if the request failed. Until the
reply, and between requests, the server sends a heartbeat every second: ``wait``, with the reason.
"""

from __future__ import annotations

import json
from typing import Any

VERSION = 1
# Interval between heartbeats of the server, and the silence after which the client gives up.
ALIVE_SECONDS = 1.0
SILENCE_SECONDS = 15.0
# Maximum bytes per message: larger transfers are split.
MAX_BYTES = 16 << 20
MAX_HEADER = 1 << 20


class MessageError(ValueError):
    """Received bytes are not a valid message; the text says why."""


def packed(header: dict[str, Any], data: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """The parts of a message."""
    return [json.dumps(header, default=int).encode(), data]


def unpacked(parts: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """Header and bytes; raises `MessageError`."""
    if len(parts) != 2 or len(parts[0]) > MAX_HEADER or len(parts[1]) > MAX_BYTES:
        raise MessageError("a message has an unexpected form or size")
    try:
        header = json.loads(parts[0])
    except (ValueError, RecursionError):
        raise MessageError("the header of a message is not JSON") from None
    if not isinstance(header, dict):
        raise MessageError("the header of a message is not a JSON object")
    return header, parts[1]


def whole_number(header: dict[str, Any], name: str) -> int:
    """The non-negative integer ``name`` of a header; raises `MessageError`."""
    return _whole(name, header.get(name))


def whole_numbers(header: dict[str, Any], name: str) -> list[int]:
    """The list ``name`` of non-negative integers, empty if it is missing; raises `MessageError`."""
    values = header.get(name, [])
    if not isinstance(values, list):
        raise MessageError(f"{name} is not a list")
    return [_whole(name, value) for value in values]


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise MessageError(f"{name} is not a whole number of 0 or more")
    return value
