"""Pausing Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A full collection runs once this many objects have been created while paused. It takes two
# seconds, and limits garbage to about a gigabyte in processes that elaborate many machines.
_COLLECTED_AFTER = 8_000_000
_made = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context without garbage collection.

    For work that creates many objects and keeps all of them until its end: the collector would scan
    them again and again, which takes half of the time of an elaboration.
    """
    global _made
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _made += gc.get_count()[0]
            if _made > _COLLECTED_AFTER:
                gc.collect()
                _made = 0
            elif not gc.get_freeze_count():
                # Moves the new objects to the oldest generation, so that the collector does not
                # scan them all at once.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
