"""Shows the steps of building a simulator: `building`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def building(
    what: str, progress: Callable[[str], None] | None
) -> Iterator[Callable[[str], None] | None]:
    """Gives the callable that is told the steps of a build of ``what``.

    That is ``progress`` if it is given. Else the steps are shown on standard error, with the time
    that has passed, from the first one on: a device from the cache has none. Where standard error
    is no terminal the callable is None, so that logs stay clean.
    """
    if progress is not None or not sys.stderr.isatty():
        yield progress
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
