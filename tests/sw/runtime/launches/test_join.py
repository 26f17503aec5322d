"""Where a layer waits for a STORE of an earlier layer."""

from __future__ import annotations

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.runtime.launches.join import Joiner
from amaranth_vta.sw.runtime.stream import PUSH, Stream

CONFIG = PRESETS["pynq-extended"]
SET = isa.instruction_set(CONFIG)
LOAD, COMPUTE, STORE = Module.LOAD, Module.COMPUTE, Module.STORE
# Elements of INP and of OUT, which have the same size, per tile.
SIZE = 8


def producer(tiles: int) -> Stream:
    """A layer that stores ``tiles`` tiles."""
    stream = Stream()
    for tile in range(tiles):
        stream.append(COMPUTE, SET.encode(isa.Gemm(uop_end=1, iter_out=1, iter_in=1, reset=1)))
        stream.push(COMPUTE, STORE)
        stream.pop(COMPUTE, STORE)
        # Accumulators that the products do not write.
        base = {"sram_base": CONFIG.acc.depth // 2, "dram_base": tile * SIZE}
        store = isa.Store(y_size=1, x_size=SIZE, x_stride=SIZE, **base)
        stream.append(STORE, SET.encode(store))
    return stream


def consumer(order: list[int], copies: int = 2, parameters_at: int | None = None) -> Stream:
    """A layer that multiplies the tiles in ``order``, of which it holds ``copies`` at a time;
    compute loads parameters before the tile with number ``parameters_at``.
    """
    stream = Stream()
    for number, tile in enumerate(order):
        if number == parameters_at:
            load = isa.Load(memory=Memory.ACC, dram_base=1 << 16, y_size=1, x_size=1)
            stream.append(COMPUTE, SET.encode(load))
        if number >= copies:
            stream.pop(COMPUTE, LOAD)
        base = {"sram_base": number % copies * SIZE, "dram_base": tile * SIZE}
        load = isa.Load(memory=Memory.INP, y_size=1, x_size=SIZE, x_stride=SIZE, **base)
        stream.append(LOAD, SET.encode(load))
        stream.push(LOAD, COMPUTE)
        stream.pop(LOAD, COMPUTE)
        stream.append(COMPUTE, SET.encode(isa.Gemm(uop_end=1, iter_out=1, iter_in=SIZE)))
        if number < len(order) - copies:
            stream.push(COMPUTE, LOAD)
    return stream


def joined(*streams: Stream) -> list[tuple[str, int]]:
    """The second layer's instructions: loads and products with their tile's number, waits, and
    LOADs of parameters."""
    joiner = Joiner(CONFIG, np.zeros(1 << 20, np.uint8))
    for stream in streams:
        joiner.add(stream)
    assert joiner.joined.stream.balanced()
    found, counts = list[tuple[str, int]](), {"load": 0, "product": 0}
    for bits in joiner.joined.stream.words[joiner.joined.ends[0] :]:
        instruction = SET.decode(bits)
        kind = ""
        if isinstance(instruction, isa.Gemm):
            kind = "product" if instruction.uop_end else "wait"
        elif isinstance(instruction, isa.Load) and instruction.x_size:
            kind = "load" if instruction.memory == Memory.INP else "parameters"
        if kind:
            found.append((kind, counts.get(kind, 0)))
            counts[kind] = counts.get(kind, 0) + 1
    return found


def test_a_wait_for_a_store_does_not_wait_for_the_tile_before() -> None:
    # Only the last tile waits for a STORE that is not known to have retired.
    order = [4, 5, 6, 0]
    found = joined(producer(1), consumer(order))
    wait = found.index(("wait", 0))
    assert found.index(("product", 1)) < wait < found.index(("product", 2))
    assert found.index(("load", 3)) < found.index(("product", 2))


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [7, 7, 3, 7, 7, 2]])
def test_loads_keep_their_order_and_precede_their_products(order: list[int], copies: int) -> None:
    found = joined(producer(4), consumer(order, copies))
    for number in range(len(order)):
        assert found.index(("load", number)) < found.index(("product", number))
        if number >= copies:
            # The copy is free.
            assert found.index(("product", number - copies)) < found.index(("load", number))
    assert [number for kind, number in found if kind == "load"] == [*range(len(order))]


def test_a_load_of_compute_is_not_delayed_by_later_loads() -> None:
    found = joined(producer(4), consumer([7, 0, 1, 2], parameters_at=1))
    assert found.index(("parameters", 0)) < found.index(("load", 1))
    assert found.index(("parameters", 0)) < found.index(("wait", 0))


def test_a_wait_is_a_token_of_the_store() -> None:
    joiner = Joiner(CONFIG, np.zeros(1 << 20, np.uint8))
    for stream in (producer(2), consumer([1, 0])):
        joiner.add(stream)
    words, end = joiner.joined.stream.words, joiner.joined.ends[0]
    stores = [bits for bits in words[:end] if isinstance(SET.decode(bits), isa.Store)]
    # Tile 1 is stored last, and it is needed first.
    assert [bool(bits & PUSH[STORE, COMPUTE]) for bits in stores] == [False, True]
