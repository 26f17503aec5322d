"""Files of arrays: any name, no surprises in memory, nothing executed."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.sw.runtime.array_file import (
    ArrayFile,
    DamagedFile,
    FileLimitError,
    file_limit,
    is_single_array,
    read_limited,
    read_single_array,
    write_arrays,
)


def written(arrays: dict[str, np.ndarray], compressed: bool = False) -> io.BytesIO:
    file = io.BytesIO()
    write_arrays(file, arrays, compressed)
    file.seek(0)
    return file


def member(header: str, data: bytes = b"", method: int = zipfile.ZIP_DEFLATED) -> io.BytesIO:
    """A file with one array ``x`` of this header."""
    text = header.encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)
    file.seek(0)
    return file


def described(shape: tuple[int, ...], dtype: str = "|u1") -> str:
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_written_is_read_by_us_and_by_numpy(compressed: bool) -> None:
    arrays: dict[str, np.ndarray] = {
        "file": np.arange(6, dtype=np.int8).reshape(2, 3),
        "allow_pickle": np.array(1.5, np.float32),
        "by/column": np.asfortranarray(np.arange(6, dtype=">u2").reshape(2, 3)),
        "empty": np.zeros((0, 4), np.int64),
        "text": np.array("configuration"),
    }
    file = written(arrays, compressed)
    found = ArrayFile(file)
    assert found.names == list(arrays)
    for name, array in found.read_all().items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])
        assert array.flags.writeable
        file.seek(0)
        np.testing.assert_array_equal(np.load(file)[name], arrays[name])


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (member(described((4,)), b"123"), r"it is not an array of shape \[4\] and dtype uint8"),
        (member(described((10**18,)), b"123"), "it is not an array of shape"),
        (member(described((-1,)), b"123"), "it is not an array of shape"),
        (member(described((2**40, 2**40), "|V0")), "takes"),
        (member(described((1,), "|O"), b"12345678"), "Python objects"),
        (member("{'descr': __import__('os').abort()}"), "cannot be read"),
        (member("[" * 5000), "cannot be read"),
        (member(described((3,)), b"123", zipfile.ZIP_LZMA), "compressed in a way"),
        (member(described((3,)), b"123", zipfile.ZIP_BZIP2), "compressed in a way"),
    ],
)
def test_what_contradicts_itself_is_refused(file: io.BytesIO, what: str) -> None:
    archive = ArrayFile(file)
    with pytest.raises((DamagedFile, FileLimitError), match=what):
        archive.read("x")


def test_two_arrays_of_one_name_are_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"one")
        archive.writestr("x", b"other")
    with pytest.raises(DamagedFile, match="two arrays x"):
        ArrayFile(file)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    file = member(described((2**22,)), bytes(2**22))
    assert len(file.getvalue()) < 2**13
    assert ArrayFile(file).read("x").size == 2**22
    monkeypatch.setenv("VTA_FILE_LIMIT", "1M")
    with pytest.raises(
        FileLimitError, match="takes 4,194,[0-9]* bytes, more than the 1,048,576 .*VTA_FILE_LIMIT"
    ):
        ArrayFile(file)


def test_every_flipped_byte_is_refused_or_read() -> None:
    original = written({"x": np.arange(40, dtype=np.int16)}, compressed=True).getvalue()
    for position in range(len(original)):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(original)
            damaged[position] = value
            with contextlib.suppress(DamagedFile, FileLimitError):
                ArrayFile(io.BytesIO(damaged)).read_all()


def test_an_array_that_ends_early_is_damaged_although_its_checksum_fits() -> None:
    file = bytearray(member(described((40,)), b"abcd").getvalue())
    size = file.index(b"PK\x01\x02") + 24  # in the list of contents
    (declared,) = struct.unpack_from("<I", file, size)
    struct.pack_into("<I", file, size, declared + 36)
    with pytest.raises(DamagedFile, match="x cannot be read: it ends too early"):
        ArrayFile(io.BytesIO(file)).read("x")


@pytest.mark.parametrize(
    ("text", "size"), [("", 1 << 30), ("100", 100), ("2k", 2048), ("4G", 4 << 30)]
)
def test_the_limit_can_be_set(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", text)
    assert file_limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "4T", "1.5G", "G", "\N{FULLWIDTH DIGIT FOUR}"])
def test_a_limit_that_is_not_a_number_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", text)
    with pytest.raises(FileLimitError, match="is not a number of bytes, such as 4G"):
        file_limit()


def test_a_file_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTA_FILE_LIMIT", "1M")
    with pytest.raises(FileLimitError, match="longer than the 1,048,576 bytes"):
        read_limited("/dev/zero")


def test_a_single_array_is_told_from_several_and_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6).reshape(2, 3))
    with path.open("rb") as file:
        assert is_single_array(file)
        np.testing.assert_array_equal(read_single_array(file), np.arange(6).reshape(2, 3))
    assert not is_single_array(written({"x": np.arange(6)}))
    path.write_bytes(path.read_bytes()[:-1])
    with path.open("rb") as file, pytest.raises(DamagedFile, match="it is not an array of shape"):
        read_single_array(file)
