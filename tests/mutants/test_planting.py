"""Bugs are planted where they are meant to be, and the lists of bugs match the sources."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from .hardware import NAMED
from .planting import Bug, Plants, bugs_in, install

_ROOT = Path(__file__).parents[2]
SOURCE = """\
LIMIT = 3 - 1

def largest(values, floor):
    found = [value for value in values if value > floor and value < 100]
    return (max(found) if found else floor) + 1
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "planted_example.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return "planted_example"


def test_each_bug_changes_one_expression(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = -1

    def apply(number: int, original: Any, planted: Callable[[], Any]) -> Any:
        return planted() if number == chosen else original

    plants = Plants(apply, stuck=False)
    install(lambda name: name == module, plants)
    largest = importlib.import_module(module).largest
    monkeypatch.delitem(sys.modules, module)
    texts = [(bug.original, bug.planted) for bug in plants.bugs]
    assert ("value > floor", "value >= floor") in texts
    assert ("value > floor and value < 100", "value < 100") in texts
    assert ("(max(found) if found else floor) + 1", "max(found) if found else floor") in texts
    assert plants.bugs == bugs_in(SOURCE, plants.bugs[0].file)
    assert largest([5, 7, 120], 5) == 8
    results = {}
    for number, pair in enumerate(texts):
        chosen = number
        results[pair] = largest([5, 7, 120], 5), largest([5], 5), largest([100], 5)
    right = (8, 6, 6)
    assert results[texts[-1]] == (7, 5, 5)
    assert all(results[pair] == right for pair in texts if pair[1] == "value >= floor")
    assert (121, 6, 101) in results.values()


def test_bugs_come_too_late_for_what_is_imported() -> None:
    with pytest.raises(RuntimeError, match="has been imported before"):
        install(lambda name: name == "importlib", Plants(lambda *_: None))


def test_the_named_bugs_are_in_the_sources() -> None:
    for file, original, planted in NAMED:
        found = {(bug.original, bug.planted) for bug in _bugs(f"hw/{file}")}
        assert (original, planted) in found, original


def test_what_is_argued_to_be_harmless_is_in_the_sources() -> None:
    text = Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8")
    for name, reason in tomllib.loads(text)["harmless"].items():
        assert name in {bug.name for bug in _bugs(name.partition(":")[0])}, name
        assert len(reason) > 20


@cache
def _bugs(file: str) -> list[Bug]:
    hardware = file.startswith("hw/")
    source = (_ROOT / file).read_text(encoding="utf-8")
    return bugs_in(source, file, NAMED if hardware else (), stuck=hardware)
