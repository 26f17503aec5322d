"""Output files and folders that are written atomically."""

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
from typing import IO, TYPE_CHECKING, Any, Self

import click

from amaranth_vta.errors import VtaError

if TYPE_CHECKING:
    from amaranth_vta.sim.trace.perfetto import Timeline

_STDOUT = "-"
_TRACE = "--trace"
WAVES = "--waves"


class OutputError(VtaError):
    """An output file cannot be written."""


class Outputs:
    """The output files of a command.

    `reserve` opens a temporary file in the folder of each path, so that an unwritable path is
    detected before the work starts; `save` fills the file and renames it. Missing parent folders
    are created, except by `reserve` without ``parents``. When the context ends, unsaved outputs are
    deleted, and created folders that are still empty are removed.

    The path ``-`` is standard output; `say` then prints to standard error.
    """

    def __init__(self) -> None:
        self._files: dict[str, _Output | _StandardOutput | _Folder] = {}
        # By option: the path of each output, saved or not, and whether it is a folder to replace.
        self._places: dict[str, tuple[Path, bool]] = {}
        self._created: list[Path] = []
        self._stdout_is_taken = False

    @property
    def text_width(self) -> int:
        """The width of the terminal, or the variable COLUMNS; 80 by default."""
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
        for folder in reversed(self._created):
            with suppress(OSError):  # it is not empty
                folder.rmdir()

    def reserve(self, option: str, path: str | None, parents: bool = True) -> Path | None:
        """Opens a temporary file for the output of ``option``; does nothing if the option was not
        given. Without ``parents``, missing parent folders are an error.

        Returns the path of the temporary file, for code that writes files itself. Raises
        `OutputError` if the output cannot be written, is also the output of another option, or lies
        in a folder that another option replaces.
        """
        if path is None:
            return None
        if path == _STDOUT:
            self._claim(option, path, Path(_STDOUT), replaced=False)
            self._stdout_is_taken = True
            self._files[option] = standard = _StandardOutput()
            return standard.part
        if path.endswith("/"):
            raise _problem(option, path, "Is a directory")
        target = Path(os.path.realpath(path))
        self._claim(option, path, target, replaced=False)
        if parents:
            self._create(option, path, target.parent)
        self._files[option] = output = _Output(option, path, target)
        return output.part

    def save(self, option: str, write: Callable[[IO[bytes]], object] | None = None) -> None:
        """Saves the output of ``option``, if given. ``write`` fills the file; None if the reserved
        path has been written already.
        """
        output = self._files.pop(option, None)
        if isinstance(output, _Output | _StandardOutput):
            output.save(write)

    def reserve_folder(self, option: str, path: str | None, replaced: str) -> None:
        """Prepares the output folder of ``option``; does nothing if the option was not given.

        Raises `OutputError` if it cannot be written, if the output of another option lies in it, or
        if it exists and may not be replaced: only an empty folder, or one with a file named
        ``replaced``, may.
        """
        if path is not None:
            target = Path(os.path.realpath(path))
            self._claim(option, path, target, replaced=True)
            self._create(option, path, target.parent)
            self._files[option] = _Folder(option, path, target, replaced)

    def keep_folder(self, option: str, path: str) -> Path:
        """Creates the folder of ``option``, to which a command adds files; it is removed again if
        it stays empty. Raises `OutputError` if it cannot be created.
        """
        self._create(option, path, Path(os.path.realpath(path)))
        return Path(path)

    def _claim(self, option: str, path: str, target: Path, replaced: bool) -> None:
        """Register the output of ``option``; raises `OutputError` if it conflicts with another
        option's output.
        """
        for other, (place, is_folder) in self._places.items():
            if place == target:
                raise OutputError(f"{other} and {option} name the same file, {path}")
            if is_folder and place in target.parents:
                raise _problem(option, path, f"it lies in the folder of {other}, which is replaced")
            if replaced and target in place.parents:
                raise _problem(option, path, f"the file of {other} lies in it")
        self._places[option] = target, replaced

    def _create(self, option: str, path: str, folder: Path) -> None:
        """Creates ``folder`` and its missing parents."""
        missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
        try:
            for place in reversed(missing):
                # Another command may have created it in the meantime.
                place.mkdir(exist_ok=True)
                self._created.append(place)
        except OSError as error:
            raise _problem(option, path, error.strerror) from None

    def save_folder(self, option: str, files: Mapping[str, bytes]) -> None:
        """Fills the folder of ``option``, if given, with files by name."""
        output = self._files.pop(option, None)
        if isinstance(output, _Folder):
            output.save(files)

    def save_json(self, option: str, value: Any) -> None:
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
        self.save(option, lambda file: file.write(text.encode()))


