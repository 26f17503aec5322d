"""Loads from tensors that are stored in several places."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.launches.scattered import ScatteredBuffer, split_load, split_store
from amaranth_vta.sw.runtime.memory import Buffer, DeviceMemory
from amaranth_vta.sw.runtime.transfers import NO_PADS, Pads

ELEMENT = 4
TINY = PRESETS["tiny"]


def scattered(sizes: list[int]) -> ScatteredBuffer:
    """A tensor of as many elements per part, each its number; parts are stored in reverse order."""
    memory = DeviceMemory(FunctionalDevice(TINY, 1 << 14))
    parts: list[Buffer] = [memory.allocate(size * ELEMENT, f"part {size}") for size in sizes[::-1]]
    numbers = np.arange(sum(sizes), dtype=np.int32)
    for part, values in zip(parts[::-1], np.split(numbers, np.cumsum(sizes)[:-1]), strict=True):
        part.write(values)
    return ScatteredBuffer(parts[::-1], "x")


def loaded(source: ScatteredBuffer, rows: tuple[int, int, int, int], pads: Pads) -> list[int]:
    """The elements that the split loads fill, -1 for padding, in the order of the scratchpad."""
    found: dict[int, int] = {}
    for part in split_load(source, ELEMENT, *rows, pads):
        width = part.pads.x_before + part.x_size + part.pads.x_after
        height = part.pads.y_before + part.y_size + part.pads.y_after
        values = np.full((height, width), -1)
        for y, x in product(range(part.y_size), range(part.x_size)):
            at = (part.offset + y * rows[3] + x) * ELEMENT
            value = part.buffer.read(np.int32, 1, at)[0]
            values[y + part.pads.y_before, x + part.pads.x_before] = value
        for number, item in enumerate(values.reshape(-1).tolist()):
            assert part.shift + number not in found
            found[part.shift + number] = item
    assert sorted(found) == list(range(len(found)))
    return [found[at] for at in range(len(found))]


@pytest.mark.parametrize("pads", [NO_PADS, Pads(1, 2, 3, 4), Pads(0, 1, 0, 0), Pads(2, 0, 1, 1)])
@pytest.mark.parametrize("rows", [(0, 12, 2, 15), (3, 7, 3, 9), (5, 20, 1, 0), (0, 3, 0, 3)])
def test_split_loads_fill_the_elements_of_the_whole_load(
    rows: tuple[int, int, int, int], pads: Pads
) -> None:
    offset, x_size, y_size, x_stride = rows
    wanted = np.arange(y_size)[:, None] * x_stride + np.arange(x_size) + offset
    around = (pads.y_before, pads.y_after), (pads.x_before, pads.x_after)
    expected = np.pad(wanted, around, constant_values=-1).reshape(-1).tolist()
    assert loaded(scattered([6, 1, 8, 20]), rows, pads) == expected


def test_rows_within_a_part_are_one_load() -> None:
    loads = [*split_load(scattered([12, 30]), ELEMENT, 2, 4, 5, 5, Pads(1, 1, 0, 1))]
    assert [(load.y_size, load.pads.y_before, load.pads.y_after) for load in loads] == [
        (2, 1, 0),
        (3, 0, 1),
    ]


# The parts are stored in reverse order, so no row goes on in the next part.
@pytest.mark.parametrize("rows", [(0, 12, 2, 15), (3, 7, 3, 9), (5, 20, 1, 0), (0, 3, 0, 3)])
def test_split_stores_fill_the_elements_of_the_whole_store(rows: tuple[int, int, int, int]) -> None:
    target = scattered([6, 1, 8, 20])
    offset, x_size, y_size, x_stride = rows
    numbers = np.arange(y_size)[:, None] * x_stride + np.arange(x_size) + offset
    found: list[int] = []
    for part in split_store(target, ELEMENT, *rows):
        assert part.shift == len(found)
        for y, x in product(range(part.y_size), range(part.x_size)):
            at = (part.offset + y * part.x_stride + x) * ELEMENT
            found.append(part.buffer.read(np.int32, 1, at)[0])
    assert found == numbers.reshape(-1).tolist()


def test_equal_pieces_at_equal_distances_are_one_store() -> None:
    whole = DeviceMemory(FunctionalDevice(TINY, 1 << 14)).allocate(1 << 12)

    def stores(*begins: int) -> list[tuple[int, ...]]:
        parts = [whole.part(begin * ELEMENT, 2 * ELEMENT, "part") for begin in begins]
        found = split_store(ScatteredBuffer(parts, "x"), ELEMENT, 0, 2 * len(parts), 1, 0)
        return [part[1:] for part in found]

    assert stores(3, 10, 17) == [(3, 2, 3, 7, 0)]
    assert stores(3, 5, 7) == [(3, 6, 1, 0, 0)]
    assert stores(3, 10, 18) == [(3, 2, 2, 7, 0), (18, 2, 1, 0, 4)]
    assert stores(10, 3) == [(10, 2, 1, 0, 0), (3, 2, 1, 0, 2)]
    assert stores(3, 3) == [(3, 2, 2, 0, 0)]
