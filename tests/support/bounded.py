"""pytest plugin of `make check`: skip tests that need a simulator build, and tests that would
start more than `--seconds` after the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from amaranth_vta.sim import cache
from amaranth_vta.sim.machine.rtl import build, cxxrtl

_STARTED = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=60, help="start no test after this time")


def pytest_configure() -> None:
    for module in (build, cxxrtl):
        module.kept = _kept  # type: ignore[attr-defined]


def pytest_runtest_setup(item: pytest.Item) -> None:
    started = item.config.stash.setdefault(_STARTED, monotonic())
    if monotonic() - started > item.config.getoption("--seconds"):
        pytest.skip("out of time")


def _kept(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    if kind == "rtl" and not (cache.cache_folder() / kind / name).exists():
        pytest.skip("needs a simulator that is not built")
    return cache.kept(kind, name, make)
