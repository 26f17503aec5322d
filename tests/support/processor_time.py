"""pytest plugin of `make test`: report the processor time of folders and of the slowest test files.

Includes processes that tests have started, such as compilers of simulators. In contrast to
``--durations`` it hardly depends on what else the computer runs. Collection is not included.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

_NAME = "processor seconds"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    # Workers of pytest-xdist send the properties to the process that writes the summary.
    if call.when == "teardown":
        item.user_properties.append((_NAME, _seconds() - item.stash[_STARTED]))
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "teardown":
                seconds = dict(report.user_properties).get(_NAME, 0.0)
                files[report.nodeid.partition("::")[0]] += seconds
    folders: Counter[str] = Counter()
    for file, seconds in files.items():
        folders["/".join(PurePosixPath(file).parent.parts[:3])] += seconds
    terminalreporter.section("processor time in seconds")
    for name, seconds in [*folders.most_common(25), *files.most_common(40)]:
        terminalreporter.write_line(f"{seconds:8.1f}  {name}")
    terminalreporter.write_line(f"{folders.total():8.1f}  all tests")


_STARTED = pytest.StashKey[float]()


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
