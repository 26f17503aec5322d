"""What client and server say to each other: a header in JSON, and bytes.

A request names what to ``do``: open (with ``config``, ``memory_bytes``, ``dram``), write
(``address``, and the bytes), read (``address``, ``size``), run (``insn_addr``, ``insn_count``,
``time_limit``, ``watched``), close. Each has one reply, with ``reply`` the number that the request
had as ``request``, and in it ``error`` where it went wrong. Until then, and between requests, the
server says once a second that it is there: ``wait``, with what for.
"""

from __future__ import annotations

import json
from typing import Any

VERSION = 1
# How often the server says that it is there, and after how much silence the client gives up.
ALIVE_SECONDS = 1.0
SILENCE_SECONDS = 15.0
# Of one transfer: larger ones are cut.
MOST_BYTES = 16 << 20
MOST_HEADER = 1 << 20


class MessageError(ValueError):
    """Bytes that are no message."""


def packed(header: dict[str, Any], data: bytes | memoryview = b"") -> list[bytes | memoryview]:
    """The parts of a message."""
    return [json.dumps(header, default=int).encode(), data]


def unpacked(parts: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """Header and bytes; raises `MessageError`."""
    if len(parts) != 2 or len(parts[0]) > MOST_HEADER or len(parts[1]) > MOST_BYTES:
        raise MessageError("a message of another form or size")
    try:
        header = json.loads(parts[0])
    except (ValueError, RecursionError):
        raise MessageError("a header that is no JSON") from None
    if not isinstance(header, dict):
        raise MessageError("a header that is no object")
    return header, parts[1]


def whole_number(header: dict[str, Any], name: str) -> int:
    """A number of a header from 0; raises `MessageError`."""
    return _whole(name, header.get(name))


def whole_numbers(header: dict[str, Any], name: str) -> list[int]:
    """A list of such numbers, empty if it is missing; raises `MessageError`."""
    values = header.get(name, [])
    if not isinstance(values, list):
        raise MessageError(f"{name} is no list")
    return [_whole(name, value) for value in values]


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise MessageError(f"{name} is no whole number from 0")
    return value
