"""Any operators that only move elements, together one layer, or two.

Their index map tells which machine operators do the same. Where elements keep their places within
tiles, LOADs gather tiles. Where they do not, a product with weights of 0 and 1 selects channels,
behind or in front of tiles that are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.graph.index_maps import (
    IndexMap,
    NoIndexMap,
    index_map,
    is_mover,
    movers_before,
)
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.gather_tiles import gather_tiles
from amaranth_vta.sw.compiler.operators.select_channels import (
    SelectChannels,
    select_channels,
    selection_weights,
)
from amaranth_vta.sw.runtime.network.tile_layout import Array, Image, offset, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor
from amaranth_vta.sw.runtime.scalars import pack

from .parts.layer import Layer, Unsupported
from .parts.tensors import Range, Tensors
from .parts.tile_maps import TileMap, gathered
from .selecting import require_selection

# Operators whose operands the host may write, since their results have at least as many bytes.
_GROWING = frozenset({"Concat", "Pad", "Resize"})
# The most tiles that are moved on the way, per tile of the sources and of the result.
_MOST_MOVED = 2


def rearrangement(node: Node, tensors: Tensors) -> Layer:
    """The layer of ``node``, an operator that moves elements, with such operators before it whose
    results only it reads; otherwise of ``node`` alone. Raises `Unsupported`."""
    if not is_mover(tensors.network, node):
        raise Unsupported("where it moves elements is known only at run time")
    nodes = movers_before(tensors.network, node)
    try:
        return _layer(nodes, tensors)
    except Unsupported as reason:
        if len(nodes) == 1:
            raise
        try:
            return _layer((node,), tensors)
        except Unsupported:
            raise reason from None


def _layer(nodes: tuple[Node, ...], tensors: Tensors) -> Layer:
    try:
        found = index_map(tensors.network, nodes)
    except NoIndexMap as reason:
        raise Unsupported(str(reason)) from None
    tensors.require_bytes(*found.sources, found.result)
    if nodes[-1].operator not in _GROWING:
        for name in found.sources:
            if tensors.root(name) not in tensors.results:
                raise Unsupported("it follows an operator on the host")
    reason: Unsupported | None = None
    for out in _images(tensors, found.result):
        try:
            return _Rearranged(found, out, tensors).layer()
        except Unsupported as problem:
            reason = reason or problem
    raise reason or Unsupported("its result is no image, sequence or matrix")


def _images(tensors: Tensors, name: str) -> list[Image]:
    """The shapes in which the machine may hold a tensor, the usual one first."""
    shape = tensors.network.types[name].shape or ()
    if len(shape) == 4:
        return [tensors.image(name)]
    if len(shape) == 3:
        return [(shape[0], shape[1], 1, shape[2]), tensors.rows(name)]
    return [tensors.rows(name)] if len(shape) == 2 else []


@dataclass
class _Rearranged:
    """The layer of an index map ``found`` whose result is an image of shape ``out``."""

    found: IndexMap
    out: Image
    tensors: Tensors

    def __post_init__(self) -> None:
        names, tensors = self.found.sources, self.tensors
        self.images = [self._image(name) for name in names]
        self.source = self.found.source.reshape(self.out)
        numbers = self.found.numbers.reshape(self.out)
        # The image, channel, row and column that each element of the result comes from.
        self.places = np.zeros((4, *self.out), np.int64)
        for number, image in enumerate(self.images):
            here = self.source == number
            self.places[:, here] = np.unravel_index(numbers[here], image)
        fills = np.unique(self.found.constants[self.found.source < 0])
        if len(fills) > 1:
            raise Unsupported("it fills in several constants")
        dtype = tensors.network.types[self.found.result].dtype
        self.fill = int(fills[0]) - offset(dtype) if len(fills) else 0
        tensors.require_padding(self.fill, f"the value {self.fill}")
        self.whole = not len(fills)

    def _image(self, name: str) -> Image:
        """The shape in which the machine holds a source, or will when the host writes it."""
        root, shape = self.tensors.root(name), self.tensors.network.types[name].shape or ()
        if root in self.tensors.images:
            return self.tensors.images[root]
        if len(shape) == 3 and self.out[2] == 1 < self.out[3]:
            return self.tensors.held(name, (shape[0], shape[1], 1, shape[2]))
        return self.tensors.held(name, self.tensors.any_image(name))

    def layer(self) -> Layer:
        block, batch = self.tensors.config.block_out, self.tensors.config.batch
        if batch > 1 and not self._keeps_images():
            raise Unsupported(f"tiles hold {batch} images or rows, whose order it changes")
        lanes = np.arange(self.out[1])[:, None, None] % block
        moved = (self.source >= 0) & (self.places[1] % block != lanes)
        if not moved.any() and (direct := self._of_tiles(self.source, self._tiles())) is not None:
            return self._gathering(direct)
        require_selection(self.tensors)
        if not self.whole:
            raise Unsupported("it fills in constants, and elements change their places within tiles")
        if self._keeps_images():
            steady = self.places[1] == self.places[1][:1, :, :1, :1]
            if steady.all() and (self.source == self.source[:1, :, :1, :1]).all():
                return self._selecting_last()
        return self._selecting_first()

    def _keeps_images(self) -> bool:
        numbers = np.arange(self.out[0])[:, None, None, None]
        return bool(((self.source < 0) | (self.places[0] == numbers)).all())

    def _tiles(self) -> Array:
        """The number of the tile, of its source, that each element comes from."""
        config = self.tensors.config
        n, c, h, w = self.places
        result = np.zeros_like(n)
        for number, image in enumerate(self.images):
            counts = (tiles(image[0], config.batch), tiles(image[1], config.block_out), *image[2:])
            at = (n // config.batch, c // config.block_out, h, w)
            here = self.source == number
            result[here] = np.ravel_multi_index(tuple(item[here] for item in at), counts)
        return result

    def _of_tiles(self, source: Array, numbers: Array) -> TileMap | None:
        """The map of tiles of which elements have these numbers; None if a tile has elements of
        several."""
        config, (n, c, h, w) = self.tensors.config, self.out
        block = config.block_out
        # An element that does not exist is that of the first channel of its tile.
        first = np.arange(tiles(c, block)) * block
        own = np.arange(c) // block * block
        same = (source == source[:, own]) & ((numbers == numbers[:, own]) | (source < 0))
        images = np.arange(n) // config.batch * config.batch
        same &= (source == source[images]) & ((numbers == numbers[images]) | (source < 0))
        if not same.all():
            return None
        return TileMap(source[:: config.batch, first], numbers[:: config.batch, first])

    def _range(self) -> Range:
        lows, highs = zip(*map(self.tensors.range, self.found.sources), strict=True)
        also = () if self.whole else (self.fill,)
        return min(*lows, *lows, *also), max(*highs, *highs, *also)

    def _sizes(self, image: Image) -> int:
        config = self.tensors.config
        return tiles(image[0], config.batch) * tiles(image[1], config.block_out) * prod(image[2:])

    def _gathering(self, moved: TileMap) -> Layer:
        """The layer that gathers tiles."""
        tensors = self.tensors
        workload = gathered(moved, tuple(map(self._sizes, self.images)), self.fill)
        function = tensors.function(gather_tiles, workload, self.found.nodes[-1])
        sources = map(tensors.source, self.found.sources, self.images)
        return self._named(sources, function, {}, self.out)

    def _named(self, sources, function, constants, out, first=()) -> Layer:  # type: ignore[no-untyped-def]
        last = self.found.nodes[-1]
        layer = self.tensors.layer(
            self.found.nodes, sources, out, function, constants, self._range()
        )
        return replace(layer, name=last.name, operator=last.operator, first=tuple(first))

    # Each channel of the result is one channel: tiles are gathered, and channels of these selected.

    def _selecting_last(self) -> Layer:
        tensors, block, (n, c, h, w) = self.tensors, self.tensors.config.block_out, self.out
        numbers = self._tiles()[:: tensors.config.batch]
        # Tiles of channels that several channels of the result come from at each pixel.
        keys = [(int(self.source[0, at, 0, 0]), numbers[:, at].tobytes()) for at in range(c)]
        planes = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        firsts = [keys.index(key) for key in planes]
        lanes = self.places[1][0, :, 0, 0] % block
        chosen = tuple(planes[key] * block + int(lane) for key, lane in zip(keys, lanes, strict=True))
        between = (n, len(planes) * block, h, w)
        source = self.source[:: tensors.config.batch]
        first = self._gathered_between(TileMap(source[:, firsts], numbers[:, firsts]), between)
        return self._selection([first.result], [between], chosen, self.out, [first])

    # Channels are selected, and tiles of these gathered.

    def _selecting_first(self) -> Layer:
        tensors, block, (n, c, h, w) = self.tensors, self.tensors.config.block_out, self.out
        if len(self.images) > 1 or tensors.config.batch > 1:
            raise Unsupported("elements of several tensors would change their places within tiles")
        image, images = self.images[0], self.places[0]
        count = tiles(c, block)
        padded = -np.ones((n, count * block, h, w), np.int64)
        padded[:, :c] = self.places[1]
        vectors = padded.reshape(n, count, block, h, w).transpose(0, 1, 3, 4, 2)
        kinds, which = np.unique(vectors.reshape(-1, block), axis=0, return_inverse=True)
        between = (image[0], len(kinds) * block, *image[2:])
        self._require_few(between)
        shape = (image[0], len(kinds), *image[2:])
        first = np.arange(count) * block
        own = np.arange(c) // block * block
        for axis in (0, 2, 3):
            if not (self.places[axis] == self.places[axis][:, own]).all():
                raise Unsupported("a tile of its result has elements of several pixels and channels")
        at = (images[:, first], which.reshape(n, count, h, w), *self.places[2:, :, first])
        numbers = np.ravel_multi_index(at, shape)
        chosen = tuple(max(int(channel), 0) for channel in kinds.reshape(-1))
        name = self._unused("selected")
        selected = self._selection(
            [tensors.source(self.found.sources[0], image)], [image], chosen, between, [], name
        )
        workload = gathered(TileMap(np.zeros_like(numbers), numbers), (prod(shape),), 0)
        function = tensors.function(gather_tiles, workload, self.found.nodes[-1])
        return self._named([selected.result], function, {}, self.out, [selected])

    def _selection(  # type: ignore[no-untyped-def]
        self, sources, images, chosen, out, first, name=""
    ) -> Layer:
        tensors, config = self.tensors, self.tensors.config
        counts = tuple(image[1] for image in images)
        workload = SelectChannels(tiles(out[0], config.batch), counts, prod(out[2:]), chosen)
        function = tensors.function(select_channels, workload, self.found.nodes[-1])
        weights = {"places": pack(selection_weights(workload, config), tensors.env.wgt_dtype)}
        if name:
            return self._between(sources, function, weights, out, name)
        layer = self._named(sources, function, weights, out, first)
        tensors.products[layer.result.tensor] = layer, select_channels, workload
        return layer

    def _gathered_between(self, moved: TileMap, between: Image) -> Layer:
        tensors = self.tensors
        self._require_few(between)
        workload = gathered(moved, tuple(map(self._sizes, self.images)), self.fill)
        function = tensors.function(gather_tiles, workload, self.found.nodes[-1])
        sources = map(tensors.source, self.found.sources, self.images)
        return self._between(sources, function, {}, between, self._unused("gathered"))

    def _between(self, sources, function, constants, image, name) -> Layer:  # type: ignore[no-untyped-def]
        """A layer whose result only the next one reads."""
        last = self.found.nodes[-1]
        return Layer(
            name=f"{last.name} {name.rsplit('_', 1)[-1]}",
            operator=last.operator,
            nodes=(),
            sources=tuple(sources),
            result=TiledTensor(name, image, self.tensors.output_layout),
            find_function=function,
            constants=constants,
            macs=0,
        )

    def _unused(self, what: str) -> str:
        return self.tensors.network.unused_name(f"{self.found.result}_{what}")

    def _require_few(self, between: Image) -> None:
        moved, least = self._sizes(between), sum(map(self._sizes, [*self.images, self.out]))
        if moved > _MOST_MOVED * least:
            raise Unsupported(
                f"channels change their places within tiles in {moved:,} tiles, and its tensors "
                f"have {least:,}"
            )
