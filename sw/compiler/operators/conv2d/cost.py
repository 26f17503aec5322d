"""What the schedules of a convolution cost: roughly, and through the model of the machine."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import lcm, prod
from typing import NamedTuple

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.tuner.cost_model import (
    ROUND_TRIP_CYCLES,
    Estimate,
    Pipeline,
    TakingTurns,
    Task,
    bus_cycles,
)
from amaranth_vta.sw.compiler.tuner.tiles import cut, parts

from .sizes import Conv2dKnobs, Conv2dSizes


def rough_cycles(c: Conv2dSizes, config: Config, knobs: Conv2dKnobs) -> float:
    """An estimate without a walk, as if all tiles were alike: the first ones are loaded, each then
    takes as long as what it is slowest with, and the last one is stored."""
    blocks = parts(c.outputs, knobs.outputs)
    tiles = knobs.images(c) * blocks
    steps = parts(c.inputs, knobs.inputs) * parts(c.kernel[0], knobs.kernel_rows)
    vectors = c.batch * c.outputs * c.output_height * c.output_width / tiles
    gemm = vectors * (c.inputs * prod(c.kernel) + knobs.resets(c, config)) / steps
    alu = vectors * c.requantize.operations
    store = bus_cycles(config, 1, vectors * config.out.element_bytes)
    image = bus_cycles(
        config,
        knobs.inputs * c.input_rows(knobs.rows, knobs.kernel_rows),
        c.input_columns(knobs.columns) * config.inp.element_bytes,
    )
    tile = knobs.outputs * knobs.inputs * knobs.kernel_rows * c.kernel[1]
    weights = bus_cycles(config, 1, tile * config.wgt.element_bytes)
    load = load_first = image + weights
    if knobs.is_whole(c) and knobs.weights_outside:
        load = image + weights / knobs.images(c)
    elif knobs.is_whole(c):
        load = image / blocks + weights
    # Data of a copy, or accumulators of a bank, are on their way before they can be used again.
    copies, banks = 2 if knobs.ahead else 1, 2 if knobs.in_turn else 1
    step = max(gemm, load + store / steps, (gemm + load + ROUND_TRIP_CYCLES) / copies)
    turn = (steps * gemm + alu + store + ROUND_TRIP_CYCLES) / banks
    # Only the last pass of the ALU runs beside the next tile.
    issue = steps * gemm + alu - vectors
    return load_first + tiles * max(steps * step, turn, issue) + alu + store


def estimated(c: Conv2dSizes, config: Config, knobs: Conv2dKnobs) -> Estimate:
    """All tiles of a schedule through the model of the machine."""
    return _Tiles(c, config, knobs).estimate()


class _Tile(NamedTuple):
    """A tile of the output: the numbers of its weights and of its image, and its sizes."""

    block: int
    image: int
    outputs: int
    rows: int
    columns: int

    @property
    def nest(self) -> tuple[int, int, int]:
        """Tiles of different sizes are computed in loop nests of their own."""
        return self[2:]


class _Tiles:
    """The tiles of a convolution, in the order of its schedule."""

    def __init__(self, c: Conv2dSizes, config: Config, knobs: Conv2dKnobs) -> None:
        self.c, self.config, self.knobs = c, config, knobs
        self.pipeline = Pipeline(config)
        self.image = TakingTurns(self.pipeline, knobs.copies_of_image(c))
        self.weights = TakingTurns(self.pipeline, knobs.copies_of_weights(c))
        self.tiles = self._in_order()
        self.steps = list(product(cut(c.inputs, knobs.inputs), cut(c.kernel[0], knobs.kernel_rows)))

    def estimate(self) -> Estimate:
        c, knobs, pipeline = self.c, self.knobs, self.pipeline
        behind_alu = self._behind_alu()
        micro_ops, reloads = self._micro_ops()
        pipeline.load_for_compute(micro_ops)
        if knobs.in_turn:
            self._load_constants(c.outputs)
        banks = 2 if knobs.in_turn else 1
        stores: list[Task] = []
        alu: Task | None = None
        before: _Tile | None = None
        for tile in self.tiles:
            vectors = tile.outputs * tile.rows * tile.columns
            free = stores[-banks] if len(stores) >= banks else None
            waits: list[Task | None] = [free, alu if tile.nest in behind_alu else None]
            if knobs.resets(c, self.config):
                waits = [pipeline.reset(vectors, waits)]
            gemm: Task | None = None
            for inputs, kernel_rows in self.steps:
                self._load(tile, before, inputs, kernel_rows)
                before = tile
                if reloads:
                    pipeline.load_for_compute(micro_ops)
                products = vectors * inputs * kernel_rows * c.kernel[1]
                gemm = pipeline.gemm(products, [*waits, self.image.loaded, self.weights.loaded])
                self.image.use(gemm)
                self.weights.use(gemm)
                waits = []
            if not knobs.in_turn:
                self._load_constants(tile.outputs)
            alu = pipeline.alu(vectors, [gemm], c.requantize.operations)
            stores.append(self._store(tile, alu))
        return pipeline.estimate()

    def _in_order(self) -> list[_Tile]:
        c, knobs = self.c, self.knobs
        rows, columns = cut(c.output_height, knobs.rows), cut(c.output_width, knobs.columns)
        images = list(enumerate(list(product(rows, columns)) * c.batch))
        blocks = list(enumerate(cut(c.outputs, knobs.outputs)))
        if knobs.weights_outside:
            pairs = [(block, image) for block in blocks for image in images]
        else:
            pairs = [(block, image) for image in images for block in blocks]
        return [_Tile(block, image, outputs, *sizes) for (block, outputs), (image, sizes) in pairs]

    def _behind_alu(self) -> set[tuple[int, int, int]]:
        """The nests whose products wait for the ALU: those that do not always accumulate in the
        bank that it is not at. Each nest takes the two banks in turn."""
        turns: Counter[tuple[int, int, int]] = Counter()
        found = set()
        before = None
        for tile in self.tiles:
            bank = turns[tile.nest] % 2 if self.knobs.in_turn else 0
            turns[tile.nest] += 1
            if bank == before:
                found.add(tile.nest)
            before = bank
        return found

    def _micro_ops(self) -> tuple[int, bool]:
        """Bytes of all micro-ops, and whether they are too many to stay; then those of one GEMM.

        Two loops become those of the instruction, the others micro-ops; and each combination of
        copies of the buffers has micro-ops of its own.
        """
        c, knobs, config = self.c, self.knobs, self.config
        loops = [knobs.outputs, knobs.rows, knobs.columns, knobs.inputs, knobs.kernel_rows]
        loops = sorted([*loops, c.kernel[1]])
        copies = lcm(2 if knobs.in_turn else 1, knobs.copies_of_image(c))
        copies = min(copies * knobs.copies_of_weights(c), len(self.tiles) * len(self.steps))
        nests = len({tile.nest for tile in self.tiles})
        one = prod(loops[:-2])
        if one * copies * nests <= config.uop.depth:
            return one * copies * nests * config.uop.element_bytes, False
        return one * config.uop.element_bytes, True

    def _load_constants(self, outputs: int) -> None:
        elements = outputs * self.c.requantize.constants
        self.pipeline.load_for_compute(elements * self.config.acc.element_bytes)

    def _load(self, tile: _Tile, before: _Tile | None, inputs: int, kernel_rows: int) -> None:
        """What a step needs and the one before it, of the tile ``before``, did not."""
        stays, outside = self.knobs.is_whole(self.c), self.knobs.weights_outside
        same_block = before is not None and before.block == tile.block
        same_image = before is not None and before.image == tile.image
        if stays and outside:
            if not same_block:
                self._load_weights(tile, inputs, kernel_rows)
            self._load_image(tile, inputs, kernel_rows)
        else:
            if not (stays and same_image):
                self._load_image(tile, inputs, kernel_rows)
            self._load_weights(tile, inputs, kernel_rows)

    def _load_image(self, tile: _Tile, inputs: int, kernel_rows: int) -> None:
        c = self.c
        rows = min(c.input_rows(tile.rows, kernel_rows), c.height)
        columns = min(c.input_columns(tile.columns), c.width)
        if columns == c.width and c.row_step == 1 and not any(c.pads):
            rows, columns = 1, rows * columns
        nest = tile.nest if self.knobs.weights_outside else tile.nest[1:]
        self.image.load(inputs * rows, columns * self.config.inp.element_bytes, nest)

    def _load_weights(self, tile: _Tile, inputs: int, kernel_rows: int) -> None:
        rows, row = tile.outputs * inputs, kernel_rows * self.c.kernel[1]
        if kernel_rows == self.c.kernel[0]:
            rows, row = tile.outputs, inputs * row
            if inputs == self.c.inputs:
                rows, row = 1, tile.outputs * row
        within = self.knobs.weights_outside and self.knobs.is_whole(self.c)
        nest = tile.nest[:1] if within else tile.nest
        self.weights.load(rows, row * self.config.wgt.element_bytes, nest)

    def _store(self, tile: _Tile, after: Task) -> Task:
        rows, columns = tile.rows, tile.columns
        if columns == self.c.output_width:
            rows, columns = 1, rows * columns
        rows, row = tile.outputs * rows, columns * self.config.out.element_bytes
        return self.pipeline.store(rows, row, [after])
