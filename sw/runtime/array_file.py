"""Reads named arrays from an .npz file from an untrusted source.

A file of a few kilobytes can declare arrays larger than memory: sizes are checked before anything
is read, against the file and against a limit. Nothing in a file is executed.
"""

from __future__ import annotations

import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError

Arrays = Mapping[str, npt.NDArray[Any]]
LIMIT_VARIABLE = "VTA_FILE_LIMIT"
_LIMIT_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SUFFIX = ".npy"
# Other compression methods may need gigabytes to unpack a few bytes.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Header readers by format version. Version 3 is for named fields, which are not used here.
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# The exceptions that reading a damaged file raises.
DAMAGE = (
    ValueError,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


class FileLimitError(VtaError, ValueError):
    """A file contains, or declares, more bytes than `file_limit` allows."""


class DamagedFile(ValueError):
    """A file is damaged; the message states the damage, but not the file name."""


def file_limit() -> int:
    """Maximum bytes that a file may contain or declare: $VTA_FILE_LIMIT, such as 4G, or 1 GiB.

    Raises `FileLimitError` if the variable is not a number of bytes.
    """
    text = os.environ.get(LIMIT_VARIABLE, "").strip().upper()
    if not text:
        return _LIMIT_BYTES
    number, unit = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "")
    if not (number.isascii() and number.isdecimal()):
        raise FileLimitError(f"{LIMIT_VARIABLE} = {text} is not a number of bytes, such as 4G")
    return int(number) * _UNITS[unit]


def require_within_limit(what: str, size: int) -> None:
    """Raises `FileLimitError` if ``size`` bytes exceed the limit; ``what`` names the data."""
    limit = file_limit()
    if size > limit:
        raise FileLimitError(f"{what} takes {size:,} bytes, more than {_trusted(limit)}")


def _trusted(limit: int) -> str:
    return (
        f"the {limit:,} bytes that a file may take in memory ({LIMIT_VARIABLE} in the environment "
        "sets another limit)"
    )


def read_limited(path: str | Path) -> bytes:
    """The contents of a file, which may be a device or an endless pipe.

    Raises `OSError`, and `FileLimitError` if it holds more than the limit.
    """
    limit = file_limit()
    with Path(path).open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise FileLimitError(f"it is longer than {_trusted(limit)}")
    return data


def write_arrays(file: IO[bytes], arrays: Arrays, compressed: bool = False) -> None:
    """Write ``arrays`` as an .npz, readable by `numpy.load`, to an open file."""
    # numpy.savez cannot store arrays with the names of its own parameters.
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(_Sequential(file), "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}{_SUFFIX}", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


class _Sequential(io.RawIOBase):
    """A file that is written sequentially: devices such as /dev/null claim to be seekable but are
    not.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)


class ArrayFile:
    """The arrays in an open .npz file; each is read on request.

    Raises `DamagedFile` if it is not an .npz file or two arrays have the same name, and
    `FileLimitError`.
    """

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._archive = zipfile.ZipFile(file)
            members = self._archive.infolist()
        except DAMAGE as error:
            raise DamagedFile(f"its list of contents: {_reason(error)}") from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        for item in members:
            name = item.filename.removesuffix(_SUFFIX)
            if name in self._members:
                raise DamagedFile(f"there are two arrays {name}")
            self._members[name] = item
        require_within_limit("what it holds", sum(item.file_size for item in members))

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def read(self, name: str) -> npt.NDArray[Any]:
        """The array ``name``, writable; raises `DamagedFile`."""
        member = self._members[name]
        try:
            if member.compress_type not in _METHODS:
                raise DamagedFile("it is compressed in a way that .npz files do not use")
            with self._archive.open(member) as file:
                return _array(file, member.file_size)
        except FileLimitError:
            raise
        except DAMAGE as error:
            raise DamagedFile(f"{name} cannot be read: {_reason(error)}") from None

    def read_all(self) -> dict[str, npt.NDArray[Any]]:
        return {name: self.read(name) for name in self._members}


def is_single_array(file: IO[bytes]) -> bool:
    """Whether an open file is a single array (.npy); leaves the file position at the start."""
    begin = file.read(len(np.lib.format.MAGIC_PREFIX))
    file.seek(0)
    return begin == np.lib.format.MAGIC_PREFIX


def read_single_array(file: IO[bytes]) -> npt.NDArray[Any]:
    """The array in an open .npy file; raises `DamagedFile` or `FileLimitError`."""
    try:
        return _array(file, os.fstat(file.fileno()).st_size)
    except FileLimitError:
        raise
    except DAMAGE as error:
        raise DamagedFile(_reason(error)) from None


def _array(file: IO[bytes], size: int) -> npt.NDArray[Any]:
    """The array in the ``size`` bytes of a member."""
    read_header = _HEADERS.get(np.lib.format.read_magic(file))
    if read_header is None:
        raise DamagedFile("its version is unknown")
    shape, by_column, dtype = read_header(file)
    if dtype.hasobject:
        raise DamagedFile("it holds Python objects")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != size - file.tell():
        raise DamagedFile(f"it is not an array of shape {list(shape)} and dtype {dtype}")
    # With zero-byte elements any count would fit.
    require_within_limit("an array in it", count * max(1, dtype.itemsize))
    data = bytearray(count * dtype.itemsize)
    if file.readinto(data) != len(data) or file.read(1):  # type: ignore[attr-defined]
        raise DamagedFile("it ends too early")
    flat = np.frombuffer(data, dtype) if data else np.empty(count, dtype)
    return flat.reshape(shape[::-1]).T if by_column else flat.reshape(shape)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