def reserve_trace(outputs: Outputs, path: str | None) -> Timeline | None:
    """The timeline to record for ``--trace``; None if the option was not given."""
    from amaranth_vta.sim.trace.perfetto import Timeline

    outputs.reserve(_TRACE, path)
    return None if path is None else Timeline()


def save_trace(outputs: Outputs, path: str | None, timeline: Timeline | None) -> None:
    """Writes the timeline, and reports any runs that it left out."""
    if path is None or timeline is None:
        return
    outputs.save(_TRACE, lambda file: timeline.write(file, compressed=path.endswith(".gz")))
    if timeline.repeated > timeline.repeats:
        outputs.say(
            f"{path} has the first {timeline.repeats} of {timeline.repeated} runs of the network"
        )


def save_waves(outputs: Outputs, path: str | None) -> None:
    """Saves the waves of ``--waves``, if given, and next to them the folder of their views."""
    from amaranth_vta.sim.trace.wave_views import write_views

    outputs.save(WAVES)
    # A device file or a pipe has no views.
    if path is not None and Path(path).is_file():
        write_views(Path(path), Path(f"{path}.views"))


class _Output:
    def __init__(self, option: str, path: str, target: Path) -> None:
        self._option, self._path, self._target = option, path, target
        # Device files and pipes are written in place, not replaced; so is /dev/stdout, even if it
        # leads to a regular file.
        special = path.startswith("/dev/") or (target.exists() and not target.is_file())
        self._replaced = not special
        self.part = Path(path)
        if self._replaced:
            if target.exists() and not os.access(target, os.W_OK):
                raise _problem(option, path, "Permission denied")
            # With the suffix, which can select a format.
            self.part = target.with_name(f".{secrets.token_hex(6)}.part{target.suffix}")
        try:
            self._file = self.part.open("xb" if self._replaced else "ab")
        except OSError as error:
            raise _problem(option, path, error.strerror) from None

    def save(self, write: Callable[[IO[bytes]], object] | None) -> None:
        try:
            if write is not None:
                write(self._file)
            self._file.close()
            if self._replaced:
                self.part.replace(self._target)
        except OSError as error:
            self.discard()
            raise _problem(self._option, self._path, error.strerror) from None

    def discard(self) -> None:
        # Closing flushes, which fails on a full disk; the file is removed anyway.
        with suppress(OSError):
            self._file.close()
        if self._replaced:
            self.part.unlink(missing_ok=True)


class _StandardOutput:
    def __init__(self) -> None:
        # The path for code that writes the file itself.
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
    def __init__(self, option: str, path: str, target: Path, replaced: str) -> None:
        self._option, self._path, self._target = option, path, target
        self._part = target.with_name(f".{secrets.token_hex(6)}.part")
        try:
            if target.exists():
                if not target.is_dir():
                    raise _problem(option, path, "it is a file")
                if any(target.iterdir()) and not (target / replaced).exists():
                    raise _problem(option, path, f"it holds other files and no {replaced}")
            self._part.mkdir()
        except OSError as error:
            raise _problem(option, path, error.strerror) from None

    def save(self, files: Mapping[str, bytes]) -> None:
        before = self._target.with_name(f".{secrets.token_hex(6)}.part")
        try:
            for name, data in files.items():
                (self._part / name).write_bytes(data)
            if self._target.exists():
                self._target.rename(before)
            self._part.rename(self._target)
        except OSError as error:
            self.discard()
            raise _problem(self._option, self._path, error.strerror) from None
        shutil.rmtree(before, ignore_errors=True)

    def discard(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)


def _problem(option: str, path: str, reason: str | None) -> OutputError:
    return OutputError(f"{option} {path} cannot be written: {reason}")
