"""Reasons why the compiled model is missing, and the messages for them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.native import model
from amaranth_vta.sim.programs.image import ProgramImage
from tests.support.golden import VECTORS


@pytest.fixture
def nothing_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model, "_loaded", [])
    monkeypatch.setenv("VTA_CACHE", str(tmp_path / "cache"))
    return tmp_path


def assert_runs_on_numpy(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    image = ProgramImage.load(VECTORS / "tiny-1.npz")
    assert image.expected is not None
    for _ in range(2):
        device = FunctionalDevice(image.config, image.dram.size)
        device.write(0, image.dram)
        assert device.run(image.insn_addr, image.insn_count).fault is None
        assert np.array_equal(device.read(0, image.dram.size), image.expected)
    (line,) = caplog.messages
    assert line.startswith("the functional model runs on NumPy, which is much slower: ")
    assert reason in line
    assert "\n" not in line
    with pytest.raises(ToolchainError, match=re.escape(reason)):
        model.NativeModel(image.config, device.memory)


def test_without_a_compiler_programs_run_on_numpy_which_is_said_once(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert_runs_on_numpy(caplog, "there is no C++ compiler no-such-compiler")


def test_with_a_compiler_that_fails_too(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    assert_runs_on_numpy(caplog, "the functional model cannot be compiled; the log is")


def test_with_a_cache_that_cannot_be_written_too(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (nothing_loaded / "file").write_text("in the way")
    monkeypatch.setenv("VTA_CACHE", str(nothing_loaded / "file"))
    assert_runs_on_numpy(caplog, "cannot be written")


def test_a_library_that_cannot_be_loaded_counts_as_missing(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (nothing_loaded / "wrong.so").write_bytes(b"of another processor")
    monkeypatch.setattr(model, "native_library", lambda _: nothing_loaded / "wrong.so")
    assert_runs_on_numpy(caplog, "wrong.so")


def test_what_needs_the_clear_model_needs_no_library(
    nothing_loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = ProgramImage.load(VECTORS / "tiny-1.npz").config
    FunctionalDevice(config, 64, clear=True)
    FunctionalDevice(config, 64, "reverse")
    FunctionalDevice(config, 64, report_races=True)
    assert not caplog.messages
    FunctionalDevice(config, 64)
    assert caplog.messages
