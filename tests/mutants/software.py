"""Bugs in the functional model, the compiler's passes and the runtime; the tests of a module run in
a separate process for each bug.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from .planting import Bug, Plants, Verdict, bugs_in, install, is_named, sample
from .processes import Work, judge_each

_ROOT = Path(__file__).parents[2]
# Modules and their tests; the module's own tests come first.
_TESTS = {
    "sim/model/*.py": (
        "tests/sim/model/test_device.py",
        "tests/sim/model/test_execution.py",
        "tests/sim/model/test_requantize.py",
        "tests/sim/programs/test_random_programs.py",
        "tests/sim/model/native/test_model.py",
    ),
    "sw/compiler/passes/*.py": (
        "tests/sw/compiler/passes",
        "tests/sw/compiler/test_programs.py",
    ),
    "sw/compiler/graph/channel_scales.py": (),
    "sw/compiler/te/multipliers.py": (),
    "sw/runtime/*.py": ("tests/sw/runtime",),
    "sw/runtime/launches/accesses.py": (),
    "sw/runtime/network/validation.py": (),
}
NAMED = (
    # Some reads of an instruction are missed.
    (
        "passes/mark_independent.py",
        "config.alu_sources(uop.alu) - 1",
        "min(config.alu_sources(uop.alu), 4) - 1",
    ),
    ("launches/accesses.py", "self._micro_ops.taps - 1", "0"),
    # Limits that are off by one, or missing.
    (
        "network/validation.py",
        "0 <= used.start <= used.stop <= streams",
        "0 <= used.start <= used.stop <= streams + 1",
    ),
    ("graph/channel_scales.py", "least + moved < _LEAST", "False"),
    # Of two roundings, one is omitted or goes the wrong way, or the proof ignores saturation.
    ("te/multipliers.py", "1 - (1 << 30)", "1 << 30"),
    ("te/multipliers.py", "high < 0", "False"),
    ("te/multipliers.py", "above >= high", "True"),
    ("te/multipliers.py", "np.clip(-shift, 0, _MOST_SHIFT)", "np.clip(-shift - 1, 0, _MOST_SHIFT)"),
    ("model/scalar.py", "-1 if total < 0 else 1", "1"),
    ("model/arithmetic.py", "np.where(negative, -second, second)", "second"),
)


def judge(per_file: int, jobs: int, wanted: Callable[[Bug], bool]) -> Iterator[Verdict]:
    """Verdicts on ``per_file`` bugs of each module, if they are ``wanted``."""
    chosen = (work for work in _choose(per_file) if wanted(work[0]))
    return judge_each(_try, chosen, jobs, "spawn")


def module_tests(bug: Bug, named: Sequence[tuple[str, str, str]]) -> Verdict:
    """The verdict of a hardware module's tests, run in Amaranth's simulator with the bug."""
    source = (_ROOT / bug.file).read_text(encoding="utf-8")
    bugs = bugs_in(source, bug.file, named, stuck=True)
    number = next(at for at, other in enumerate(bugs) if replace(other, line=bug.line) == bug)
    path = Path(bug.file)
    tests = [f"tests/{path.parent}"] if len(path.parts) > 2 else ["tests/hw/test_core.py"]
    own = f"tests/{path.parent}/test_{path.name}"
    if (_ROOT / own).exists():
        tests.insert(0, own)
    work = bug, (number, tuple(tests), named, True)
    return next(judge_each(_try, [work], 1, "spawn"))


def _choose(per_file: int) -> Iterator[Work]:
    """The named bugs, and for each module ``per_file`` others plus some of other kinds."""
    for pattern, tests in _TESTS.items():
        for path in sorted(_ROOT.glob(pattern)):
            file = path.relative_to(_ROOT)
            bugs = list(enumerate(bugs_in(path.read_text(encoding="utf-8"), str(file), NAMED)))
            own = f"tests/{file.parent}/test_{file.name}"
            first = (own,) if (_ROOT / own).exists() else ()
            named = [item for item in bugs if is_named(item[1], NAMED)]
            others = [item for item in bugs if item not in named]
            for number, bug in (*named, *sample(others, per_file)):
                yield bug, (number, (*first, *tests), NAMED)


def _try(
    bug: Bug,
    chosen: int,
    tests: tuple[str, ...],
    named: Sequence[tuple[str, str, str]] = (),
    stuck: bool = False,
) -> Verdict:
    reached = False

    def apply(number: int, original: Any, planted: Callable[[], Any]) -> Any:
        nonlocal reached
        if number != chosen:
            return original
        reached = True
        return planted()

    module = "amaranth_vta." + bug.file.removesuffix(".py").replace("/", ".")
    install(lambda name: name == module, Plants(apply, named, stuck))
    import pytest

    report = _FirstFailure()
    with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        # Without the nightly tests: a bug has to be caught by `make test`.
        options = "addopts=--import-mode=importlib -m 'not nightly'"
        quietly = ("-x", "-q", "-p", "no:cacheprovider", "-o", options)
        code = pytest.main([*quietly, *tests], [report])
    if code:
        return Verdict(bug, "tests of the module", report.test or f"pytest ends with {code}")
    return Verdict(bug, None, "" if reached else "never reached")


class _FirstFailure:
    """A pytest plugin that records the first failing test."""

    test = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid.rpartition("/")[2]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.test:
            self.test = f"{report.nodeid} cannot be imported"
