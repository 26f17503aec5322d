"""Makes standard streams print any text, whatever their encoding, open or closed."""

from __future__ import annotations

import codecs
import io
import os
import sys

# Substitutes for characters that the encoding lacks; other characters become "?".
_REPLACEMENTS = {
    "─": "-",
    "│": "|",
    "×": "x",
    "·": ".",
    "→": "->",
    "…": "...",
    "–": "-",
    "≥": ">=",
    "≤": "<=",
    "²": "^2",
    "µ": "u",
}
_NAME = "vta-replace"
# Python represents undecodable bytes of a file name as these code points, 0xDC00 plus the byte.
_ESCAPED_BYTES = range(0xDC80, 0xDD00)


def prepare_streams() -> None:
    """Make standard streams print every character, and reopen closed streams.

    A closed stream is opened as the null device. Otherwise the next opened file would get its
    descriptor, and a library's output would go into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: the stream's
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    codecs.register_error(_NAME, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    if ord(character) in _ESCAPED_BYTES:
        return bytes([ord(character) - 0xDC00]), error.start + 1
    text = _REPLACEMENTS.get(character, "?")
    return text.encode("ascii"), error.start + 1
