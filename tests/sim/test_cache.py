"""Contents of the cache, and entries that it rejects."""

from __future__ import annotations

import errno
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amaranth_vta.sim.cache import ToolchainError, kept


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Maker:
    """Writes a text, and counts its calls."""

    def __init__(self, text: str = "what was made") -> None:
        self.text = text
        self.made = 0

    def __call__(self, target: Path) -> None:
        self.made += 1
        target.write_text(self.text)


def test_a_file_is_made_once(empty_cache: Path) -> None:
    make = Maker()
    for _ in range(2):
        path = kept("kind", "name", make)
        assert path.read_text() == "what was made"
    assert make.made == 1
    assert path.parent == empty_cache / "kind"
    assert {item.name for item in path.parent.iterdir()} == {"name", "name.seal"}


def test_nothing_is_kept_of_what_fails(empty_cache: Path) -> None:
    def fail(target: Path) -> None:
        target.write_text("half")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        kept("kind", "name", fail)
    assert not list((empty_cache / "kind").iterdir())
    assert kept("kind", "name", Maker()).read_text() == "what was made"


def test_a_full_disk_is_said_with_the_folder(empty_cache: Path) -> None:
    def fill(target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        ToolchainError, match="kind cannot be written: No space left on device; VTA"
    ):
        kept("kind", "name", fill)
    assert not list((empty_cache / "kind").iterdir())


@pytest.mark.parametrize("damage", ["cut", "changed", "unsealed", "swapped", "writable"])
def test_what_is_not_as_it_was_made_is_made_again(damage: str) -> None:
    make = Maker()
    path = kept("kind", "name", make)
    seal = path.with_name("name.seal")
    match damage:
        case "cut":
            path.write_text("what was")
        case "changed":
            path.write_text("what was mad!")
        case "unsealed":
            seal.unlink()
        case "swapped":
            other = kept("kind", "other", Maker("something else"))
            other.replace(path)
            other.with_name("other.seal").replace(seal)
        case "writable":
            path.chmod(0o666)
    assert kept("kind", "name", make).read_text() == "what was made"
    assert make.made == 2
    assert kept("kind", "name", make) == path
    assert make.made == 2


def _belongs_to_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)


def test_a_folder_of_another_user_is_refused(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker()
    kept("kind", "name", make)
    _belongs_to_another(empty_cache / "kind", monkeypatch)
    with pytest.raises(
        ToolchainError, match="belongs to another user and is not used; VTA_CACHE"
    ) as e:
        kept("kind", "name", make)
    assert "\n" not in str(e.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_made_again(empty_cache: Path) -> None:
    make = Maker()
    os.chown(kept("kind", "name", make), 4711, -1)
    assert kept("kind", "name", make).stat().st_uid == 0
    assert make.made == 2


def test_a_folder_in_which_others_may_write_is_closed_to_them(empty_cache: Path) -> None:
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    kept("kind", "name", Maker())
    assert empty_cache.stat().st_mode & 0o022 == 0


def test_what_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolchainError, match="cannot be written"):
        kept("kind", "name", Maker())


def test_what_has_not_been_used_for_a_month_is_removed(empty_cache: Path) -> None:
    folder = empty_cache / "kind"
    folder.mkdir(parents=True)
    for name, days in (("old", 31), ("recent", 29)):
        (folder / name).touch()
        long_ago = time.time() - days * 24 * 3600
        os.utime(folder / name, (long_ago, long_ago))
    kept("kind", "name", Maker())
    assert {path.name for path in folder.iterdir()} == {"recent", "name", "name.seal"}


def test_what_a_killed_process_had_begun_is_removed(empty_cache: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    folder = empty_cache / "kind"
    (folder / f"build-{process.pid}-abc").mkdir(parents=True)
    (folder / f"build-{process.pid}-abc" / "part").touch()
    for name in (f"other.so.{process.pid}", f"other.so.{process.pid}.seal", f"x.{os.getpid()}"):
        (folder / name).touch()
    kept("kind", "name", Maker())
    assert {path.name for path in folder.iterdir()} == {"name", "name.seal", f"x.{os.getpid()}"}


def test_a_process_that_is_told_to_end_leaves_nothing(empty_cache: Path) -> None:
    script = (
        "import time\n"
        "from amaranth_vta import cli\n"
        "from amaranth_vta.sim.cache import build_folder, kept\n"
        "def make(target):\n"
        "    with build_folder(target) as folder:\n"
        "        (folder / 'part').touch()\n"
        "        target.touch()\n"
        "        print(flush=True)\n"
        "        time.sleep(60)\n"
        "cli.invoke = lambda _: kept('kind', 'name', make)\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(20) == 128 + 15
    assert not list((empty_cache / "kind").iterdir())


def _slowly(target: Path) -> None:
    time.sleep(0.3)
    target.write_text(str(os.getpid()))


def _keep(results: multiprocessing.Queue[str]) -> None:
    results.put(kept("kind", "name", _slowly).read_text())


def test_two_processes_make_the_same_thing_once() -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=_keep, args=(results,)) for _ in range(2)]
    for process in processes:
        process.start()
    one, other = (results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert one == other
