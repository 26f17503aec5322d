"""Progress bars of commands on standard error, if that is a terminal."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def progress_bar(stack: ExitStack, what: str, total: int) -> Callable[..., None]:
    """Shows a bar until ``stack`` is closed; returns the function that updates it, with the
    keywords ``completed`` and ``description``."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = stack.enter_context(
        Progress(console=console, transient=True, disable=not console.is_terminal)
    )
    return partial(bar.update, bar.add_task(what, total=total))
