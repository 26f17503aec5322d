"""The cache of compiled simulators."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from amaranth_vta.sim.machine.rtl import build

COPIER = Path(__file__).with_name("copier.v").read_text()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_build_is_kept_and_tells_its_progress(empty_cache: Path) -> None:
    told: list[str] = []
    first = build.library(COPIER, progress=told.append)
    assert first.is_relative_to(empty_cache)
    assert told[0] == "translating the Verilog to C++"
    assert told[-1].startswith("compiling the simulator, ")
    told.clear()
    assert build.library(COPIER, progress=told.append) == first
    assert not told
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_what_has_not_been_used_for_a_month_is_removed(empty_cache: Path) -> None:
    folder = empty_cache / "rtl"
    folder.mkdir(parents=True)
    for name, days in (("old.so", 31), ("recent.so", 29)):
        (folder / name).touch()
        long_ago = time.time() - days * 24 * 3600
        os.utime(folder / name, (long_ago, long_ago))
    built = build.library(COPIER)
    assert {path.name for path in folder.iterdir()} == {"recent.so", built.name}


def _build(results: multiprocessing.Queue[tuple[str, int]]) -> None:
    told: list[str] = []
    results.put((str(build.library(COPIER, progress=told.append)), len(told)))


def test_two_processes_build_the_same_thing_once(empty_cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[str, int]] = context.Queue()
    processes = [context.Process(target=_build, args=(results,)) for _ in range(2)]
    for process in processes:
        process.start()
    (one, told), (other, also_told) = (results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert one == other
    assert (told == 0) != (also_told == 0)


def test_verilog_that_is_wrong_gives_one_sentence_and_a_log(empty_cache: Path) -> None:
    with pytest.raises(build.BuildError) as error:
        build.library(COPIER.replace("assign irq = done;", "assign irq = undone;"))
    assert "Verilator refuses the design" in str(error.value)
    assert "undone" in str(error.value)
    assert "\n" not in str(error.value)
    assert "undone" in (empty_cache / "build.log").read_text()


def test_no_compiler_is_said(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.BuildError, match="there is no C\\+\\+ compiler no-such-compiler"):
        build.library(COPIER)


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="cannot be written"):
        build.library(COPIER)
