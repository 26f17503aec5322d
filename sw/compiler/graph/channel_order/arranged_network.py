"""Arrange the channels of images in memory so that few have to be moved.

The order of an image's channels is free if all its readers have constant weights, which are
permuted along. Channels with the same readers share tiles, so that the results of Concat, Split,
Slice, Gather and channel shuffles are read as whole tiles of stored images. A reader has zero
weights for the other channels of such a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.graph.macs import macs
from amaranth_vta.sw.compiler.graph.network import Network
from amaranth_vta.sw.compiler.graph.nodes import Node
from amaranth_vta.sw.compiler.operators.building_blocks.identity import reads_what_it_stores

from .constants import with_inputs, with_outputs
from .kinds import ChannelUse, channels
from .orders import Order
from .readings import Images, Reading, Readings, Tile, best_readings


def with_arranged_channels(network: Network, config: Config) -> Network:
    """An equivalent network whose images have the orders of channels that cost the fewest cycles.
    Images with another order keep their name, and may have padding channels, which
    `Network.macs` leaves out. Inputs and outputs are as they were; ``network`` is not modified.
    """
    if not reads_what_it_stores(Environment(config)):
        return network
    images = Images(network, config)
    readings = best_readings(images) if images.sources else None
    if readings is None or not readings.arranged:
        return network
    return _Arranging(images, readings).network()


class _Arranging:
    def __init__(self, images: Images, readings: Readings) -> None:
        self.images, self.readings = images, readings
        self.work = images.network.copied()
        # The names of images in tiles, by the image that they are made of.
        self._made: dict[str, str] = {}

    def network(self) -> Network:
        selected = set(self.readings.selected())
        for node in self.images.nodes:
            kind = self.images.kinds[node.name]
            if kind is ChannelUse.MOVE and node.outputs[0] in selected:
                if self._is_arranged(node.outputs[0]):
                    self.work.nodes.replace(node, list(self._selected(node)))
            elif kind in (ChannelUse.SUM, ChannelUse.LANES):
                self.work.nodes.replace(node, list(self._arranged(node, kind)))
        for name, order in self.readings.orders.items():
            self._set_channels(name, order.count)
        self.work.drop_unused()
        return self.work

    def _is_arranged(self, name: str) -> bool:
        return self.images.group(name) in self.readings.arranged

    def _set_channels(self, name: str, count: int) -> None:
        info = self.work.types[name]
        assert info.shape is not None
        self.work.types[name] = replace(info, shape=(info.shape[0], count, *info.shape[2:]))

    def _arranged(self, node: Node, kind: ChannelUse) -> Iterator[Node]:
        """Yield the nodes that compute the result of ``node`` from arranged images."""
        name, result = node.inputs[0], node.outputs[0]
        order, read = self.readings.order(result), self.readings.reading_order(name)
        is_convolution = node.operator == "QLinearConv"
        made = node
        if is_convolution:
            self.work.macs[node.name] = macs(self.images.network, node)
        if kind is ChannelUse.SUM and read != Order.own(channels(name, self.images.network)):
            made = with_inputs(self.work, made, read.channels)
        if is_convolution and order != Order.own(channels(result, self.images.network)):
            made = with_outputs(self.work, made, order.channels, kind is ChannelUse.LANES)
        if name in self.images.sources and self._is_arranged(name):
            reading = self.readings.reading(name)
            if reading is not None:
                yield from self._tiles_of(name, reading)
                made = replace(made, inputs=(self._made[name], *made.inputs[1:]))
        yield made

    def _tiles_of(self, name: str, reading: Reading) -> Iterator[Node]:
        """Yield the nodes that concatenate the stored tiles of an image's ``reading``."""
        if name in self._made:
            return
        parts = [*_runs(reading.tiles)]
        names = []
        for source, begin, end in parts:
            whole = self.readings.order(source).count
            last = min(end * self.images.block, whole)
            if (begin, last) == (0, whole):
                names.append(source)
                continue
            part = self._image(f"{name} from {source}", source, last - begin * self.images.block)
            ends = begin * self.images.block, last
            yield self._slice(f"{part} slice", source, ends, part)
            names.append(part)
        if len(names) == 1:
            self._made[name] = names[0]
            return
        whole_name = self._image(f"{name} in tiles", name, reading.order.count)
        self._made[name] = whole_name
        yield Node("Concat", f"{whole_name} concat", tuple(names), (whole_name,), {"axis": 1})

    def _selected(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that select the channels of an image in the network's order."""
        result = node.outputs[0]
        places = [
            (source, self.readings.order(source).places[at])
            for source, at in self.images.sources[result]
        ]
        sources = list(dict.fromkeys(source for source, _ in places))
        begins, begin = {}, 0
        for source in sources:
            begins[source] = begin
            begin += self.readings.order(source).count
        data = sources[0]
        if len(sources) > 1:
            data = self._image(f"{result} joined", result, begin)
            yield Node("Concat", f"{data} concat", tuple(sources), (data,), {"axis": 1})
        chosen = [begins[source] + place for source, place in places]
        first, count = chosen[0], len(chosen)
        if chosen == list(range(first, first + count)):
            yield self._slice(node.name, data, (first, first + count), result)
            return
        indices = self.work.add_constant(f"{result} channels", np.array(chosen))
        yield Node("Gather", node.name, (data, indices), (result,), {"axis": 1})

    def _slice(self, name: str, data: str, ends: tuple[int, int], result: str) -> Node:
        """The Slice of the channels of ``data`` between two ends."""
        bounds = [
            self.work.add_constant(f"{result} {what}", np.array([value]))
            for what, value in zip(("begin", "end", "axis"), (*ends, 1), strict=True)
        ]
        return Node("Slice", name, (data, *bounds), (result,))

    def _image(self, name: str, like: str, count: int) -> str:
        """A new image of the size of ``like`` with ``count`` channels."""
        unused = self.work.unused_name(name)
        self.work.types[unused] = self.work.types[like]
        self._set_channels(unused, count)
        return unused


def _runs(tiles: tuple[Tile, ...]) -> Iterator[tuple[str, int, int]]:
    """The source, the first tile and the end of each run of consecutive tiles."""
    numbered = enumerate(tiles)
    for (source, _), run in groupby(numbered, lambda item: (item[1][0], item[1][1] - item[0])):
        members = [tile for _, (_, tile) in run]
        yield source, members[0], members[-1] + 1
