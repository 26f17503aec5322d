"""The order of a tensor's channels: few tiles for each reader."""

from __future__ import annotations

from amaranth_vta.sw.compiler.graph.channel_order.orders import Order, Readers, chosen_order

BLOCK = 16


def readers(*groups: tuple[int, set[int]]) -> list[Readers]:
    """The readers of ``count`` channels per group; the groups are interleaved."""
    left = [[frozenset(own)] * count for count, own in groups]
    mixed = []
    while any(left):
        mixed += [group.pop() for group in left if group]
    return mixed


def tiles_of(order: Order, own: list[Readers], reader: int) -> int:
    return len({order.places[at] // BLOCK for at, kinds in enumerate(own) if reader in kinds})


def test_halves_of_halves_fill_as_many_tiles_as_the_whole() -> None:
    own = readers((58, {1}), (29, {2, 3}), (15, {2, 4, 5}), (14, {2, 4, 6}))
    order = chosen_order(own, 1.0, dict.fromkeys(range(1, 7), 1.0), BLOCK)
    assert order.count == 128
    assert [tiles_of(order, own, reader) for reader in range(1, 7)] == [4, 4, 2, 2, 1, 1]
    assert len(set(order.places)) == 116


def test_groups_share_tiles_where_writing_costs_more_than_reading() -> None:
    own = readers((8, {1}), (12, {2}), (12, {3}))
    read = dict.fromkeys((1, 2, 3), 9.0)
    cheap, costly = (chosen_order(own, written, read, BLOCK) for written in (1.0, 20.0))
    assert (cheap.count, costly.count) == (48, 32)
    assert [tiles_of(cheap, own, reader) for reader in (1, 2, 3)] == [1, 1, 1]
    assert [tiles_of(costly, own, reader) for reader in (1, 2, 3)] == [1, 2, 1]


def test_channels_with_the_same_readers_keep_their_order() -> None:
    order = chosen_order([frozenset({1})] * 20, 1.0, {1: 1.0}, BLOCK)
    assert order.places == tuple(range(20))
    assert order.channels == [*range(20), *[-1] * 12]


def test_channels_without_readers_have_places_too() -> None:
    own = [frozenset[int](), frozenset({1}), frozenset[int]()]
    order = chosen_order(own, 1.0, {1: 1.0}, BLOCK)
    assert sorted(order.places) == [0, 1, 2]
