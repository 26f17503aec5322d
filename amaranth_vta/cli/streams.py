"""Standard streams on which any text can be printed, whatever their encoding, open or closed."""

from __future__ import annotations

import codecs
import io
import os
import sys

# What is printed in place of a character that the encoding lacks; "?" for others.
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
# Undecodable bytes of a file name are these code points plus 0xDC00 in Python's strings.
_ESCAPED_BYTES = range(0xDC80, 0xDD00)


def prepare_streams() -> None:
    """Lets standard streams print every character, and opens those that are closed.

    A closed stream becomes the null device. Without that, the next file that is opened would take
    its descriptor, and what a library prints would land in it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
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
