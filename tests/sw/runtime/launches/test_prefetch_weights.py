"""A layer's first weight loads move into the preceding layer if it has room and time; nothing else
changes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.isa import Memory, Module
from amaranth_vta.sw.runtime.launches.prefetch_weights import prefetch_weights
from amaranth_vta.sw.runtime.memory import Buffer, Motion, MovingWindow
from amaranth_vta.sw.runtime.program import Recorder
from amaranth_vta.sw.runtime.stream import Stream

CONFIG = PRESETS["pynq-extended"]
SET = isa.instruction_set(CONFIG)
WORDS = CONFIG.wgt.element_bytes // CONFIG.bus_bytes
LOAD, COMPUTE, STORE = Module.LOAD, Module.COMPUTE, Module.STORE
BUFFERS = [Recorder(CONFIG).allocate(1 << 20, "weights") for _ in range(3)]
SOURCE, WEIGHTS, RESULT = BUFFERS


class Part:
    """A layer: tiles of inputs, each with weights at ``place``, products and a STORE."""

    def __init__(
        self,
        place: int,
        tiles: int = 4,
        products: int = 1 << 12,
        kind: type[isa.Gemm] = isa.Gemm,
    ) -> None:
        self.stream = Stream()
        for tile in range(tiles):
            if tile >= 2:
                self.stream.pop(COMPUTE, LOAD)
            self.load(Memory.INP, 0, 4, SOURCE)
            if tile == 0:
                self.load(Memory.WGT, place, 16, WEIGHTS)
            self.stream.push(LOAD, COMPUTE)
            self.stream.pop(LOAD, COMPUTE)
            gemm = kind(uop_end=1, iter_out=products >> 6, iter_in=1 << 6)
            self.stream.append(COMPUTE, SET.encode(gemm))
            if tile < tiles - 2:
                self.stream.push(COMPUTE, LOAD)
        self.stream.append(STORE, SET.encode(isa.Store(y_size=1, x_size=4, x_stride=4)), RESULT)

    def load(self, memory: Memory, place: int, count: int, buffer: Buffer, rows: int = 1) -> Part:
        load = isa.Load(memory=memory, sram_base=place, y_size=rows, x_size=count, x_stride=count)
        self.stream.append(LOAD, SET.encode(load), buffer)
        return self


def joined(*parts: Part) -> list[Stream]:
    streams = [part.stream for part in parts]
    found = prefetch_weights(CONFIG, streams)
    assert all(stream.balanced() for stream in found)
    for stream in found:
        loads = {number for number, bits in enumerate(stream.words) if moves(bits)}
        assert loads == {number for number, _ in stream.relocations}
    return found


def moves(bits: int) -> bool:
    instruction = SET.decode(bits)
    return isinstance(instruction, isa.Load | isa.Store) and instruction.x_size > 0


def weights(stream: Stream) -> list[tuple[int, int]]:
    """Scratchpad index and DRAM index of each weight tile that is loaded."""
    loads = [item for item in map(SET.decode, stream.words) if isinstance(item, isa.Load)]
    return [
        (load.sram_base + y * load.x_size + x, load.dram_base + y * load.x_stride + x)
        for load in loads
        if load.memory == Memory.WGT
        for y in range(load.y_size)
        for x in range(load.x_size)
    ]


def others(stream: Stream) -> list[int]:
    """All instructions except weight loads and token-only instructions, with push flags cleared."""
    plain = (replace(SET.decode(bits), push_next=0) for bits in stream.words)
    return [
        SET.encode(item)
        for item in plain
        if not (isinstance(item, isa.Load) and (item.memory == Memory.WGT or not item.x_size))
    ]


def test_first_weights_come_in_pieces_in_the_layer_before() -> None:
    first, second = Part(0), Part(16)
    changed = joined(first, second)
    assert weights(changed[0]) == weights(first.stream) + weights(second.stream)
    assert not weights(changed[1])
    pieces = [SET.decode(bits) for bits in changed[0].words]
    sizes = [item.elements for item in pieces if isinstance(item, isa.Load) and item.sram_base > 15]
    assert sizes == [128 // WORDS] * 4
    for before, after in zip((first, second), changed, strict=True):
        assert others(after) == others(before.stream)


@pytest.mark.parametrize("kind", [isa.Gemm, isa.Multiply, isa.Depthwise])
def test_all_products_leave_time_for_weights(kind: type[isa.Gemm]) -> None:
    changed = joined(Part(0, kind=kind), Part(16))
    assert not weights(changed[1])


def test_rows_are_cut_where_several_do_not_fit_a_piece() -> None:
    for count, rows in ((1, 7), (3, 5), (9, 3)):
        second = Part(100)
        second.stream = Stream()
        second.load(Memory.WGT, 50, count, WEIGHTS, rows)
        changed = joined(Part(0), second)
        assert weights(changed[0])[16:] == weights(second.stream)


def test_the_token_of_a_load_that_moved_stays() -> None:
    second = Part(16, tiles=1)
    second.stream.push(LOAD, COMPUTE)
    second.load(Memory.WGT, 32, 8, WEIGHTS).stream.push(LOAD, COMPUTE)
    for _ in range(2):
        second.stream.pop(LOAD, COMPUTE)
        second.stream.append(COMPUTE, SET.encode(isa.Gemm(uop_end=1)))
    changed = joined(Part(0), second)
    assert not weights(changed[1])
    pushes = [
        [item.push_next for item in map(SET.decode, stream.words) if isa.module_of(item) is LOAD]
        for stream in (second.stream, changed[1])
    ]
    assert sum(pushes[0]) == sum(pushes[1]) == 3
    # Each load that moved had been the only load before its token.
    assert pushes[1] == [1, 1, 1]


@pytest.mark.parametrize("place", [0, 15])
def test_weights_that_have_no_place_stay(place: int) -> None:
    streams = [Part(0).stream, Part(place).stream]
    assert prefetch_weights(CONFIG, streams) == streams


def test_weights_pass_layers_that_compute_nothing() -> None:
    changed = joined(Part(0), Part(16, products=0), Part(32))
    assert [len(weights(stream)) for stream in changed] == [48, 0, 0]


def test_weights_do_not_pass_the_last_layer_with_others_in_their_place() -> None:
    changed = joined(Part(0), Part(16, products=0), Part(0))
    assert [len(weights(stream)) for stream in changed] == [32, 0, 16]


def test_weights_that_there_is_no_time_for_stay() -> None:
    changed = joined(Part(0, products=0), Part(16))
    assert [len(weights(stream)) for stream in changed] == [16, 16]


def test_results_of_earlier_layers_are_not_loaded_early() -> None:
    second = Part(16, tiles=1)
    second.load(Memory.WGT, 40, 8, RESULT)
    changed = joined(Part(0), second)
    assert [len(weights(stream)) for stream in changed] == [32, 8]


def test_weights_that_wait_for_products_stay() -> None:
    second = Part(16)
    second.stream.push(COMPUTE, LOAD)
    second.stream.pop(COMPUTE, LOAD)
    second.load(Memory.WGT, 40, 8, WEIGHTS)
    changed = joined(Part(0), second)
    assert [len(weights(stream)) for stream in changed] == [32, 8]


def test_weights_stay_behind_a_store_to_a_window_of_their_buffer() -> None:
    window = MovingWindow(WEIGHTS, 64, "window", Motion(1, 16, 0))
    first, between, second = Part(0), Part(16), Part(32)
    store = SET.encode(isa.Store(y_size=1, x_size=4, x_stride=4))
    between.stream.append(STORE, store, window)
    # All weights of the first layer are in the buffer.
    assert prefetch_weights(CONFIG, [first.stream, between.stream, second.stream]) == [
        first.stream, between.stream, second.stream
    ]  # fmt: skip
    loading = Part(32)
    loading.stream.relocations = [
        (number, window if buffer is WEIGHTS else buffer)
        for number, buffer in loading.stream.relocations
    ]
    streams = [first.stream, between.stream, loading.stream]
    assert prefetch_weights(CONFIG, streams) == streams
