"""The cache of compiled simulators."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.cache import ToolchainError, cache_folder
from amaranth_vta.sim.machine.rtl import build

COPIER = Path(__file__).with_name("copier.v").read_text()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, except for Verilator's runtime library, which is shared with other tests."""
    runtime, cache = cache_folder() / "runtime", tmp_path / "cache"
    runtime.mkdir(parents=True, exist_ok=True)
    cache.mkdir()
    (cache / "runtime").symlink_to(runtime.resolve())
    monkeypatch.setenv("VTA_CACHE", str(cache))
    return cache


def test_a_build_is_kept_and_tells_its_progress(empty_cache: Path) -> None:
    told: list[str] = []
    first = build.library(COPIER, progress=told.append)
    assert first.is_relative_to(empty_cache)
    assert told[0] == "translating the Verilog to C++"
    assert told[-1].startswith("compiling the simulator, ")
    told.clear()
    assert build.library(COPIER, progress=told.append) == first
    assert not told
    assert {path.name for path in first.parent.iterdir()} == {first.name, f"{first.name}.seal"}


def test_headers_are_precompiled_once(empty_cache: Path) -> None:
    build.library(COPIER)
    made = {path.name: path.stat().st_ino for path in (empty_cache / "runtime").glob("*.gch")}
    assert made or build._is_clang()
    build.library(f"{COPIER}// another design\n")
    found = {path.name: path.stat().st_ino for path in (empty_cache / "runtime").glob("*.gch")}
    assert found == made


def test_verilog_that_is_wrong_gives_one_sentence_and_a_log(empty_cache: Path) -> None:
    with pytest.raises(ToolchainError) as error:
        build.library(COPIER.replace("assign irq = done;", "assign irq = undone;"))
    assert "Verilator refuses the design" in str(error.value)
    assert "undone" in str(error.value)
    assert "\n" not in str(error.value)
    assert "undone" in (empty_cache / "build.log").read_text()


def test_no_compiler_is_said(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="there is no C\\+\\+ compiler no-such-compiler"):
        build.library(COPIER)


def test_a_damaged_library_is_built_again(empty_cache: Path) -> None:
    path = build.library(COPIER)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert build.library(COPIER) == path
    assert path.stat().st_size >= len(whole) // 2 + 1
    ctypes.CDLL(str(path))


@pytest.mark.parametrize(
    ("config", "quick", "optimized"),
    [("pynq-extended", "0", True), ("pynq-extended", "1", False), ("tiny", "0", False)],
)
def test_machines_for_networks_are_optimized_unless_they_have_to_build_soon(
    config: str, quick: str, optimized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, object] = {}

    def library(_: str, **given: object) -> Path:
        options.update(given)
        return Path()

    monkeypatch.setattr(build, "machine_verilog", lambda *_, **__: "")
    monkeypatch.setattr(build, "library", library)
    monkeypatch.setenv("VTA_QUICK_BUILD", quick)
    build.machine_library(PRESETS[config])
    assert options["optimized"] is options["change_grouped"] is optimized


@pytest.mark.parametrize("grouped", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_the_machine_need_not_be_evaluated_at_falling_edges(tmp_path: Path, grouped: bool) -> None:
    verilog = build.machine_verilog(PRESETS["tiny"], grouped=grouped)
    harness = build.Harness(build.HARNESS, build.PINS)
    flags = (*build.VERILATOR_FLAGS, *build.flags_of(grouped=grouped))
    build.translate(verilog, harness, flags, tmp_path)
    assert build.knows_clocks(tmp_path, flags)
    assert not build.knows_clocks(tmp_path, build.flags_of(grouped=not grouped))
