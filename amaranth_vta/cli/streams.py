"""Standard streams that can print any text, for any encoding, open or closed."""

from __future__ import annotations

import codecs
import io
import os
import sys

# Substitutes for characters that the encoding lacks; "?" for others.
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
    """Make standard streams print every character, and open closed ones.

    A closed stream becomes the null device. Otherwise the next opened file would get its
    descriptor, and a library's output would go into that file.
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
