from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sw.runtime.dram_pages import opened_pages
from amaranth_vta.sw.runtime.instruction_words import instruction_words

_EXTENDED = PRESETS["pynq-extended"]
# Elements per page.
_INPUTS = DRAM_PAGE_BYTES // _EXTENDED.inp.element_bytes


def pages(
    *instructions: isa.Instruction, buffers: Sequence[int] = (), config: Config = _EXTENDED
) -> tuple[int, int]:
    """The least and the most pages, without the instructions' own, in ``buffers`` or all in one."""
    encode = isa.instruction_set(config).encode
    words = instruction_words(encode(instruction) for instruction in instructions)
    found = opened_pages(config, words, np.array(buffers or [0] * len(words), np.int32))
    fetched = len(words) * isa.INSTRUCTION_BYTES
    return (
        found["pages_least"] - -(-fetched // DRAM_PAGE_BYTES),
        found["pages_most"] - -(-fetched // 256),
    )


def inputs(base: int, x_size: int, y_size: int = 1, x_stride: int = 0) -> isa.Load:
    return isa.Load(
        memory=isa.Memory.INP, dram_base=base, x_size=x_size, y_size=y_size, x_stride=x_stride
    )


def test_a_contiguous_transfer_opens_each_page_once() -> None:
    assert pages(inputs(0, 3 * _INPUTS)) == (3, 3)
    assert pages(inputs(_INPUTS - 1, 2)) == (2, 2)
    assert pages(inputs(5, 1)) == (1, 1)


def test_more_pieces_open_more_pages() -> None:
    """The same number of elements, in 1 to 64 rows that are two pages apart."""
    elements = 4 * _INPUTS
    found = [pages(inputs(0, elements // rows, rows, 2 * _INPUTS)) for rows in (4, 8, 16, 32, 64)]
    assert found == [(rows, rows) for rows in (4, 8, 16, 32, 64)]
    assert pages(inputs(0, elements)) == (4, 4)


def test_rows_of_one_page_may_open_it_once_or_each() -> None:
    assert pages(inputs(0, 4, 8, 8)) == (1, 8)
    # Rows without a gap are still separate bursts.
    assert pages(inputs(0, 4, 8, 4)) == (1, 8)


def test_each_memory_has_an_open_page() -> None:
    weights = isa.Load(memory=isa.Memory.WGT, x_size=1)
    assert pages(inputs(0, 4), weights, inputs(4, 4), weights) == (2, 4)
    # A second page closes the first.
    assert pages(inputs(0, 4), inputs(_INPUTS, 4), inputs(4, 4)) == (3, 3)


def test_buffers_are_in_different_pages() -> None:
    assert pages(inputs(0, 4), inputs(4, 4), buffers=(0, 0)) == (1, 2)
    assert pages(inputs(0, 4), inputs(4, 4), buffers=(0, 1)) == (2, 2)


def test_padding_forwards_and_empty_transfers_open_no_page() -> None:
    store, empty = isa.Store(x_size=2, y_size=3, x_stride=1000), inputs(0, 0, 5)
    assert pages(isa.Forward(x_size=4, y_size=2), empty, isa.Gemm(uop_end=3)) == (0, 0)
    assert pages(store) == (3, 3)
    padded = isa.Load(memory=isa.Memory.INP, x_size=2, y_size=1, x_pad_0=3, y_pad_1=2)
    assert pages(padded) == (1, 1)


def test_fetch_reads_the_stream_in_order() -> None:
    words = instruction_words([isa.instruction_set(_EXTENDED).encode(isa.Gemm(uop_end=1))] * 300)
    found = opened_pages(_EXTENDED, words, np.full(300, -1, np.int32))
    # 4,800 bytes, in bursts of 256.
    assert (found["pages_least"], found["pages_most"]) == (3, 19)


@pytest.mark.parametrize("preset", PRESETS)
def test_pages_are_those_of_the_addresses_followed_one_by_one(preset: str) -> None:
    config, rng = PRESETS[preset], np.random.default_rng(1)
    instructions: list[isa.Load | isa.Store] = []
    for _ in range(300):
        sizes = {name: int(rng.integers(0, 40)) for name in ("x_size", "y_size", "x_stride")}
        base = int(rng.integers(0, 2000))
        memory = isa.Memory(rng.choice([isa.Memory.UOP, isa.Memory.WGT, isa.Memory.INP]))
        if rng.random() < 0.7:
            instructions.append(isa.Load(memory=memory, dram_base=base, **sizes))
        else:
            instructions.append(isa.Store(dram_base=base, **sizes))
    buffers = rng.integers(0, 3, len(instructions)).tolist()
    least = most = 0
    open_page: dict[int, tuple[int, int]] = {}
    for instruction, buffer in zip(instructions, buffers, strict=True):
        memory = isa.Memory(instruction.memory)
        size = config.memory(memory).element_bytes
        for y in range(instruction.y_size if instruction.x_size else 0):
            start = (instruction.dram_base + y * instruction.x_stride) * size
            for page in sorted(
                {at // DRAM_PAGE_BYTES for at in range(start, start + instruction.x_size * size)}
            ):
                most += 1
                least += open_page.get(memory) != (buffer, page)
                open_page[memory] = buffer, page
    assert pages(*instructions, buffers=buffers, config=config) == (least, most)


def test_a_network_opens_at_most_a_page_per_burst() -> None:
    """On a bus of 64 bits, where bursts stay within pages; few rows are in one page more, since
    buffers do not start pages.
    """
    path = Path(__file__).parents[3] / "examples/digits/digits.onnx"
    with Session(str(path), _EXTENDED, "estimate", launch="layer", timing_only=True) as session:
        session.run(random_inputs(session))
        counters = session.report()["counters"]
        pages = session.energy("xc7").pages
    bursts = counters["read_bursts"] + counters["write_bursts"]
    assert pages.most == pytest.approx(bursts, rel=0.03)
    assert pages.least < pages.most / 2
