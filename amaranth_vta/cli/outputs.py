"""Output files and folders that appear complete or not at all."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import click

_STDOUT = "-"


class OutputError(click.ClickException):
    """An output file that cannot be written."""


class Outputs:
    """The output files of a command.

    `reserve` opens a temporary file in the folder of each path, so that a path that cannot be
    written is found before the work and not after it; `save` fills the file and moves it into
    place. What has not been saved when the block ends leaves nothing behind.

    A path of ``-`` is standard output. Then `say` writes to standard error, to keep the output
    clean.
    """

    def __init__(self) -> None:
        self._files: dict[str, _Output | _StandardOutput | _Folder] = {}
        self._stdout_is_taken = False

    @property
    def text_width(self) -> int:
        """The columns of the terminal, or of the variable COLUMNS; 80 where neither says."""
        return shutil.get_terminal_size().columns

    def say(self, text: str) -> None:
        """Prints a line for the user."""
        click.echo(text, err=self._stdout_is_taken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._files.values():
            file.discard()

    def reserve(self, option: str, path: str | None) -> Path | None:
        """Opens the file that ``option`` names; does nothing if it was not given.

        Returns its path until it is saved, for code that writes files itself. Raises `OutputError`
        when it cannot be written, or is also the file of another option.
        """
        if path is None:
            return None
        output = _StandardOutput(option) if path == _STDOUT else _Output(option, path)
        for other in self._files.values():
            if other.target == output.target:
                output.discard()
                raise OutputError(f"{other.option} and {option} name the same file, {path}")
        self._files[option] = output
        self._stdout_is_taken |= path == _STDOUT
        return output.part

    def save(self, option: str, write: Callable[[IO[bytes]], object] | None = None) -> None:
        """Saves the file of ``option``, if that was given. ``write`` fills it, unless it has been
        written to its path already."""
        output = self._files.pop(option, None)
        if isinstance(output, _Output | _StandardOutput):
            output.save(write)

    def reserve_folder(self, option: str, path: str | None, replaced: str) -> None:
        """Makes room for the folder that ``option`` names; does nothing if it was not given.

        Raises `OutputError` when it cannot be written, or exists and may not be replaced: only an
        empty folder, or one with a file named ``replaced``, may.
        """
        if path is not None:
            self._files[option] = _Folder(option, path, replaced)

    def save_folder(self, option: str, files: Mapping[str, bytes]) -> None:
        """Fills the folder of ``option``, if that was given, with files by name."""
        output = self._files.pop(option, None)
        if isinstance(output, _Folder):
            output.save(files)

    def save_json(self, option: str, value: Any) -> None:
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
        self.save(option, lambda file: file.write(text.encode()))


class _Output:
    def __init__(self, option: str, path: str) -> None:
        self.option, self._path = option, path
        self.target = Path(os.path.realpath(path))
        # /dev/stdout is written to and not replaced, even where it leads to a regular file.
        special = path.startswith("/dev/") or (self.target.exists() and not self.target.is_file())
        self._replaced = not special
        self.part = Path(path)
        if self._replaced:
            if self.target.exists() and not os.access(self.target, os.W_OK):
                raise self._problem("Permission denied")
            self.part = self.target.with_name(f".{secrets.token_hex(6)}.part")
        try:
            self._file = self.part.open("xb" if self._replaced else "ab")
        except OSError as error:
            raise self._problem(error.strerror) from None

    def save(self, write: Callable[[IO[bytes]], object] | None) -> None:
        try:
            if write is not None:
                write(self._file)
            self._file.close()
            if self._replaced:
                self.part.replace(self.target)
        except OSError as error:
            self.discard()
            raise self._problem(error.strerror) from None

    def discard(self) -> None:
        # Closing flushes, which fails on a full disk; the file is removed anyway.
        with suppress(OSError):
            self._file.close()
        if self._replaced:
            self.part.unlink(missing_ok=True)

    def _problem(self, reason: str | None) -> OutputError:
        return OutputError(f"{self.option} {self._path} cannot be written: {reason}")


class _StandardOutput:
    def __init__(self, option: str) -> None:
        self.option = option
        self.target = Path(_STDOUT)
        # The path for code that writes its file itself.
        self.part = Path("/dev/stdout")

    def save(self, write: Callable[[IO[bytes]], object] | None) -> None:
        if write is None:
            return
        sys.stdout.flush()
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()

    def discard(self) -> None:
        pass


class _Folder:
    def __init__(self, option: str, path: str, replaced: str) -> None:
        self.option, self._path = option, path
        self.target = Path(os.path.realpath(path))
        self._part = self.target.with_name(f".{secrets.token_hex(6)}.part")
        if self.target.exists():
            if not self.target.is_dir():
                raise self._problem("it is a file")
            if any(self.target.iterdir()) and not (self.target / replaced).exists():
                raise self._problem(f"it holds other things and no {replaced}")
        try:
            self._part.mkdir()
        except OSError as error:
            raise self._problem(error.strerror) from None

    def save(self, files: Mapping[str, bytes]) -> None:
        before = self.target.with_name(f".{secrets.token_hex(6)}.part")
        try:
            for name, data in files.items():
                (self._part / name).write_bytes(data)
            if self.target.exists():
                self.target.rename(before)
            self._part.rename(self.target)
        except OSError as error:
            self.discard()
            raise self._problem(error.strerror) from None
        shutil.rmtree(before, ignore_errors=True)

    def discard(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)

    def _problem(self, reason: str | None) -> OutputError:
        return OutputError(f"{self.option} {self._path} cannot be written: {reason}")
