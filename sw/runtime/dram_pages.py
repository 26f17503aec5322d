"""Counts of the DRAM pages that an instruction stream opens: `opened_pages`."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.memory_timing import DRAM_PAGE_BYTES
from amaranth_vta.hw.timing import FETCH_BURST_BYTES

from .events import Events
from .instruction_words import Words, element_bytes, field_of, memories_of


def opened_pages(config: Config, words: Words, buffers: npt.NDArray[np.int32]) -> Events:
    """The pages that a stream of legal instructions opens. ``buffers`` (instructions,) numbers the
    buffers to which addresses are relative; each buffer, and the stream itself, starts a page.

    pages_least  if each memory of LOADs and STOREs, and fetch, has a separate open page, which
                 stays open until it needs another page
    pages_most   if each row of a transfer, and each burst of fetch, opens all its pages, since
                 other transfers have closed them
    """
    layouts = isa.instruction_set(config).layouts
    opcodes = field_of(words, layouts[isa.Opcode.FINISH]["opcode"])
    fetched = len(words) * isa.INSTRUCTION_BYTES
    found: Events = Counter(
        pages_least=-(-fetched // DRAM_PAGE_BYTES), pages_most=-(-fetched // FETCH_BURST_BYTES)
    )
    sizes = element_bytes(config)
    for opcode in (isa.Opcode.LOAD, isa.Opcode.STORE):
        layout, chosen = layouts[opcode], opcodes == opcode
        memories = memories_of(words[chosen], layout, config.extensions)
        for memory in isa.transferred_memories(config.extensions):
            # A FORWARD, which is a STORE to INP, stays on the chip.
            if opcode is isa.Opcode.LOAD or memory is isa.Memory.OUT:
                of_memory = memories == memory
                rows, numbers = words[chosen][of_memory], buffers[chosen][of_memory]
                found += _opened(rows, layout, numbers, int(sizes[memory]))
    return found


def _opened(
    words: Words, layout: isa.Layout, buffers: npt.NDArray[np.int32], element: int
) -> Events:
    """The pages that transfers of elements of ``element`` bytes open."""
    base, stride, elements, rows = (
        field_of(words, layout[name]) for name in ("dram_base", "x_stride", "x_size", "y_size")
    )
    rows = np.where(elements > 0, rows, 0)
    # The number of each row within its transfer.
    number = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    first = (np.repeat(base, rows) + number * np.repeat(stride, rows)) * element
    last = (first + np.repeat(elements, rows) * element - 1) // DRAM_PAGE_BYTES
    first //= DRAM_PAGE_BYTES
    of_buffer = np.repeat(buffers, rows)
    most = int((last - first + 1).sum())
    still_open = (first[1:] == last[:-1]) & (of_buffer[1:] == of_buffer[:-1])
    return Counter(pages_least=most - int(still_open.sum()), pages_most=most)
