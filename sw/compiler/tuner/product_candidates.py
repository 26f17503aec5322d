"""Candidate tilings of a `TiledProduct`: those that fit, with rough estimates of their cycles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.operators.building_blocks.product import weight_memory

from .cost_model import OVERLAPPING_PASSES, ROUND_TRIP_CYCLES, bus_cycles
from .product_walk import walks
from .search import Candidates, Choice, best_of
from .tiled_product import TiledProduct, Tiling
from .tiles import divisors, even_tiles

Array = npt.NDArray[Any]
_BOTH = (True, False)
# Number of tile shapes (rows, columns) per setting of the other knobs that are ranked first.
_SHAPES = 3
# Maximum number of image tiles held at a time, with `Tiling.ahead`.
_MAX_COPIES = 8
# Weights of this many steps are held if the image is loaded step by step in the first output tile.
_COPIES_OF_STEPS = 8
# How many times as large the first output tile is at first.
_LARGER_THAN_OTHERS = 3


def best_tilings(p: TiledProduct, config: Config) -> Choice[Tiling]:
    """The tilings of ``p`` worth trying, ranked by estimated cycles."""
    return best_of(
        candidates(p, config),
        walks(p, config),
        lambda tiling: with_more_copies(tiling, p, config),
        lambda tiling: neighbours(tiling, p, config),
        lambda tiling: with_larger_first(tiling, p, config),
    )


def candidates(p: TiledProduct, config: Config) -> Candidates[Tiling]:
    """Tilings that fit the scratchpads, the best by a rough estimate first.

    Vectorized: arrays with one item per schedule.
    """
    tilings, width = _tilings(p, config), p.whole.columns
    # Narrower tiles load more, but tiles that divide the width evenly may take fewer cycles.
    even, exact = (
        _widest(tilings, widths, p, config) for widths in (even_tiles(width), divisors(width))
    )
    columns = np.stack([even, np.where(exact == even, 0, exact)], axis=1).ravel()
    fitting = np.flatnonzero(columns)
    fields = {name: np.repeat(values, 2)[fitting] for name, values in tilings.items()}
    fields["columns"] = columns[fitting]
    found = Candidates(rough_cycles(p, config, _many(fields)), fields, Tiling)
    return found.varied([name for name in fields if name not in ("rows", "columns")], _SHAPES)


def _tilings(p: TiledProduct, config: Config) -> dict[str, Array]:
    """All knobs but ``columns``, for tilings whose weights fit the scratchpad once."""
    whole = p.whole
    values = {
        "outputs": p.tiles_of_outputs(),
        "rows": even_tiles(whole.rows),
        "inputs": divisors(whole.inputs),
        "kernel_rows": divisors(whole.kernel_rows),
        "ahead": _BOTH,
        "weights_outside": _BOTH if p.keeps_images else (True,),
        "in_turn": _BOTH if config.overlap else (False,),
    }
    grid = np.meshgrid(*values.values(), indexing="ij")
    fields = {name: axis.ravel() for name, axis in zip(values, grid, strict=True)}
    many = _many({**fields, "columns": 1})
    at_once = p.is_whole(many)
    kept = (p.held_weights(many) + p.is_added_to <= config.wgt.depth) & (
        at_once | many.weights_outside
    )
    if p.row_sums:
        kept &= at_once
    if p.carries:
        kept &= many.in_turn & at_once & many.weights_outside & (many.rows == 1)
    return {name: axis[kept] for name, axis in fields.items()}


def _widest(tilings: dict[str, Array], widths: list[int], p: TiledProduct, config: Config) -> Array:
    """The first of ``widths`` that fits, for each tiling; 0 where none does."""
    rows = {name: values[:, None] for name, values in tilings.items()}
    many = _many({**rows, "columns": np.array(widths)})
    fits: Array = np.asarray(p.fits(many, config))
    return np.where(fits.any(axis=1), np.array(widths)[fits.argmax(axis=1)], 0)


def _many(fields: Mapping[str, Any]) -> Tiling:
    """Tilings whose fields are arrays, one item per schedule."""
    return Tiling(**fields)


def rough_cycles(p: TiledProduct, config: Config, t: Tiling) -> Array:
    """Closed-form estimates that assume equal tiles: load the first operands, compute every tile at
    the rate of the slowest unit, store the last tile.
    """
    blocks, images, steps = p.blocks(t), p.images(t), p.steps(t)
    tiles = images * blocks
    mean = p.mean_tile(t)
    vectors, pixels = p.vectors(mean), p.pixels(mean)
    # Before its first products, a tile is reset, or loaded with an addition's other operand.
    begun = pixels * (not config.overwrite) + pixels * p.is_added_to
    gemm = p.gemm_cycles(mean) + begun / steps
    alu = pixels * p.operations + mean.outputs * p.parameter_cycles
    alu = alu * config.lane_columns + vectors * p.pooled_cycles(t, config)
    store = bus_cycles(config, 1, vectors * p.requantize.stored * config.out.element_bytes)
    # Padding counts as if it were loaded.
    blocks_in_dram, rows, _ = p.image_in_dram(t)
    pieces, elements = blocks_in_dram * rows, prod(p.image_tile(t))
    image = bus_cycles(config, pieces, elements / pieces * config.inp.element_bytes)
    weight_bytes = p.held_weights(t) * weight_memory(p.int4_weights, config).element_bytes
    weights = bus_cycles(config, 1, weight_bytes)
    load_first = image + weights
    # The stationary operand is loaded once for all tiles that use it.
    at_once = p.is_whole(t)
    load = np.where(at_once & t.weights_outside, image + weights / images, load_first)
    load = np.where(at_once & (t.weights_outside ^ True), image / blocks + weights, load)
    load = load + p.is_added_to * store / steps
    # A copy of a buffer, or a bank, can be reused only after a round trip.
    step = np.maximum(gemm, load + store / steps)
    step = np.maximum(step, (gemm + load + ROUND_TRIP_CYCLES) / (1 + t.ahead))
    turn = (steps * gemm + alu + store + ROUND_TRIP_CYCLES) / t.banks
    # All but the last ALU passes keep GEMM from issuing the next tile.
    waiting = max(p.operations - OVERLAPPING_PASSES, 0) * config.lane_columns
    issue = steps * gemm + vectors * waiting
    slowest = np.maximum(np.maximum(steps * step, turn), issue)
    # The constants of all outputs are loaded at the start, or those of some between their tiles.
    held = p.outputs_held(t, config)
    words = sum(p.requantize.constant_bytes(config)) / config.bus_bytes
    preparation = p.requantize.preparation_cycles * config.lane_columns
    constants = held * p.phases * (words + preparation)
    waited_for = np.maximum(weight_bytes - p.prefetched_bytes(t, config), 0)
    begin = np.maximum(image + bus_cycles(config, 1, waited_for), constants * t.in_turn)
    # Nothing overlaps between outputs with constants of their own.
    drained = constants + ROUND_TRIP_CYCLES + t.in_turn * (load_first + alu + store)
    changes = np.where(t.in_turn, p.channels / held - 1, tiles)
    total: Array = begin + tiles * slowest + changes * drained + alu + store
    return total


def with_larger_first(t: Tiling, p: TiledProduct, config: Config) -> Iterator[Tiling]:
    """A variant of ``t`` whose first output tile loads the image tile in steps of one channel tile.
    A step takes GEMM about as long as the load of its operands.
    """
    keeps = p.keeps_images and p.is_whole(t) and t.ahead and not (p.row_sums or t.weights_outside)
    if not keeps or p.whole.inputs == 1:
        return
    step = replace(t, outputs=1, inputs=1)
    blocks, rows, length = p.image_in_dram(step)
    image = bus_cycles(config, blocks * rows, length * config.inp.element_bytes)
    weight_bytes = p.held_weights(step) * weight_memory(p.int4_weights, config).element_bytes
    spare = p.gemm_cycles(step) - bus_cycles(config, 1, weight_bytes)
    if spare <= 0:
        return
    least = min(-(-image // spare), p.whole.outputs)
    for first in range(int(least), _LARGER_THAN_OTHERS, -1):
        outputs = -(-first // _LARGER_THAN_OTHERS)
        found = replace(t, first=first, outputs=outputs, inputs=1, weight_copies=_COPIES_OF_STEPS)
        if p.fits(found, config):
            yield found
            return


def with_more_copies(t: Tiling, p: TiledProduct, config: Config) -> Iterator[Tiling]:
    """``t``, and variants that use the remaining room for more copies: of the image (an even
    number), of an addition's other operand, and, with half-size tiles, of accumulators.
    """
    if not p.varies_copies:
        return
    most = _MAX_COPIES if p.copies_of_image(t) > 1 else t.image_copies
    more = replace(t, added_copies=1 + p.is_added_to)
    start = more if p.fits(more, config) else t
    for tile in (start, *_halves(start)):
        filled = [
            copied
            for copies in range(t.image_copies, most + 1, 2)
            if p.fits(copied := replace(tile, image_copies=copies), config)
        ]
        # Of a half-size tile, which already has twice the accumulator copies, only the most
        # image copies.
        yield from filled[tile == t :] if tile is start else filled[-1:]


def _halves(t: Tiling) -> Iterator[Tiling]:
    """Half-size tiles, with twice as many copies in accumulators."""
    for name in ("columns", "rows", "outputs") if t.in_turn else ():
        size = getattr(t, name)
        if size > 1:
            yield replace(t, result_copies=4, **{name: -(-size // 2)})


def neighbours(t: Tiling, p: TiledProduct, config: Config) -> Iterator[Tiling]:
    """Tilings that fit and differ from ``t`` in one size."""
    whole = p.whole
    rows = () if p.carries else even_tiles(whole.rows)
    columns = {*even_tiles(whole.columns), *divisors(whole.columns)}
    near = [
        replace(t, outputs=size) for size in p.tiles_of_outputs() if not t.first or size <= t.first
    ]
    if t.first:
        near += [replace(t, first=size) for size in range(t.outputs, whole.outputs)]
    near += [replace(t, rows=size) for size in rows]
    near += [replace(t, columns=size) for size in sorted(columns, reverse=True)]
    return (tiling for tiling in near if p.fits(tiling, config))
