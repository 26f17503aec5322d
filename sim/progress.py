"""Progress of a simulator's build, in a terminal or in the log: `building`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


_LOGGER = logging.getLogger(__name__)


@contextmanager
def building(what: str, progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Yield a callable that reports the steps of building ``what``.

    Steps go to ``progress`` if given; else to standard error with the elapsed time if that is a
    terminal; else to the logger of this module, at level INFO. A device that comes from the cache
    reports no steps.
    """
    if progress is not None:
        yield progress
        return
    if not sys.stderr.isatty():
        yield lambda step: _LOGGER.info("building %s: %s", what, step)
        return
    shown: list[Progress] = []

    def show(step: str) -> None:
        if not shown:
            shown.append(_started())
            shown[0].add_task(step, total=None)
        shown[0].update(shown[0].task_ids[0], description=f"building {what}: {step}")

    try:
        yield show
    finally:
        for bar in shown:
            bar.stop()


def _started() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress
