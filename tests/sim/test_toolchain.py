"""The C++ compiler that is called, and its options."""

from __future__ import annotations

import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from amaranth_vta.sim import toolchain
from amaranth_vta.sim.cache import ToolchainError
from amaranth_vta.sim.toolchain import compiler, run_tool


def test_the_compiler_may_have_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "g++ -O0 -DNAME='\"a b\"'")
    assert compiler() == (shutil.which("g++"), "-O0", '-DNAME="a b"')
    source = tmp_path / "unit.cpp"
    source.write_text('static_assert(sizeof(NAME) == 4, "the option has not arrived");')
    run_tool((*compiler(), "-c", source, "-o", tmp_path / "unit.o"), "it cannot be compiled")


def test_a_compiler_that_is_no_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ '-O0")
    with pytest.raises(ToolchainError, match="CXX = g\\+\\+ '-O0 is not a command"):
        compiler()


def test_zig_compiles_where_the_path_has_no_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = ModuleSpec("ziglang", None, origin="/packages/ziglang/__init__.py")
    monkeypatch.setattr(toolchain, "find_spec", {"ziglang": found}.get)
    assert compiler() == ("/packages/ziglang/zig", "c++", "-fno-sanitize=undefined")
    monkeypatch.setattr(toolchain, "find_spec", {}.get)
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler found: pip install"):
        compiler()
