"""Identify files that are not ONNX models."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

# Bytes inspected; a tar archive has its magic at byte 257.
_HEAD = 1 << 12
_ONNX = "convert it to ONNX first"
_UNPACK = "unpack it first"
# Kinds by the first bytes of a file.
_BEGINNINGS = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer and not the file itself, which `git lfs pull` fetches",
    ),
    (b"\x1f\x8b", f"compressed by gzip: {_UNPACK}"),
    (b"BZh", f"compressed by bzip2: {_UNPACK}"),
    (b"\xfd7zXZ\x00", f"compressed by xz: {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", f"compressed by zstd: {_UNPACK}"),
    (b"7z\xbc\xaf\x27\x1c", f"a 7z archive: {_UNPACK}"),
    (b"Rar!", f"a RAR archive: {_UNPACK}"),
    (b"\x89HDF\r\n\x1a\n", f"an HDF5 file, as Keras writes: {_ONNX}"),
    (b"GGUF", "a GGUF file of llama.cpp, which holds weights and no graph"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x7fELF", "an executable or library"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
)
# Kinds by bytes 4 to 7, where FlatBuffers files name their schema.
_SCHEMAS = {
    b"ORTM": "a model in ONNX Runtime's own format: give the ONNX file that it was made of",
}
_PRINTED = bytes(code for code in range(256) if code >= 32 and code != 127) + b"\t\n\r\f"
_PICKLE = f"a Python pickle, as torch.save writes: {_ONNX}, with torch.onnx.export"


def kind_of(source: Path | bytes) -> str:
    """The kind of a file that was passed as an ONNX model or its data, as in "a NumPy array"; empty
    if it may be an ONNX model."""
    if isinstance(source, bytes):
        data = source[:_HEAD]
    else:
        with source.open("rb") as file:
            data = file.read(_HEAD)
    if not data:
        return "empty"
    for beginning, kind in _BEGINNINGS:
        if data.startswith(beginning):
            return kind
    if data[4:8] in _SCHEMAS:
        return _SCHEMAS[data[4:8]]
    if data.startswith(b"PK\x03\x04"):
        return _archive(source)
    if data[257:262] == b"ustar":
        return f"a tar archive: {_UNPACK}"
    if data[:1] == b"\x80" and data[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return _PICKLE
    if data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= 100 << 20:
        return f"a safetensors file, which holds weights and no graph: {_ONNX}"
    return _text(data)


def _archive(source: Path | bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as file:
            names = file.namelist()[:10_000]
            comment = file.comment
    except (OSError, zipfile.BadZipFile, ValueError):
        return "a damaged zip archive"
    if any(name.endswith("data.pkl") for name in names):
        return f"a PyTorch file: {_ONNX}, with torch.onnx.export"
    if "model.weights.h5" in names:
        return f"a Keras archive: {_ONNX}"
    if any(name.endswith("header.npy") for name in names) or b"vta" in comment:
        return "a compiled network or a program image, which holds no ONNX model"
    if names and all(name.endswith(".npy") for name in names):
        return "an .npz of NumPy arrays"
    return f"a zip archive: {_UNPACK}"


def _text(data: bytes) -> str:
    """The kind of a text file; empty for other files."""
    beginning = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:100].lower()
    if beginning.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page and not the file itself: it may ask for a login, or show an error"
    if beginning.startswith((b"<?xml", b"<net", b"<error")):
        return "an XML document"
    if beginning.startswith((b"{", b"[")) and _may_be_json(data):
        return "a JSON document"
    # A protobuf model contains lengths and tags that are control characters.
    return "a text file" if data.translate(None, _PRINTED) == b"" else ""


def _may_be_json(data: bytes) -> bool:
    if len(data) == _HEAD:
        return data.isascii()
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True
