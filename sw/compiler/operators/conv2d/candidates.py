"""Candidate schedules of a convolution: knobs that fit, with rough estimates of their cycles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory
from amaranth_vta.sw.compiler.tuner.cost_model import (
    OVERLAPPING_PASSES,
    ROUND_TRIP_CYCLES,
    bus_cycles,
)
from amaranth_vta.sw.compiler.tuner.search import Candidates
from amaranth_vta.sw.compiler.tuner.tiles import divisors, even_tiles, parts

from .sizes import Conv2dKnobs, Conv2dSizes

Array = npt.NDArray[Any]
_BOTH = (True, False)
# Number of tile shapes (rows, columns) per setting of the other knobs that are ranked first.
_SHAPES = 3


def candidates(c: Conv2dSizes, config: Config) -> Candidates[Conv2dKnobs]:
    """Knobs whose tiles fit the scratchpads, the best by a rough estimate first.

    Vectorized: arrays with one item per schedule.
    """
    tilings = _tilings(c, config)
    # Narrower tiles load more, but tiles that divide the width evenly may take fewer cycles.
    even, exact = (
        _widest(tilings, widths, c, config)
        for widths in (even_tiles(c.output_width), divisors(c.output_width))
    )
    columns = np.stack([even, np.where(exact == even, 0, exact)], axis=1).ravel()
    fitting = np.flatnonzero(columns)
    fields = {name: np.repeat(values, 2)[fitting] for name, values in tilings.items()}
    fields["columns"] = columns[fitting]
    many = _many(fields)
    found = Candidates(rough_cycles(c, config, many), fields, Conv2dKnobs)
    return found.varied([name for name in fields if name not in ("rows", "columns")], _SHAPES)


def _tilings(c: Conv2dSizes, config: Config) -> dict[str, Array]:
    """All knobs but ``columns``, for tilings whose weights fit the scratchpad once."""
    values = {
        "outputs": even_tiles(c.outputs),
        "rows": even_tiles(c.output_height),
        "inputs": divisors(c.inputs),
        "kernel_rows": divisors(c.kernel[0]),
        "ahead": _BOTH,
        "weights_outside": _BOTH,
        "in_turn": _BOTH if config.overlap else (False,),
    }
    grid = np.meshgrid(*values.values(), indexing="ij")
    fields = {name: axis.ravel() for name, axis in zip(values, grid, strict=True)}
    weights = fields["outputs"] * fields["inputs"] * fields["kernel_rows"] * c.weights_per_row
    whole = (fields["inputs"] == c.inputs) & (fields["kernel_rows"] == c.kernel[0])
    kept = (weights + (c.addition is not None) <= config.wgt.depth) & (
        whole | fields["weights_outside"]
    )
    if c.row_sums:
        kept &= whole & (not c.carries)
    if c.carries:
        kept &= fields["in_turn"] & whole & fields["weights_outside"] & (fields["rows"] == 1)
    return {name: values[kept] for name, values in fields.items()}


def _widest(tilings: dict[str, Array], widths: list[int], c: Conv2dSizes, config: Config) -> Array:
    """The first of ``widths`` that fits, for each tiling; 0 where none does."""
    rows = {name: values[:, None] for name, values in tilings.items()}
    many = _many({**rows, "columns": np.array(widths)})
    fits: Array = np.asarray(many.fits(c, config))
    return np.where(fits.any(axis=1), np.array(widths)[fits.argmax(axis=1)], 0)


def _many(fields: Mapping[str, Any]) -> Conv2dKnobs:
    """Knobs whose fields are arrays, one item per schedule."""
    return Conv2dKnobs(**fields)


def rough_cycles(c: Conv2dSizes, config: Config, knobs: Conv2dKnobs) -> Array:
    """Closed-form estimates that assume equal tiles: load the first operands, compute every tile at
    the rate of the slowest unit, store the last tile.
    """
    blocks, whole = parts(c.outputs, knobs.outputs), knobs.is_whole(c)
    tiles = knobs.images(c) * blocks
    steps = parts(c.inputs, knobs.inputs) * parts(c.kernel[0], knobs.kernel_rows)
    vectors = c.batch * c.outputs * c.output_height * c.output_width / tiles
    added = c.addition is not None
    pixels = vectors
    if c.pooling is not None:
        pixels = knobs.outputs * c.image_rows(knobs.rows) * c.image_columns(knobs.columns)
    gemm = pixels * (c.products + knobs.resets(c, config) + added) / steps
    gemm = gemm + pixels / knobs.outputs * c.sum_products
    alu = pixels * c.operations + vectors * c.pooled_operations
    stored = vectors * c.requantize.parts * config.out.element_bytes
    store = bus_cycles(config, 1, stored)
    image = bus_cycles(
        config,
        knobs.inputs * c.input_rows(knobs.rows, knobs.kernel_rows),
        c.input_columns(knobs.columns) * config.inp.element_bytes,
    )
    tile = knobs.outputs * knobs.inputs * knobs.kernel_rows * c.weights_per_row
    weights = bus_cycles(config, 1, tile * weight_memory(c.int4_weights, config).element_bytes)
    load_first = image + weights
    # The stationary operand is loaded once for all tiles that use it.
    load = np.where(whole & knobs.weights_outside, image + weights / knobs.images(c), load_first)
    inside = whole & (knobs.weights_outside ^ True)
    load = np.where(inside, image / blocks + weights, load)
    load = load + added * store / steps
    # A copy of a buffer, or a bank, can be reused only after a round trip.
    copies, banks = 1 + knobs.ahead, 1 + knobs.in_turn
    step = np.maximum(gemm, load + store / steps)
    step = np.maximum(step, (gemm + load + ROUND_TRIP_CYCLES) / copies)
    turn = (steps * gemm + alu + store + ROUND_TRIP_CYCLES) / banks
    # All but the last ALU passes keep GEMM from issuing the next tile.
    issue = steps * gemm + vectors * max(c.operations - OVERLAPPING_PASSES, 0)
    slowest = np.maximum(np.maximum(steps * step, turn), issue)
    total: Array = load_first + tiles * slowest + alu + store
    return total
