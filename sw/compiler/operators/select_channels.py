"""Channels of one or several tensors in any order: shuffles, concatenations that do not fill tiles.

GEMM moves channels within tiles by a product with 0/1 weights. A result tile takes channels from a
few source tiles. With source tiles sorted by the results they contribute to, result tile t needs
only a band of them, which begins at ``first`` + ``step`` · t: shuffling two halves takes three or
four products per tile, instead of one per source tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.build import Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor
from amaranth_vta.sw.compiler.tuner.output_tile import OutputTile, Tiled
from amaranth_vta.sw.compiler.tuner.tiles import all_tiles, parts
from amaranth_vta.sw.compiler.tuner.workload import Scheduled, tuned

from .building_blocks.epilogue import Step
from .building_blocks.identity import reads_what_it_stores
from .building_blocks.steps import LookupTable, looked_up, shared_constants
from .building_blocks.tile_movement import channel_sources
from .building_blocks.tile_schedule import tile_schedule

Array = npt.NDArray[Any]
# Index of a source, and of one of its channel tiles.
Tile = tuple[int, int]


@dataclass(frozen=True)
class SelectChannels(Tiled):
    """Gathers channels from sources with these numbers of ``channels``, each of ``pixels`` pixels
    and ``batch`` tiles of BATCH images. Result channel n is channel ``chosen[n]``, counted across
    all sources, which have the same scale and zero point. With a ``table``, which takes that many
    accumulators (`Config.table_elements`), a LOOKUP of the result follows.
    """

    batch: int
    channels: tuple[int, ...]
    pixels: int
    chosen: tuple[int, ...]
    table: int = 0

    def followed_by(self, step: Step) -> SelectChannels | None:
        """This selection with a ``step`` at its end, a `LookupTable`, which is composed with an
        earlier one; None for other steps.
        """
        return replace(self, table=step.elements) if isinstance(step, LookupTable) else None

    def scheduled(self, env: Environment, knobs: OutputTile) -> Scheduled:
        return _scheduled(self, env, knobs)

    def candidate_tiles(self, config: Config) -> Array:
        outputs = Band(self, config.block_out).outputs
        batch, pixels = all_tiles(self.batch, self.pixels).T
        return np.stack([batch, np.full_like(batch, outputs), pixels], axis=1)


class Band:
    """The source ``tiles`` of a selection in sorted order, and the band each result tile
    multiplies: result tile t < ``outputs`` uses ``width`` tiles from index ``first`` + ``step`` ·
    t. Indices outside of ``tiles`` are zero tiles.
    """

    def __init__(self, selection: SelectChannels, block: int) -> None:
        self.block = block
        self.outputs = parts(len(selection.chosen), block)
        starts = [0, *accumulate(selection.channels)]
        self._taken: list[tuple[Tile, int]] = []
        for number in selection.chosen:
            source = int(np.searchsorted(starts, number, "right")) - 1
            tile, place = divmod(number - starts[source], block)
            self._taken.append(((source, tile), place))
        results: dict[Tile, list[int]] = {}
        for result, (taken, _) in enumerate(self._taken):
            results.setdefault(taken, []).append(result)
        self.tiles = sorted(results, key=lambda tile: (float(np.mean(results[tile])), tile))
        self._numbers = {tile: number for number, tile in enumerate(self.tiles)}
        places = [self._numbers[tile] for tile, _ in self._taken]
        needed = [places[begin : begin + block] for begin in range(0, len(places), block)]
        least, most = (np.array([end(numbers) for numbers in needed]) for end in (min, max))
        self.width, self.step, self.first = min(
            _band(least, most, step) for step in range(len(self.tiles) + 1)
        )

    @property
    def reach(self) -> int:
        """Number of tiles from the first to the last one multiplied."""
        return self.step * (self.outputs - 1) + self.width

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Runs of consecutive ``tiles`` of one source: end of the run, source, and offset from an
        index in ``tiles`` to the tile number within the source.
        """
        return list(self._runs())

    def _runs(self) -> Iterator[tuple[int, int, int]]:
        shifts = [(source, tile - place) for place, (source, tile) in enumerate(self.tiles)]
        for place, here in enumerate(shifts):
            if place + 1 == len(shifts) or shifts[place + 1] != here:
                yield place + 1, *here

    def weights(self) -> Array:
        """int8 (tiles of results, width, BLOCK_OUT, BLOCK_IN) of 0 and 1."""
        weights = np.zeros((self.outputs, self.width, self.block, self.block), np.int8)
        for result, (tile, place) in enumerate(self._taken):
            output, row = divmod(result, self.block)
            at = self._numbers[tile] - self.first - self.step * output
            weights[output, at, row, place] = 1
        return weights


