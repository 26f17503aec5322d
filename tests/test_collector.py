"""Pausing the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys

from amaranth_vta import collector


def test_nothing_is_collected_while_paused_and_the_collector_runs_afterwards() -> None:
    with collector.collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


# In a separate process: the heap of this one contains the objects of all earlier tests.
MANY_PAUSES = """
import gc
import weakref

from amaranth_vta import collector


class Cycle:
    def __init__(self):
        self.itself = self


collector._COLLECTED_AFTER = 1000
gc.set_threshold(1 << 30)  # no other collections
left = []
for _ in range(20):
    with collector.collector_paused():
        cycles = [Cycle() for _ in range(100)]
        left += map(weakref.ref, cycles)
        del cycles
print(sum(reference() is not None for reference in left))
"""


def test_garbage_of_many_pauses_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", MANY_PAUSES], capture_output=True, check=True)
    assert int(done.stdout) <= 1200
