"""Lower chains of operators that only move elements, by their index map, to one layer or two.

If every element keeps its position within its tile, LOADs gather tiles. Otherwise GEMM selects
channels with weights of 0 and 1, before or after the tiles are gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from amaranth_vta.sw.compiler.build import Function
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
)
from amaranth_vta.sw.runtime.network.tile_layout import Array, Image, offset, tiles
from amaranth_vta.sw.runtime.network.tiled_tensor import Bytes, TiledTensor

from .channel_selection import require_selection, selection
from .stored_factors import is_second_factor
from .support.layer import Layer, Unsupported
from .support.tensors import Range, Tensors
from .support.tile_maps import TileMap, gathered

FindFunction = Callable[[], Function]
# Operators that enlarge tensors run on the machine even if the host writes their operands.
_GROWING = frozenset({"Concat", "Pad", "Resize"})
# Size limit of the intermediate tensor, relative to the sources and the result together.
_LARGEST_INTERMEDIATE = 2


def rearrangement(node: Node, tensors: Tensors) -> Layer:
    """The layer of ``node``, which only moves elements, fused with all movers before it that have
    no other readers; if that fails, of ``node`` alone. Raises `Unsupported`."""
    tensors.require_bytes(node.inputs[0], node.outputs[0])
    if not is_mover(tensors.network, node):
        raise Unsupported("where it moves elements is known only at run time")
    nodes = movers_before(tensors.network, node, tensors.fused)
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
    reasons: list[Unsupported] = []
    for out in _images(tensors, found):
        try:
            return _Rearranged(found, out, tensors).layer()
        except Unsupported as problem:
            reasons.append(problem)
    raise reasons[0]


def _images(tensors: Tensors, found: IndexMap) -> list[Image]:
    """The shapes in which the machine can hold the result of a map, in order of preference. Raises
    `Unsupported`."""
    name = found.result
    shape = tensors.network.types[name].shape or ()
    if len(shape) == 4:
        image, rows = tensors.image(name), tensors.rows(name)
        return [rows, image] if _in_rows(tensors, name) else [image]
    if len(shape) == 3:
        image, rows = (shape[0], shape[1], 1, shape[2]), tensors.rows(name)
        # Whole rows, such as a step of a recurrent layer, remain rows.
        return [rows, image] if _from_rows(tensors, found, rows) else [image, rows]
    if len(shape) == 2:
        return [tensors.rows(name)]
    raise Unsupported(f"its result has {len(shape)} dimensions, and the machine holds two to four")


def _in_rows(tensors: Tensors, name: str) -> bool:
    """Whether a layer reads a tensor of images as rows: as second factor of a product, or as a
    variable in the next run."""
    network = tensors.network
    held = [tensors.images.get(item.source) for item in network.states if item.result == name]
    return tensors.rows(name) in held or is_second_factor(network, name)


def _from_rows(tensors: Tensors, found: IndexMap, rows: Image) -> bool:
    """Whether all sources are held as rows of the same length."""
    held = (tensors.images.get(tensors.root(source)) for source in found.sources)
    return all(image is not None and image[1:] == rows[1:] for image in held)


def _unravelled(numbers: Array, image: Image) -> Array:
    """Image, channel, row and column of the elements of ``image`` with the indices ``numbers``."""
    places = np.empty((4, *numbers.shape), np.int32)
    for axis in (3, 2, 1):
        numbers, places[axis] = np.divmod(numbers, image[axis])
    places[0] = numbers
    return places


class _Rearranged:
    """Builds the layer of the index map ``found``, whose result the machine holds as ``out``."""

    def __init__(self, found: IndexMap, out: Image, tensors: Tensors) -> None:
        self.found, self.out, self.tensors = found, out, tensors
        self.node = found.nodes[-1]
        self.images = [self._image(name) for name in found.sources]
        self.source = self.found.source.reshape(self.out)
        numbers = self.found.numbers.reshape(self.out)
        # Source image, channel, row and column of each element of the result.
        self.places = self._of_sources(lambda image: _unravelled(numbers, image))
        fills = self.found.constants
        if fills.size and fills.min() != fills.max():
            raise Unsupported("it fills in several constants")
        dtype = tensors.network.types[self.found.result].dtype
        self.fill = int(fills[0]) - offset(dtype) if fills.size else 0
        tensors.require_padding(self.fill, f"the value {self.fill}")
        self.whole = not fills.size

    def _of_sources(self, values: Callable[[Image], Array]) -> Array:
        """For each element, the item of ``values`` for its source, given the source's shape."""
        result, *others = map(values, self.images)
        for number, other in enumerate(others, 1):
            result = np.where(self.source == number, other, result)
        return result

    def _image(self, name: str) -> Image:
        """The shape in which the machine holds a source, or can if the host writes it."""
        root, shape = self.tensors.root(name), self.tensors.network.types[name].shape or ()
        if root not in self.tensors.images and len(shape) == 3 and self.out[2] == 1 < self.out[3]:
            return shape[0], shape[1], 1, shape[2]
        if root not in self.tensors.images and self.out == self.tensors.rows(self.found.result):
            return self.tensors.rows(name)
        return self.tensors.any_image(name)

    def layer(self) -> Layer:
        block, batch = self.tensors.config.block_out, self.tensors.config.batch
        if batch > 1 and not self._keeps_images():
            raise Unsupported(f"tiles hold {batch} images or rows, whose order it changes")
        lanes = np.arange(self.out[1])[:, None, None] % block
        moved = (self.source >= 0) & (self.places[1] % block != lanes)
        if not moved.any() and (direct := self._of_tiles(self.source, self._tiles())) is not None:
            return self._gathering(direct)
        require_selection(self.tensors)
        channels = self._channels()
        if channels is not None and self._keeps_images():
            return self._selecting_last(channels)
        return self._selecting_first()

    def _channels(self) -> Array | None:
        """The source channel of each channel of the result, 0 for constant channels; None if a
        channel has several source channels."""
        there = np.moveaxis(self.source >= 0, 1, 0).reshape(self.out[1], -1)
        found = []
        for values in (self.source, self.places[1]):
            of_channels = np.moveaxis(values, 1, 0).reshape(there.shape)
            first = np.take_along_axis(of_channels, there.argmax(axis=1)[:, None], axis=1)
            if not ((of_channels == first) | ~there).all():
                return None
            found.append(np.where(there.any(axis=1), first[:, 0], 0))
        return found[1]

    def _keeps_images(self) -> bool:
        numbers = np.arange(self.out[0])[:, None, None, None]
        return bool(((self.source < 0) | (self.places[0] == numbers)).all())

    def _tiles(self) -> Array:
        """The index of the source tile of each element of the result."""
        config, (n, c, h, w) = self.tensors.config, self.places

        def number(image: Image) -> Array:
            tile = n // config.batch * tiles(image[1], config.block_out) + c // config.block_out
            return (tile * image[2] + h) * image[3] + w

        return self._of_sources(number)

    def _of_tiles(self, source: Array, numbers: Array) -> TileMap | None:
        """Reduce a map of elements, given by their source tiles, to a map of tiles; None if a tile
        of the result mixes elements of several source tiles."""
        config, (n, c, _, _) = self.tensors.config, self.out
        block = config.block_out
        # Padding lanes follow the first lane of their tile.
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
        return min([*lows, *also]), max([*highs, *also])

    def _sizes(self, image: Image) -> int:
        config = self.tensors.config
        return tiles(image[0], config.batch) * tiles(image[1], config.block_out) * prod(image[2:])

    def _gathering(self, moved: TileMap) -> Layer:
        """The layer that gathers tiles."""
        layer = self._layer(self._sources(), self._gather_function(moved), {}, self._result())
        if (moved.source < 0).any():
            return layer
        return replace(layer, runs=moved.runs(self.tensors.config.out.element_bytes))

    def _gather_function(self, moved: TileMap) -> FindFunction:
        workload = gathered(moved, tuple(map(self._sizes, self.images)), self.fill)
        return self.tensors.function(gather_tiles, workload, self.node)

    def _selecting_last(self, channels: Array) -> Layer:
        """Gather tiles, then select channels: each channel of the result has one source channel, in
        ``channels``, and its pixels may move. SpaceToDepth is such a map."""
        tensors, block, (n, c, h, w) = self.tensors, self.tensors.config.block_out, self.out
        source = self.source[:: tensors.config.batch]
        numbers = np.where(source < 0, -1, self._tiles()[:: tensors.config.batch])
        # Channels whose pixels all come from the same tiles share an intermediate tile. Constant
        # channels come last.
        keys = [(source[:, at].tobytes(), numbers[:, at].tobytes()) for at in range(c)]
        firsts = [keys.index(key) for key in dict.fromkeys(keys)]
        firsts.sort(key=lambda at: not (source[:, at] >= 0).any())
        planes = {keys[at]: number for number, at in enumerate(firsts)}
        lanes = (channels % block).tolist()
        chosen = [planes[key] * block + lane for key, lane in zip(keys, lanes, strict=True)]
        between = self._between("gathered", (n, len(planes) * block, h, w))
        function = self._gather_function(TileMap(source[:, firsts], numbers[:, firsts]))
        first = self._layer(self._sources(), function, {}, between)
        return self._selecting(between, chosen, self._result(), first)

    def _selecting_first(self) -> Layer:
        """Select channels, then gather tiles: all elements of a tile have the same source pixel,
        but any channels. DepthToSpace is such a map."""
        tensors, block, (n, c, h, w) = self.tensors, self.tensors.config.block_out, self.out
        if len(self.images) > 1 or tensors.config.batch > 1:
            raise Unsupported("elements of several tensors would change their places within tiles")
        if not self.whole:
            raise Unsupported("it fills constants into tiles of several pixels and channels")
        images, _, rows, columns = self.places
        first, own = np.arange(tiles(c, block)) * block, np.arange(c) // block * block
        for place in (images, rows, columns):
            if not (place == place[:, own]).all():
                raise Unsupported(
                    "a tile of its result has elements of several pixels and channels"
                )
        padded = np.full((n, len(first) * block, h, w), -1)
        padded[:, :c] = self.places[1]
        vectors = np.moveaxis(padded.reshape(n, len(first), block, h, w), 2, -1)
        kinds, which = np.unique(vectors.reshape(-1, block), axis=0, return_inverse=True)
        image = self.images[0]
        between = self._between("selected", (image[0], len(kinds) * block, *image[2:]))
        at = (images[:, first], which.reshape(n, -1, h, w), rows[:, first], columns[:, first])
        numbers = np.ravel_multi_index(at, (image[0], len(kinds), *image[2:]))
        # Padding lanes may have any value.
        chosen = np.maximum(kinds, 0).reshape(-1).tolist()
        selected = self._selecting(self._sources()[0], chosen, between)
        moved = TileMap(np.zeros_like(numbers), numbers)
        function = tensors.function(
            gather_tiles, gathered(moved, (self._sizes(between.image),), 0), self.node
        )
        return self._layer([between], function, {}, self._result(), selected)

    def _selecting(
        self, source: TiledTensor, chosen: list[int], result: TiledTensor, *first: Layer
    ) -> Layer:
        """The layer that selects the channels ``chosen`` of ``source``."""
        tensors, config, (n, c, h, w) = self.tensors, self.tensors.config, source.image
        workload = SelectChannels(tiles(n, config.batch), (c,), h * w, tuple(chosen))
        function, weights = selection(workload, self.node, tensors)
        layer = self._layer([source], function, weights, result, *first)
        if layer.nodes:
            tensors.products[result.tensor] = layer, select_channels, workload
        return layer

    def _sources(self) -> list[TiledTensor]:
        return [
            self.tensors.source(name, image)
            for name, image in zip(self.found.sources, self.images, strict=True)
        ]

    def _result(self) -> TiledTensor:
        return TiledTensor(self.found.result, self.out, self.tensors.output_layout)

    def _between(self, what: str, image: Image) -> TiledTensor:
        """The intermediate tensor. Raises `Unsupported` if it is too large."""
        moved, least = self._sizes(image), sum(map(self._sizes, [*self.images, self.out]))
        if moved > _LARGEST_INTERMEDIATE * least:
            raise Unsupported(
                f"selecting channels would make {moved:,} tiles, more than twice as many as its "
                f"sources and its result have, {least:,}"
            )
        name = self.tensors.network.unused_name(f"{self.found.result}_{what}")
        return TiledTensor(name, image, self.tensors.output_layout)

    def _layer(
        self,
        sources: list[TiledTensor],
        function: FindFunction,
        constants: dict[str, Bytes],
        result: TiledTensor,
        *first: Layer,
    ) -> Layer:
        """The layer that produces ``result``, the final or the intermediate tensor."""
        is_last = result.tensor == self.found.result
        if is_last:
            self.tensors.set_range(result.tensor, *self._range())
            for name, image in zip(self.found.sources, self.images, strict=True):
                self.tensors.held(name, image)
        return Layer(
            name=self.node.name if is_last else f"{self.node.name}, first step",
            operator=self.node.operator,
            nodes=self.found.nodes if is_last else (),
            sources=tuple(sources),
            result=result,
            find_function=function,
            constants=constants,
            macs=0,
            first=first,
        )
