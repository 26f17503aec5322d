"""Rows written to matrices in weight tiles are where packing the whole matrices puts them."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sw.runtime.memory import Buffer, DeviceMemory
from amaranth_vta.sw.runtime.network.factors import FactorWeights
from amaranth_vta.sw.runtime.network.model_error import ModelError
from amaranth_vta.sw.runtime.network.network_program import MoveWindows, WriteRows
from amaranth_vta.sw.runtime.network.row_writes import place_of, write_rows
from amaranth_vta.sw.runtime.network.tile_layout import TileLayout
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

IMAGE = (3, 11, 18, 1)  # groups, inputs, outputs: neither fills tiles


def written(config: str, axis: int) -> tuple[WriteRows, Buffer]:
    """A write to zeros in the memory of a machine."""
    machine = Config.load(config)
    packing = FactorWeights(0, 1, machine.block_out)
    operand = TiledTensor("cache", IMAGE, TileLayout.of(machine.wgt), packing)
    buffer = DeviceMemory(open_device("functional", machine, 1 << 16)).allocate(operand.nbytes)
    buffer.write(np.zeros(operand.nbytes, np.uint8))
    return WriteRows(operand, "cache", "rows", "places", axis), buffer


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("config", ["tiny", "pynq", "block32"])
def test_rows_are_at_their_places(config: str, axis: int) -> None:
    step, buffer = written(config, axis)
    random, matrices = np.random.default_rng(axis), np.zeros(IMAGE, np.int8)
    for count in (1, 1, 3, 5):
        places = random.permutation(IMAGE[axis])[:count]
        shape = [count if at == axis else size for at, size in enumerate(IMAGE)]
        rows = random.integers(-128, 128, shape).astype(np.int8)
        matrices[(slice(None),) * axis + (places,)] = rows
        write_rows(step, buffer, rows, places)
        wanted = step.operand.pack(matrices)
        np.testing.assert_array_equal(buffer.read(np.uint8, wanted.size), wanted)


@pytest.mark.parametrize("places", [[-1], [11], [3, 40]])
def test_a_place_outside_is_refused(places: list[int]) -> None:
    step, buffer = written("pynq", 1)
    rows = np.ones((3, len(places), 18), np.int8)
    with pytest.raises(ModelError, match="places outside of the 11 rows of cache"):
        write_rows(step, buffer, rows, np.array(places))
    assert not buffer.read(np.uint8, buffer.size).any()


@pytest.mark.parametrize(
    ("rows", "places"),
    [
        (np.ones((3, 1, 17), np.int8), np.array([1])),
        (np.ones((3, 1, 18), np.int16), np.array([1])),
        (np.ones((3, 1, 18), np.int8), np.array([1.0])),
    ],
)
def test_rows_of_another_size_or_type_are_refused(rows: np.ndarray, places: np.ndarray) -> None:
    step, buffer = written("pynq", 1)
    with pytest.raises(ModelError, match="the host computed the new rows of cache as"):
        write_rows(step, buffer, rows, places)


def test_rows_of_stacked_matrices_are_side_by_side() -> None:
    machine, (stacked, inputs, outputs) = Config.load("pynq"), (3, 32, 20)
    packing, image = FactorWeights(0, 1, machine.block_out), (1, stacked * inputs, outputs, 1)
    operand = TiledTensor("cache", image, TileLayout.of(machine.wgt), packing)
    buffer = DeviceMemory(open_device("functional", machine, 1 << 16)).allocate(operand.nbytes)
    buffer.write(np.zeros(operand.nbytes, np.uint8))
    step = WriteRows(operand, "cache", "rows", "places", 2, stacked)
    places = np.array([17, 0, 4])
    rows = np.random.default_rng(1).integers(-128, 128, (stacked, 3, inputs)).astype(np.int8)
    write_rows(step, buffer, rows, places)
    matrices = np.zeros(image, np.int8)
    for at, place in enumerate(places):
        matrices[0, :, place, 0] = rows[:, at].reshape(-1)
    np.testing.assert_array_equal(buffer.read(np.uint8, operand.nbytes), operand.pack(matrices))


@pytest.mark.parametrize("places", [np.array([-9]), np.array([8]), np.array([1, 2]), np.ones(1)])
def test_a_place_of_windows_is_that_of_a_row(places: np.ndarray) -> None:
    step = MoveWindows((), "place", 8)
    assert place_of(step, np.array([[7]])) == 7
    assert place_of(step, np.array([-1])) == 7  # as in Gather and ScatterElements
    with pytest.raises(ModelError, match="the host computed place as .* not as a place among 8"):
        place_of(step, places)
