"""A bug that hangs is caught, and an interrupted run resumes where it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import __main__ as command
from . import processes
from .planting import Bug, Verdict
from .processes import judge_each

_BUGS = [Bug("hw/top.py", line, f"value_{line}", "0") for line in range(4)]


def _judge(bug: Bug, number: int) -> Verdict:
    if number == 0:
        while True:
            pass
    if number == 1:
        raise ValueError("what is this")
    return Verdict(bug, None if number == 2 else "vectors", "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("jobs", [1, 3])
def test_every_bug_gets_a_verdict(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PROCESSOR_SECONDS", 1)
    works = [(bug, (number,)) for number, bug in enumerate(_BUGS)]
    layers = {verdict.bug: verdict.layer for verdict in judge_each(_judge, works, jobs, "fork")}
    assert [layers[bug] for bug in _BUGS] == ["hangs", "crash", None, "vectors"]


def test_a_run_resumes_with_what_is_missing_and_with_survivors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mutants.json"
    judged: list[str] = []
    layers: dict[Bug, str | None] = dict.fromkeys(_BUGS, "vectors")

    def verdicts(options: Any, wanted: Callable[[Bug], bool]) -> Iterator[Verdict]:
        for bug in _BUGS:
            if wanted(bug):
                judged.append(bug.original)
                yield Verdict(bug, layers[bug], "", 1.0)
                if stops_at == bug:
                    raise KeyboardInterrupt

    monkeypatch.setattr(command, "_verdicts", verdicts)
    monkeypatch.setattr(sys, "argv", ["mutants", "--json", str(path), "--resume"])
    layers[_BUGS[0]] = None
    stops_at: Bug | None = _BUGS[1]
    with pytest.raises(KeyboardInterrupt):
        command.main()
    assert [row["layer"] for row in json.loads(path.read_text())] == [None, "vectors"]
    judged.clear()
    stops_at = None
    assert command.main() == 1
    assert judged == ["value_0", "value_2", "value_3"]
    layers[_BUGS[0]] = "cycles"
    judged.clear()
    assert command.main() == 0
    assert judged == ["value_0"]
    assert len(json.loads(path.read_text())) == 4
    rows = json.loads(path.read_text())
    rows[1]["module"] += 1
    path.write_text(json.dumps(rows))
    judged.clear()
    assert command.main() == 0
    assert judged == [rows[1]["bug"].partition(": ")[2].partition(" ")[0]]
