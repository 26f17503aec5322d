"""Bugs are planted at the intended places, and the lists of bugs match the sources."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from . import hardware, software
from .planting import Bug, Kind, Plants, bugs_in, install

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


@pytest.mark.parametrize(
    ("source", "kind", "planted"),
    [
        (
            "0 <= a < b",
            Kind.LIMIT,
            {"0 < a < b", "0 <= a <= b", "0 <= a + 1 < b", "0 <= a < b - 1"},
        ),
        ("a > b", Kind.LIMIT, {"a > b + 1"}),
        ("a >= b", Kind.LIMIT, {"a >= b - 1"}),
        ("a == b", Kind.LIMIT, set()),
        ("enable[element]", Kind.INDEX, {"enable[0]"}),
        ("word.word_select(place, 8)", Kind.INDEX, {"word.word_select(0, 8)"}),
        ("word.bit_select(0, 8)", Kind.INDEX, set()),
        ("field[width:]", Kind.SIGN, {"field[width:-1]"}),
        ("field[:width]", Kind.SIGN, set()),
        ("field.as_signed()", Kind.SIGN, {"field"}),
        ("known.clear()", Kind.STALE, {"None"}),
    ],
)
def test_there_are_bugs_of_all_kinds(source: str, kind: Kind, planted: set[str]) -> None:
    bugs = bugs_in(f"def function():\n    return {source}\n", "hw/example.py", stuck=True)
    assert {bug.planted for bug in bugs if bug.kind is kind} == planted


def test_states_that_are_not_cleared_are_registers() -> None:
    source = "def function(m):\n    m.d.sync += [known.eq(0), self.valid.eq(1)]\n"
    bugs = bugs_in(source + "    m.d.comb += full.eq(0)\n", "hw/example.py", stuck=True)
    stale = [(bug.original, bug.planted) for bug in bugs if bug.kind is Kind.STALE]
    assert stale == [("known.eq(0)", "known.eq(known)")]


def test_bugs_come_too_late_for_what_is_imported() -> None:
    with pytest.raises(RuntimeError, match="has been imported before"):
        install(lambda name: name == "importlib", Plants(lambda *_: None))


def test_no_bug_is_planted_in_what_the_model_shares_with_hardware() -> None:
    code = "import sys, amaranth_vta.sim.model.device; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shared = [name for name in done.stdout.split() if name.startswith("amaranth_vta.hw.")]
    assert "amaranth_vta.hw.isa.encoding" in shared
    assert [name for name in shared if hardware.is_hardware(name)] == []
    assert hardware.is_hardware("amaranth_vta.hw.dma.loader")


def test_the_named_bugs_are_in_the_sources() -> None:
    files = [str(path.relative_to(_ROOT)) for path in (_ROOT / "hw").rglob("*.py")]
    for folder in ("sw", "sim/model"):
        files += [str(path.relative_to(_ROOT)) for path in (_ROOT / folder).rglob("*.py")]
    for file, original, planted in (*hardware.NAMED, *software.NAMED):
        (source,) = (name for name in files if name.endswith(f"/{file}"))
        found = {(bug.original, bug.planted) for bug in _bugs(source)}
        assert (original, planted) in found, original


def test_what_is_argued_to_be_harmless_is_in_the_sources() -> None:
    text = Path(__file__).with_name("survivors.toml").read_text(encoding="utf-8")
    for name, reason in tomllib.loads(text)["harmless"].items():
        assert name in {bug.name for bug in _bugs(name.partition(":")[0])}, name
        assert len(reason) > 20


@cache
def _bugs(file: str) -> list[Bug]:
    is_hardware = file.startswith("hw/")
    source = (_ROOT / file).read_text(encoding="utf-8")
    named = hardware.NAMED if is_hardware else software.NAMED
    return bugs_in(source, file, named, stuck=is_hardware)
