"""Cache of build results, shared by processes: elaborated designs, compiled simulators.

A cached file is named by a hash of all its inputs. It is renamed into place atomically, with a
seal: a digest of its name and contents. A file that is damaged, or was written by another user, is
rebuilt. Several processes may request the same file at the same time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from amaranth_vta.errors import VtaError

# Not resolved: ``sim`` is a symbolic link in the package from which this module is imported.
_PACKAGE = Path(__file__).parents[1]
# Matches unfinished files and captures the id of the process that writes them.
_UNFINISHED = re.compile(r"^build-(\d+)-|\.(\d+)(?:\.seal)?$")
# Packages that compute constants, or the part of a network that runs on the host.
_COMPUTES_WITH = ("numpy", "onnx", "onnxruntime")
KEPT_SECONDS = 30 * 24 * 3600
# How much older than its last use the timestamp of a file may be.
_STAMP_SECONDS = 24 * 3600
_OTHERS_WRITE = 0o022
# A file may change twice within one tick of the file system's clock, with equal timestamps.
_TICK_NS = 100_000_000
# Files that this process found sound, each with the state of it and its seal, which writes change.
_sound: dict[Path, tuple[int, ...]] = {}


class ToolchainError(VtaError, RuntimeError):
    """Something that cannot be built or cached on this machine; the message says why."""


def cache_folder() -> Path:
    """$VTA_CACHE, or amaranth-vta in the user's cache folder."""
    if "VTA_CACHE" in os.environ:
        return Path(os.environ["VTA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "amaranth-vta"


def kept(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Path of the file ``name`` in the cache folder ``kind``; builds the file if it does not exist.

    ``make`` writes the file to the path that it is given; if it raises, nothing is cached and the
    exception propagates. Raises `ToolchainError` if the file does not exist and cannot be cached,
    or if the folder belongs to another user.
    """
    folder = cache_folder() / kind
    path = folder / name
    for place in (folder.parent, folder):
        _make_private(place)
    if _is_sound(path):
        return path
    try:
        lock = (folder / f"{path.name}.lock").open("w")
    except OSError as error:
        raise _unwritable(folder, error) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        target = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            if not _is_sound(path):
                _tidy(folder)
                make(target)
                target.chmod(0o644)
                _seal(path).unlink(missing_ok=True)
                # Another process may read the file at any time, and ignores it without a valid
                # seal.
                seal = target.with_name(f"{target.name}.seal")
                seal.write_text(_digest(path.name, target))
                seal.chmod(0o644)
                target.replace(path)
                seal.replace(_seal(path))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _unwritable(folder, error) from None
            raise
        finally:
            target.unlink(missing_ok=True)
            Path(lock.name).unlink(missing_ok=True)
    return path


def hash_of(*parts: str) -> str:
    """A file name that identifies ``parts``: a hash of them."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()[:32]


def package_files(root: Path) -> list[Path]:
    """All files of the package in ``root``, relative to it: sources and data, without bytecode.

    Results that depend on the package depend on all of these; a selection could miss a module that
    is imported later.
    """
    found: list[Path] = []
    for folder, names, files in os.walk(root, followlinks=True):
        # An installed package may contain copies of the examples, which are the user's programs.
        names[:] = [name for name in names if name not in ("__pycache__", "examples")]
        found += [Path(folder, name).relative_to(root) for name in files]
    return sorted(found)


@cache
def package_version() -> tuple[str, ...]:
    """Inputs that all results share: a digest of this package, and the versions of the packages
    that compute with it.
    """
    digest = hashlib.sha256()
    for path in package_files(_PACKAGE):
        contents = (_PACKAGE / path).read_bytes()
        digest.update(f"{path} {len(contents)}\n".encode() + contents)
    return (digest.hexdigest(), *(metadata.version(package) for package in _COMPUTES_WITH))


def _make_private(folder: Path) -> None:
    """Create ``folder`` if needed, and allow only this user to write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if _is_own(status) and status.st_mode & _OTHERS_WRITE:
            folder.chmod(status.st_mode & 0o7777 & ~_OTHERS_WRITE)
    except OSError as error:
        raise _unwritable(folder, error) from None
    if not _is_own(status):
        raise ToolchainError(
            f"the cache folder {folder} belongs to another user and is not used; "
            "VTA_CACHE names another"
        )


def _is_own(status: os.stat_result) -> bool:
    """Whether the file belongs to this user or to root, who could change it anyway."""
    return status.st_uid in (os.geteuid(), 0)


def _is_sound(path: Path) -> bool:
    """Whether the file is unchanged since `kept` wrote it; if so, its timestamp is updated."""
    seal = _seal(path)
    now = time.time_ns()
    try:
        states = [file.lstat() for file in (path, seal)]
        if any(not _is_own(state) or state.st_mode & _OTHERS_WRITE for state in states):
            return False
        seen = tuple(
            number
            for state in states
            for number in (state.st_dev, state.st_ino, state.st_size, state.st_ctime_ns)
        )
        if _sound.get(path) != seen:
            if seal.read_text() != _digest(path.name, path):
                return False
            if all(state.st_ctime_ns + _TICK_NS < now for state in states):
                _sound[path] = seen
    except (OSError, UnicodeDecodeError):
        return False
    for file, state in zip((path, seal), states, strict=True):
        if state.st_mtime + _STAMP_SECONDS < now / 1e9:
            with suppress(OSError):  # the cache may be read-only
                file.touch()
    return True


def _seal(path: Path) -> Path:
    return path.with_name(f"{path.name}.seal")


def _digest(name: str, file: Path) -> str:
    # The name is hashed too, so that a renamed file is rejected.
    return hashlib.sha256(name.encode() + b"\0" + file.read_bytes()).hexdigest()


def _unwritable(folder: Path, error: OSError) -> ToolchainError:
    return ToolchainError(
        f"the cache folder {folder} cannot be written: {error.strerror}; VTA_CACHE names another"
    )


@contextmanager
def build_folder(target: Path) -> Iterator[Path]:
    """A folder for intermediate files of a build of ``target`` within `kept`. It is removed after
    the build, or by a later build if this process is killed.
    """
    prefix = f"build-{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        yield Path(folder)


@cache
def _tidy(folder: Path) -> None:
    """Remove unfinished files of killed processes and files unused for a month; once per process,
    since a folder may hold thousands.
    """
    unused_since = time.time() - KEPT_SECONDS
    for path in folder.iterdir():
        found = _UNFINISHED.search(path.name)
        with suppress(OSError):  # removed by another process
            interrupted = found is not None and not _runs(int(found[1] or found[2]))
            if interrupted or path.stat().st_mtime < unused_since:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # the process belongs to another user
    return True
