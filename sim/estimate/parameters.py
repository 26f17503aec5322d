"""Engine parameters for one machine, in the layout of engine/parameters.hpp."""

from __future__ import annotations

import ctypes
from dataclasses import fields
from typing import Any

from amaranth_vta.hw import isa, timing
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Memory, Opcode
from amaranth_vta.sim.machine.dram import MemoryTiming

_MEMORY_FIELDS = (
    *("memory", "sram_base", "dram_base", "y_size", "x_size", "x_stride"),
    *("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1"),
)
_LOOP_FIELDS = (
    *("reset", "uop_begin", "uop_end", "iter_out", "iter_in"),
    *("dst_factor_out", "dst_factor_in", "src_factor_out", "src_factor_in"),
    *("independent", "alu_opcode", "use_immediate"),
)
_TOKEN_FIELDS = ("pop_prev", "pop_next", "push_prev", "push_next")


def parameters(config: Config, dram: MemoryTiming) -> ctypes.Array[ctypes.c_int64]:
    """The engine's `Parameters`."""
    base = [
        *(dram.latency, int(dram.shared), dram.refresh_period, dram.refresh_stall),
        *(config.bus_bytes, int(bool(config.overlap)), config.wgt_4bit),
        int(isa.AluOp.REQUANTIZE) if config.requantize else -1,
        int(isa.AluOp.LOOKUP) if config.lookup else -1,
        int(isa.AluOp.MULTIPLY_ADD) if config.multiply_add else -1,
        *(config.uop.depth, config.acc.depth),
        config.acc.depth - timing.copied_sources(config),
        config.table_elements,
    ]
    kinds = [number for memory in Memory for number in _kind(config, memory)]
    limits = [
        *(isa.QUEUE_DEPTH, timing.INSTRUCTIONS_IN_FLIGHT),
        *(timing.GEMM_COMMANDS, timing.ALU_COMMANDS),
        *(timing.BURSTS_IN_FLIGHT, timing.BEATS_AHEAD),
        *(timing.FETCH_BURST_BYTES, timing.BURST_BEATS, timing.BURST_BYTES),
        isa.REQUANTIZE_PARAMETERS,
        timing.TABLE_WORDS,
        timing.gemm_latency(config),
        timing.alu_latency(config),
        config.lane_columns,
        timing.early_end(config),
    ]
    known = timing.latencies(config)
    latencies = [getattr(known, item.name) for item in fields(known)]
    return _array([*base, *kinds, *limits, *latencies])


def instruction_fields(config: Config) -> ctypes.Array[ctypes.c_int64]:
    """The engine's `Fields`."""
    layouts = isa.instruction_set(config).layouts
    uop = isa.instruction_set(config).uop_layout
    found = [
        *_places(layouts[Opcode.FINISH], ("opcode",)),
        *_tokens(layouts[Opcode.FINISH]),
        *_places(layouts[Opcode.LOAD], _MEMORY_FIELDS),
        *_places(layouts[Opcode.GEMM], _LOOP_FIELDS),
        *_places(layouts[Opcode.ALU], _LOOP_FIELDS),
        *_places(uop, ("dst", "src")),
    ]
    return _array(found)


def _places(layout: Any, names: tuple[str, ...]) -> list[int]:
    found = []
    for name in names:
        field = layout.get(name)
        offset, width = (field.offset, field.width) if field else (0, 0)
        found += [*divmod(offset, 64), (1 << width) - 1]
    return found


def _tokens(layout: Any) -> list[int]:
    """The four token flags as one field."""
    first = layout[_TOKEN_FIELDS[0]].offset
    places = [layout[name].offset for name in _TOKEN_FIELDS]
    assert places == list(range(first, first + len(places)))
    return [*divmod(first, 64), (1 << len(places)) - 1]


def _kind(config: Config, memory: Memory) -> tuple[int, int, int, int]:
    """How elements of ``memory`` cross the bus; as in hw/dma/rows.py and hw/scratchpad.py."""
    tile = config.memory(memory)
    per_word = max(1, config.bus_bytes // tile.element_bytes)
    words = max(1, tile.element_bytes // config.bus_bytes)
    scratchpad = config.memory(isa.filled_by(memory))
    together = min(max(1, scratchpad.element_bytes // config.bus_bytes), timing.MAX_LANE_BEATS)
    if isa.filled_by(memory) is Memory.ACC and config.out_width < config.acc_width:
        together = min(together, config.acc_width // config.out_width)
    widening = scratchpad.scalar_width // tile.scalar_width
    if widening > 1:
        # Elements of less than a word are widened one at a time; padding is written as for the
        # scratchpad.
        padding = max(1, config.bus_bytes // scratchpad.element_bytes)
        gathered = max(1, together // widening) if words > 1 else 1
        return tile.element_bytes, per_word, gathered, padding
    return tile.element_bytes, 1, together, per_word


def _array(numbers: list[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)
