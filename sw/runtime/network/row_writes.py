"""Writes rows of matrices that are in the machine's memory as weights; reads their places."""

from __future__ import annotations

from math import prod

import numpy as np

from amaranth_vta.sw.runtime.memory import Buffer

from .factors import FactorWeights
from .model_error import ModelError
from .network_program import MoveWindows, WriteRows
from .tile_layout import Array, signed, tiles

# Bytes between two written ones that are read and written too, instead of a separate transfer.
_GAP = 64


def write_rows(step: WriteRows, buffer: Buffer, rows: Array, places: Array) -> None:
    """Write ``rows``, int8 with the elements of the operand's image at ``places`` (int64) of the
    axis, to ``buffer``. Raises `ModelError` if their sizes do not fit, or a place is outside.
    """
    shape, size = list(step.operand.image), step.operand.image[step.axis]
    shape[step.axis] = places.size
    numbers = places.reshape(-1)
    if rows.dtype != np.int8 or rows.size != prod(shape) or places.dtype.kind != "i":
        raise ModelError(
            f"the host computed the new rows of {step.operand.tensor} as {rows.dtype} "
            f"{[*rows.shape]}, at {places.size} places of {places.dtype}"
        )
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < size):
        raise ModelError(
            f"the host computed places outside of the {size:,} rows of {step.operand.tensor}"
        )
    rows = signed(rows)
    if step.stacked:
        rows = rows.reshape(step.stacked, numbers.size, -1).swapaxes(1, 2)
    offsets = _offsets(step, numbers).reshape(-1)
    order = np.argsort(offsets, kind="stable")
    offsets, data = offsets[order], rows.reshape(-1)[order].view(np.uint8)
    (ends,) = np.nonzero(np.diff(offsets) > _GAP)
    for part, values in zip(np.split(offsets, ends + 1), np.split(data, ends + 1), strict=True):
        begin, count = int(part[0]), int(part[-1] - part[0]) + 1
        if count > values.size:
            whole = buffer.read(np.uint8, count, begin)
            whole[part - begin] = values
            values = whole
        buffer.write(values, begin)


def place_of(step: MoveWindows, places: Array) -> int:
    """The place to which windows move; negative ones count from the end, as in Gather.
    Raises `ModelError` unless it is one of ``count``.
    """
    count = step.count
    if places.size != 1 or places.dtype.kind != "i" or not -count <= places.item() < count:
        raise ModelError(
            f"the host computed {step.place} as {places.dtype} {places.tolist()}, not as a place "
            f"among {count:,} rows"
        )
    return int(places.item()) % count


def _offsets(step: WriteRows, places: Array) -> Array:
    """The byte offsets of the elements of rows at ``places``: int64, in the shape of the rows as
    part of the image."""
    layout, packing = step.operand.layout, step.operand.packing
    assert isinstance(packing, FactorWeights)
    groups, inputs, outputs, _ = step.operand.image
    numbers = [np.arange(groups), np.arange(inputs), np.arange(outputs)]
    numbers[step.axis] = places
    group, column, output = np.ix_(*numbers)
    row = group * tiles(outputs, packing.block) * packing.block + output
    tile = row // layout.batch * tiles(inputs, layout.block) + column // layout.block
    within = row % layout.batch * layout.block + column % layout.block
    offsets: Array = tile * layout.batch * layout.block + within
    return offsets
