"""What a long step is at, while it lasts, for those who watch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def building() -> Iterator[Callable[[str], None] | None]:
    """Gives what takes messages of a build; None where nobody watches, so that logs stay clean."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status("opening the device") as status:
        yield status.update
