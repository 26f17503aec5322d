"""How the readers of a network's images read them, given the order of each image's channels."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.graph.layers.support.layer import least_run
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.runtime.network.tile_layout import tiles

from .kinds import ChannelUse, channels, kind_of, moved_channels
from .orders import Order, Readers, chosen_order

# Cycles per vector: to select channels within tiles, and for an element-wise operator.
_SELECTION, _ELEMENTWISE = 5, 2
# A tile of a stored image, by its number.
Tile = tuple[str, int]


class Images:
    """The images of ``network`` and their readers. ``kinds`` are by node name, ``sources`` the
    stored channels of each image; images that MOVEs make are not stored. ``pinned`` need their
    channels in the network's order.
    """

    def __init__(self, network: Network, config: Config) -> None:
        self.network, self.config, self.block = network, config, config.block_out
        self.nodes = list(network.nodes)
        self.kinds = {node.name: kind_of(node, network) for node in self.nodes}
        self.sources: dict[str, list[tuple[str, int]]] = {}
        self.pinned = set(network.outputs)
        # The readers of each channel, direct or through operators on lanes and MOVEs.
        self._readers: dict[str, list[Readers]] = {}
        # A union-find forest of images whose orders depend on each other.
        self._group: dict[str, str] = {}
        for node in self.nodes:
            self._note(node)
        for number in reversed(range(len(self.nodes))):
            self._note_readers(number)

    def _note(self, node: Node) -> None:
        kind = self.kinds[node.name]
        if kind is ChannelUse.MOVE:
            moved = moved_channels(node, self.network)
            self.sources[node.outputs[0]] = [self.stored(name)[at] for name, at in moved]
        if kind in (ChannelUse.MOVE, ChannelUse.LANES):
            for name in node.inputs:
                if name in self.network.constants or not name:
                    continue
                self._group[self.group(name)] = self.group(node.outputs[0])

    def _note_readers(self, number: int) -> None:
        node = self.nodes[number]
        kind, result = self.kinds[node.name], node.outputs[0] if node.outputs else ""
        if kind is ChannelUse.OTHER or (kind is ChannelUse.LANES and result in self.pinned):
            self.pinned.update(node.reads)
        own = frozenset({number})
        if kind is ChannelUse.MOVE:
            of_result = self.readers(result)
            for (name, at), more in zip(moved_channels(node, self.network), of_result, strict=True):
                self.readers(name)[at] |= more
        elif kind is ChannelUse.LANES:
            found, beyond = self.readers(node.inputs[0]), self.readers(result)
            found[:] = [have | own | more for have, more in zip(found, beyond, strict=True)]
        elif kind is ChannelUse.SUM:
            found = self.readers(node.inputs[0])
            found[:] = [have | own for have in found]

    def stored(self, name: str) -> list[tuple[str, int]]:
        """The channels of an image: a stored image and the index of its channel."""
        if name not in self.sources:
            return [(name, at) for at in range(channels(name, self.network))]
        return self.sources[name]

    def readers(self, name: str) -> list[Readers]:
        """The numbers of the readers of each channel of an image."""
        if name not in self._readers:
            self._readers[name] = [frozenset()] * channels(name, self.network)
        return self._readers[name]

    def group(self, name: str) -> str:
        while name in self._group and self._group[name] != name:
            name = self._group[name]
        return name

    def pixels(self, name: str) -> int:
        return prod((self.network.types[name].shape or ())[2:])

    def arrangeable(self) -> list[str]:
        """The groups with an image that a MOVE makes, and with tiles that are large enough to be
        read one at a time."""
        config = self.config
        small = {
            self.group(name)
            for name in self.sources
            if self.pixels(name) * config.out.element_bytes < least_run(config)
        }
        groups = dict.fromkeys(self.group(name) for name in self.sources)
        return [group for group in groups if group not in small]

    def cycles(self, node: Node) -> float:
        """Cycles of ``node`` per tile that it reads, and, for a SUM, per tile of its result."""
        pixels = self.pixels(node.outputs[0])
        if node.operator != "QLinearConv":
            return _ELEMENTWISE * pixels
        return pixels * prod(self.network.constants[node.inputs[3]].shape[2:])


@dataclass(frozen=True)
class Reading:
    """The ``tiles`` of stored images that hold all channels of an image, and the ``order`` of its
    channels in them.
    """

    tiles: tuple[Tile, ...]
    order: Order


class Readings:
    """Orders of all images, in which the images of the groups ``arranged`` are arranged for their
    readers, and the cycles that they cost.
    """

    def __init__(self, images: Images, arranged: frozenset[str]) -> None:
        self.images, self.arranged = images, arranged
        self.orders: dict[str, Order] = {}
        self._readings: dict[str, Reading | None] = {}
        self.cycles = 0.0
        for node in images.nodes:
            kind = images.kinds[node.name]
            if kind is ChannelUse.SUM and self._is_free(node.outputs[0]):
                self.orders[node.outputs[0]] = self._chosen(node)
            elif kind is ChannelUse.LANES and self._is_free(node.outputs[0]):
                self.orders[node.outputs[0]] = self.reading_order(node.inputs[0])
        for node in images.nodes:
            self.cycles += self._cycles(node)
        self.cycles += sum(
            _SELECTION * self._tiles(name) * self.images.pixels(name) for name in self.selected()
        )

    def _is_free(self, name: str) -> bool:
        return name not in self.images.pinned and self.images.group(name) in self.arranged

    def order(self, name: str) -> Order:
        """The order of a stored image's channels."""
        return self.orders.get(name) or Order.own(channels(name, self.images.network))

    def reading_order(self, name: str) -> Order:
        """The order in which readers find the channels of an image."""
        found = self.reading(name)
        return Order.own(channels(name, self.images.network)) if found is None else found.order

    def selected(self) -> list[str]:
        """The images that MOVEs make and that readers need in the network's order."""
        network, kinds = self.images.network, self.images.kinds
        return [
            name
            for name in self.images.sources
            if self.reading(name) is None
            and (
                name in network.outputs
                or any(
                    kinds[reader.name] is not ChannelUse.MOVE
                    for reader in network.nodes.readers(name)
                )
            )
        ]

    def reading(self, name: str) -> Reading | None:
        """How readers of an image read it; None if channels have to be selected first."""
        if name not in self._readings:
            self._readings[name] = self._read(name)
        return self._readings[name]

    def _read(self, name: str) -> Reading | None:
        images, block = self.images, self.images.block
        if name not in images.sources:
            order = self.order(name)
            return Reading(tuple((name, at) for at in range(tiles(order.count, block))), order)
        if images.group(name) not in self.arranged:
            return self._aligned(name)
        if name in images.pinned:
            return None
        places = [(source, self.order(source).places[at]) for source, at in images.sources[name]]
        if len(set(places)) < len(places):
            return None
        readers: dict[Tile, list[int]] = {}
        for (source, place), own in zip(places, images.readers(name), strict=True):
            readers.setdefault((source, place // block), sorted(own))
        partial = [tile for tile in readers if self._is_partial(tile)]
        if len(partial) > 1:
            return None
        # Tiles with the same readers side by side; a partial one last.
        ordered = sorted(readers, key=lambda tile: (tile in partial, readers[tile], *tile))
        numbers = {tile: number for number, tile in enumerate(ordered)}
        found = [
            numbers[source, place // block] * block + place % block for source, place in places
        ]
        count = len(ordered) * block
        if partial:
            count -= block - self.order(partial[0][0]).count % block
        return Reading(tuple(ordered), Order(tuple(found), count))

    def _aligned(self, name: str) -> Reading | None:
        """The reading of an image whose channels are in order in whole tiles of stored images."""
        block, places, found = self.images.block, self.images.sources[name], []
        for begin in range(0, len(places), block):
            source, first = places[begin]
            part = places[begin : begin + block]
            if first % block or part != [(source, first + lane) for lane in range(len(part))]:
                return None
            found.append((source, first // block))
        return Reading(tuple(found), Order.own(len(places)))

    def _is_partial(self, tile: Tile) -> bool:
        return (tile[1] + 1) * self.images.block > self.order(tile[0]).count

    def _chosen(self, node: Node) -> Order:
        """The order of the result of a SUM."""
        images, result = self.images, node.outputs[0]
        readers, block = images.readers(result), images.block
        read = {}
        for number in frozenset().union(*readers):
            reader = images.nodes[number]
            made = 1
            if images.kinds[reader.name] is ChannelUse.SUM:
                made = tiles(channels(reader.outputs[0], images.network), block)
            read[number] = made * images.cycles(reader)
        written = self._tiles(node.inputs[0]) * images.cycles(node)
        return chosen_order(readers, written, read, block)

    def _tiles(self, name: str) -> int:
        """Tiles in which readers find an image."""
        return tiles(self.reading_order(name).count, self.images.block)

    def _cycles(self, node: Node) -> float:
        """Estimated cycles of a SUM or of an operator on LANES."""
        kind = self.images.kinds[node.name]
        if kind not in (ChannelUse.SUM, ChannelUse.LANES):
            return 0.0
        read = self._tiles(node.inputs[0]) * self.images.cycles(node)
        return read * self._tiles(node.outputs[0]) if kind is ChannelUse.SUM else read


def best_readings(images: Images) -> Readings:
    """The readings in which each group of images is arranged that costs fewer cycles so."""
    own = Readings(images, frozenset())
    arranged = {
        group
        for group in images.arrangeable()
        if Readings(images, frozenset({group})).cycles < own.cycles
    }
    return Readings(images, frozenset(arranged)) if arranged else own
