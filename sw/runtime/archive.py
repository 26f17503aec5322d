"""Files of programs and networks: a JSON header and arrays in one .npz, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from amaranth_vta.errors import VtaError
from amaranth_vta.hw.config import Config, ConfigError, unique_keys

from .array_file import DAMAGE, ArrayFile, Arrays, DamagedFile, FileLimitError, write_arrays

Made = TypeVar("Made")
_VERSION = 1
_FORMAT = "amaranth-vta"
_MAGIC = b"PK\x03\x04"


class ProgramError(VtaError, ValueError):
    """A program is damaged, incomplete, or compiled for another machine; the message says which."""


def write_archive(file: IO[bytes], kind: str, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write an archive of ``kind`` to an open file."""
    header = {**header, "format": f"{_FORMAT} {kind}", "version": _VERSION}
    header["checksum"] = _checksum(header, arrays)
    write_arrays(file, {"header": np.array(json.dumps(header)), **arrays})


def save_archive(path: str | Path, kind: str, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write an archive to ``path`` atomically; raises `ProgramError`."""
    _save(Path(path), lambda file: write_archive(file, kind, header, arrays))


def save_arrays(path: str | Path, arrays: Arrays) -> None:
    """Write an .npz with arrays only, atomically; raises `ProgramError`."""
    _save(Path(path), lambda file: write_arrays(file, arrays))


def is_archive(path: str | Path) -> bool:
    """Whether a file looks like an archive: a zip file with the header's name in it. A zip file
    with an unreadable directory counts, as it may be a damaged archive.
    """
    try:
        with Path(path).open("rb") as file:
            if file.read(4) != _MAGIC:
                return False
            try:
                return "header.npy" in zipfile.ZipFile(file).namelist()
            except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError):
                return True
    except OSError:
        return False


def load_archive(
    path: str | Path, kind: str, make: Callable[[dict[str, Any], Arrays], Made]
) -> Made:
    """Call ``make`` with the header and the arrays of a file written by `save_archive`.

    Raises `ProgramError` if the file cannot be read, is not of that ``kind``, is damaged or has
    another version, or if ``make`` fails on its contents, and `FileLimitError`.
    """
    arrays = _read(Path(path), kind)
    header = _parsed_header(path, kind, arrays.pop("header"))
    checksum = header.pop("checksum", None)
    if checksum != _checksum(header, arrays):
        raise ProgramError(f"{path} is damaged: its checksum does not match its contents")
    try:
        return make(header, arrays)
    except ConfigError as error:
        raise ProgramError(f"{path}: {error}") from None
    except FileLimitError as error:
        raise FileLimitError(f"{path}: {error}") from None
    except KeyError as error:
        raise ProgramError(f"{path} is damaged: it has no {error}") from None
    except (*DAMAGE, LookupError, AttributeError, AssertionError) as error:
        raise ProgramError(f"{path} is damaged: {error}") from None


def require(holds: bool, problem: str) -> None:
    """Raises `ValueError` unless ``holds``; `load_archive` then reports a damaged file."""
    if not holds:
        raise ValueError(problem)


def check_config(what: str, made_for: Config, config: Config) -> None:
    """Raises `ProgramError`, naming differing parameters, unless the configurations are equal."""
    if made_for != config:
        names = [
            item.name
            for item in fields(Config)
            if getattr(made_for, item.name) != getattr(config, item.name)
        ]
        differences = ", ".join(
            f"{name.upper()} = {getattr(made_for, name)} (here {getattr(config, name)})"
            for name in names
        )
        raise ProgramError(f"{what} was made for a machine with {differences}")


def _checksum(header: Mapping[str, Any], arrays: Arrays) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _save(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    part = path.with_name(f".{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise ProgramError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            part.unlink()


def _read(path: Path, kind: str) -> dict[str, npt.NDArray[Any]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ProgramError(f"{path} is not a compiled {kind}")
        file.seek(0)
        try:
            archive = ArrayFile(file)
            if "header" not in archive.names:
                raise ProgramError(f"{path} is not a compiled {kind}: it has no header")
            return archive.read_all()
        except FileLimitError as error:
            raise FileLimitError(f"{path}: {error}") from None
        except DamagedFile as error:
            raise ProgramError(f"{path} is truncated or damaged: {error}") from None


def _parsed_header(path: str | Path, kind: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    try:
        header = json.loads(str(array), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        raise ProgramError(f"{path} is damaged: its header cannot be read") from None
    if not isinstance(header, dict) or header.get("format") != f"{_FORMAT} {kind}":
        raise ProgramError(f"{path} is not a compiled {kind}")
    if header.get("version") != _VERSION:
        raise ProgramError(
            f"{path} has format version {header.get('version')}; this release reads {_VERSION}"
        )
    return header
