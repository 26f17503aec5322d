from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import ANY

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.sw.runtime.memory import DeviceMemory
from amaranth_vta.sw.runtime.uop_cache import UopCache, UopSequence, UopStore, merged_loads

MakeDevice = Callable[..., Any]


def sequences_of(device: Any, counts: list[int]) -> list[UopSequence]:
    store = UopStore(DeviceMemory(device))
    return [store.intern(np.full(count, n, np.uint32)) for n, count in enumerate(counts)]


def test_equal_contents_are_kept_once(fake_device: MakeDevice) -> None:
    store = UopStore(DeviceMemory(fake_device()))
    first, second, third = (
        store.intern(np.array(values, np.uint32)) for values in ([1, 2], [3], [1, 2])
    )
    assert first is third
    assert (first.offset, second.offset) == (0, 2)
    assert second.read().tolist() == [3]


def test_a_store_takes_another_buffer_when_one_is_full(fake_device: MakeDevice) -> None:
    store = UopStore(DeviceMemory(fake_device()))
    counts = [10_000, 10_001, 40_000, 5]
    sequences = [store.intern(np.arange(n, n + n, dtype=np.uint32)) for n in counts]
    assert [item.read().tolist() for item in sequences] == [list(range(n, n + n)) for n in counts]
    assert [buffer.name for buffer in store.buffers] == [f"micro-ops {n}" for n in range(4)]


def test_each_new_sequence_goes_where_the_last_use_is_longest_ago(fake_device: MakeDevice) -> None:
    generator = random.Random(4)
    depth = 32
    counts = [generator.randint(1, 12) for _ in range(40)]
    sequences = sequences_of(fake_device(), counts)
    cache = UopCache(depth)
    last_use = np.zeros(depth, np.int64)  # per index; 0 while it is free
    owner = np.full(depth, -1)
    for time in range(1, 1500):
        number = generator.choice(range(40)) if time % 3 else time % 5
        count = counts[number]
        expected_missing = not (owner == number).any()
        best = min(last_use[at : at + count].max() for at in range(depth - count + 1))
        begin, missing = cache.place(sequences[number])
        assert missing == expected_missing
        if missing:
            assert last_use[begin : begin + count].max() == best
            for evicted in set(owner[begin : begin + count].tolist()) - {-1}:
                last_use[owner == evicted] = 0
                owner[owner == evicted] = -1
        owner[begin : begin + count] = number
        last_use[begin : begin + count] = time
        assert (owner == number).sum() == count
        resident = dict(cache.resident())
        assert {start: sequences[n] for n, start in _starts(owner)} == resident


def _starts(owner: np.ndarray) -> list[tuple[int, int]]:
    return [(n, int(np.argmax(owner == n))) for n in sorted(set(owner.tolist()) - {-1})]


def test_the_lowest_of_equal_places_is_taken(fake_device: MakeDevice) -> None:
    cache = UopCache(16)
    places = [cache.place(item) for item in sequences_of(fake_device(), [4, 4, 4])]
    assert places == [(0, True), (4, True), (8, True)]


def test_placing_takes_no_more_steps_among_many_sequences_than_among_few() -> None:
    def lines_among(others: int) -> int:
        """The number of Python lines executed to place a sequence in a full micro-op buffer."""
        depth = 4096
        cache = UopCache(depth)
        *sequences, last = (UopSequence(ANY, n, depth // others) for n in range(others + 1))
        for sequence in sequences:
            cache.place(sequence)
        with _counted_lines() as lines:
            assert cache.place(last) == (0, True)
        return len(lines)

    assert lines_among(4096) <= lines_among(16)


@contextmanager
def _counted_lines() -> Iterator[list[int]]:
    """Record the line numbers of Python code executed in the context."""
    lines: list[int] = []

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def test_what_was_resident_and_is_used_again_is_kept(fake_device: MakeDevice) -> None:
    """Kept sequences are those first used without a load since the previous call of
    ``take_reused``."""
    generator = random.Random(5)
    sequences = sequences_of(fake_device(), [generator.randint(1, 6) for _ in range(12)])
    cache = UopCache(24)
    for _ in range(200):
        reused, used = {}, set()
        for _ in range(generator.randint(0, 8)):
            sequence = generator.choice(sequences)
            begin, missing = cache.place(sequence)
            if not missing and sequence not in used:
                reused[begin] = sequence
            used.add(sequence)
        assert cache.take_reused() == sorted(reused.items(), key=lambda item: item[0])


def test_a_cleared_cache_has_everything_loaded_anew(fake_device: MakeDevice) -> None:
    cache = UopCache(16)
    (sequence,) = sequences_of(fake_device(), [4])
    assert [cache.place(sequence)[1] for _ in range(2)] == [True, False]
    cache.clear()
    assert cache.resident() == []
    assert cache.place(sequence) == (0, True)


def test_what_is_adjacent_in_the_buffer_is_loaded_together(fake_device: MakeDevice) -> None:
    store = UopStore(DeviceMemory(fake_device()))
    one, two, three, four = (
        store.intern(np.array(values, np.uint32)) for values in ([1, 2], [3], [4, 5, 6], [7])
    )
    # Adjacent in both memories: nothing is copied.
    loads = merged_loads([(8, one), (10, two)], store)
    assert [(begin, item.offset, item.count) for begin, item in loads] == [(8, 0, 3)]
    # In another order, with a gap behind: copied once, and loaded from there again.
    loads = merged_loads([(0, three), (3, one), (5, four), (9, two)], store)
    assert [(begin, item.read().tolist()) for begin, item in loads] == [
        (0, [4, 5, 6, 1, 2, 7]),
        (9, [3]),
    ]
    assert loads[1][1].offset == two.offset
    (_, again), *_ = merged_loads([(20, three), (23, one), (25, four)], store)
    assert again is loads[0][1]


def test_sequences_are_together_up_to_the_size_of_a_load(fake_device: MakeDevice) -> None:
    store = UopStore(DeviceMemory(fake_device()))
    half = store.intern(np.arange(1 << isa.SIZE_WIDTH - 1, dtype=np.uint32))
    places = [(number * half.count, half) for number in range(3)]
    loads = merged_loads(places, store)
    assert [(begin, item.count) for begin, item in loads] == [
        (number * half.count, half.count) for number in range(3)
    ]
