"""Pausing Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made while paused, after which all garbage is collected once: two seconds of work, and a
# bound of a gigabyte on the garbage of processes that elaborate many machines.
_COLLECTED_AFTER = 8_000_000
_made = 0


@contextmanager
def collector_paused() -> Iterator[None]:
    """A context without garbage collection.

    For work that makes many objects which all stay in use until its end: the collector would scan
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
                # Moves the new objects out of the collector's sight, so that it does not scan all
                # at once.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