def _band(least: Array, most: Array, step: int) -> tuple[int, int, int]:
    """Width, step and first tile of the narrowest band with a given step, if result tile t needs
    tiles from ``least[t]`` to ``most[t]``.
    """
    moved = step * np.arange(len(least))
    first = int((least - moved).min())
    return int((most - moved).max()) - first + 1, step, first


def select_channels(
    workload: SelectChannels,
    env: Environment,
    knobs: OutputTile | None = None,
    name: str = "select_channels",
) -> Function:
    """Build a function of the sources, `selection_weights`, the table (`te.table_tiles`) if there
    is one, and output.

    All tensors are (batch, channel tiles, pixels, BATCH, BLOCK_OUT) out_dtype. The knobs tile
    the first three axes of the output, with all channels at a time. Default knobs and exceptions:
    see `tuned`. Raises `ValueError` on a machine whose input tiles differ from its output tiles.
    """
    if not reads_what_it_stores(env):
        raise ValueError(
            f"{name}: channels move within tiles by GEMM, which takes tiles of {env.BLOCK_IN} "
            f"{env.inp_dtype}; these are of {env.BLOCK_OUT} {env.out_dtype}"
        )
    return tuned(workload, env, knobs, name)


def selection_weights(workload: SelectChannels, config: Config) -> Array:
    """int8 (result tiles, band width, BLOCK_OUT, BLOCK_IN) of 0 and 1."""
    return Band(workload, config.block_out).weights()


def _scheduled(workload: SelectChannels, env: Environment, knobs: OutputTile) -> Scheduled:
    band, acc = Band(workload, env.BLOCK_OUT), env.acc_dtype
    tail = (env.BATCH, env.BLOCK_IN)
    sources = channel_sources(workload.batch, workload.channels, workload.pixels, env)
    w = te.placeholder((band.outputs, band.width, env.BLOCK_OUT, env.BLOCK_IN), "w", env.wgt_dtype)
    joined = te.compute(
        (workload.batch, band.reach, workload.pixels, *tail),
        lambda n, c, *i: _joined(sources, band, n, c + band.first, i),
        "joined",
    )
    w_buf = te.compute(w.shape, lambda *i: w(*i), "w_buf")
    d, ki = te.reduce_axis((0, band.width), "d"), te.reduce_axis((0, env.BLOCK_IN), "ki")
    placed = te.compute(
        (workload.batch, band.outputs, workload.pixels, env.BATCH, env.BLOCK_OUT),
        lambda n, o, p, b, k: te.sum(
            joined[n, o * band.step + d, p, b, ki].astype(acc) * w_buf[o, d, k, ki].astype(acc),
            axis=[d, ki],
        ),
        "placed",
    )
    args, result = [*sources, w], placed
    if workload.table:
        table, table_buf = shared_constants(workload.table, "table", env)
        args, result = [*args, table], looked_up(placed, table_buf)
    y = te.compute(placed.shape, lambda *i: result(*i).astype(env.out_dtype), "y")

    s = tile_schedule(y, knobs.extents, env, order=(1, 0, 2))
    if knobs.in_turn:
        s[placed].double_buffer()
        s[joined].double_buffer()
    return s, [*args, y]


def _joined(sources: Sequence[Tensor], band: Band, n: Expr, place: Expr, i: Sequence[Expr]) -> Expr:
    """The scalar at ``i`` in the tile at index ``place`` of the sorted tiles."""
    *others, (_, source, shift) = band.runs
    value = sources[source](n, place + shift, *i)
    for end, source, shift in reversed(others):
        value = te.if_then_else(place < end, sources[source](n, place + shift, *i), value)
    if band.first + band.reach > len(band.tiles):
        value = te.if_then_else(place < len(band.tiles), value, 0)
    return te.if_then_else(place >= 0, value, 0) if band.first < 0 else value
