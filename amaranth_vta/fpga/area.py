"""Estimates the FPGA resources of a machine without synthesis: `estimate_area`.

LUTs and flip-flops come from a linear model that ``benchmarks/area_model.py`` fits to synthesis
results; multipliers and block RAMs follow from the structure of the design, by the rules of Yosys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from amaranth.hdl import Shape

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.interfaces import CheckedEntry
from amaranth_vta.hw.microarchitecture import Microarchitecture, Storage
from amaranth_vta.hw.scratchpad import geometry
from amaranth_vta.hw.timing import copied_sources

MODEL = Path(__file__).with_name("area_model.json")
FAMILIES = ("xc7", "ecp5")
FITTED = ("lut", "ff")
# In scratchpads deeper than this, the products in extent checks use multipliers: hw/dma/bounds.py.
DEEPEST_IN_LOGIC = 1024
# LUTs of an 8-by-8-bit product without a multiplier: an 8×8 array with 60 such products takes
# 19,827 LUTs instead of 11,589.
LUTS_OF_PRODUCT = 137
# Number of multipliers if no particular chip is meant.
UNLIMITED = sys.maxsize


@dataclass(frozen=True)
class Area:
    """LUTs (including those used as memories and carries; with six inputs on xc7, four on ecp5),
    flip-flops, multipliers, and block RAMs in units of 36 kbit.
    """

    lut: int
    ff: int
    dsp: int
    bram36: float


def estimate_area(config: Config, family: str, most: int = UNLIMITED) -> Area:
    """The area of the flattened machine of ``config`` on a ``family`` of `FAMILIES`. On a chip with
    ``most`` multipliers, `products_in_luts` are moved to LUTs.
    """
    found = features(config)
    fitted = {
        column: round(sum(weight * found[name] for name, weight in weights.items()))
        for column, weights in (
            (column, fitted_model()[family][column]["weights"]) for column in FITTED
        )
    }
    products = products_in_luts(config, family, most)
    luts = LUTS_OF_PRODUCT * config.inp_width * config.wgt_width / 64
    fitted["lut"] += round(products * luts)
    dsp = multipliers(config, family) - products
    return Area(**fitted, dsp=dsp, bram36=block_rams(config, family))


@cache
def fitted_model() -> dict[str, Any]:
    """By family and column: the weights of the features, and the fit errors."""
    model: dict[str, Any] = json.loads(MODEL.read_text(encoding="utf-8"))
    return model


def features(config: Config) -> dict[str, float]:
    """The features of the linear model for LUTs and flip-flops; the first is the constant 1."""
    lanes = config.batch * config.block_out
    queues = Microarchitecture.of(config).instruction_queues
    return {
        "machine": 1.0,
        "lanes": lanes * config.acc_width / 32,
        # The operand multiplexers of shared lanes take as many LUTs as the rest of the lanes that
        # they save.
        "lanes, requantize": config.alu_lanes * config.requantize,
        "lanes, lookup": config.alu_lanes * config.lookup,
        "products": config.macs_per_cycle * config.inp_width * config.wgt_width / 64,
        "queues in LUTs": float(queues is Storage.LUTS),
        "counters": config.counters,
        "overlap": config.overlap,
        "lanes, overlap": lanes * config.acc_width / 32 * config.overlap,
        "products, depthwise": config.macs_per_cycle * config.depthwise,
        "forward": config.forward,
        "other extensions": config.overwrite + config.pad_value,
        "bus": 8.0 * config.bus_bytes,
        "addresses": float(config.log_dram_size),
        "tiles": float(config.inp.element_bits + config.wgt.element_bits),
        "indices": sum(
            memory.index_width for memory in (config.uop, config.inp, config.wgt, config.acc)
        ),
    }


# Multipliers.


def multipliers(config: Config, family: str) -> int:
    """Number of multipliers: of GEMM, on xc7 with `products_per_multiplier` products
    in each; of the ALU's lanes; and, for deep scratchpads, of the extent and bounds
    checks.
    """
    lanes, products = config.alu_lanes, config.macs_per_cycle
    deepest = max(memory.depth for memory in (config.uop, config.inp, config.wgt, config.acc))
    checks = 2 * (deepest > DEEPEST_IN_LOGIC)
    if family == "xc7":
        return products // Microarchitecture.of(config).products_per_multiplier + 3 * lanes + checks
    return products + (6 if config.requantize else 3) * lanes + checks


def products_in_luts(config: Config, family: str, most: int) -> int:
    """The number of GEMM products in LUTs on a chip of ``family`` with ``most`` multipliers: the
    shortfall of multipliers on an ECP5 with one product per multiplier, otherwise 0.
    """
    if family != "ecp5" or Microarchitecture.of(config).products_per_multiplier != 1:
        return 0
    return min(max(0, multipliers(config, family) - most), config.macs_per_cycle)


# Block RAMs.


@dataclass(frozen=True)
class MappedMemory:
    """``count`` memories of ``rows`` rows, each with ``lanes`` lanes of ``lane_bits`` bits and a
    write enable per lane.
    """

    rows: int
    lane_bits: int
    lanes: int
    count: int

    @property
    def bits(self) -> int:
        """Bits per row: each lane is rounded up to multiples of nine bits, the granularity of write
        enables.
        """
        if self.lanes == 1:
            return self.lane_bits
        return 9 * ceil(self.lane_bits / 9) * self.lanes


def _memories(config: Config) -> Iterator[MappedMemory]:
    """The copies and banks of all scratchpads, as built by `hw.scratchpad.Scratchpad`, and the
    instruction queues and other small memories if these are in block RAM.
    """
    for kind in (isa.Memory.UOP, isa.Memory.INP, isa.Memory.WGT):
        shape = geometry(config, kind)
        lane_bits = shape.element_bits // shape.lanes
        read = config.taps if kind is isa.Memory.INP else 1
        count = 1 << (max(shape.elements, read) - 1).bit_length()
        yield MappedMemory(shape.depth // count, lane_bits, shape.lanes, count)
    shape, banks = geometry(config, isa.Memory.ACC), 2 if config.overlap else 1
    rows, lane_bits = shape.depth // banks, shape.element_bits // shape.lanes
    yield MappedMemory(rows // shape.elements, lane_bits, shape.lanes, banks * shape.elements)
    # Accumulators that the ALU reads as sources have two copies.
    copied = copied_sources(config)
    yield MappedMemory(copied // shape.elements, lane_bits, shape.lanes, shape.elements)
    # The copy of the low bits that the store module reads.
    read = max(shape.elements, geometry(config, isa.Memory.OUT).elements)
    lane_bits = config.out.element_bits // shape.lanes
    yield MappedMemory(rows // read, lane_bits, shape.lanes, banks * read)
    choices = Microarchitecture.of(config)
    if choices.instruction_queues is Storage.BLOCK_RAM:
        # The queues of all three modules share one memory with room for four: hw/instructions.py.
        yield MappedMemory(4 * isa.QUEUE_DEPTH, Shape.cast(CheckedEntry).width, 1, 1)
    # Shallow memories.
    if choices.register_readback is Storage.BLOCK_RAM:
        yield MappedMemory(512, 36, 1, 1)
    if choices.fetch_buffer is Storage.BLOCK_RAM:
        # A bus word or an instruction, plus a bus error flag.
        yield MappedMemory(512, 8 * max(config.bus_bytes, isa.INSTRUCTION_BYTES) + 1, 1, 1)


def block_rams(config: Config, family: str) -> float:
    """Block RAMs in units of 36 kbit."""
    return block_rams_of(_memories(config), family)


def block_rams_of(memories: Iterable[MappedMemory], family: str) -> float:
    """Block RAMs in units of 36 kbit that ``memories`` take."""
    needed = {"xc7": _halves_of_xc7, "ecp5": _blocks_of_ecp5}[family]
    return sum(memory.count * needed(memory) for memory in memories) / 2


# Rows and width of each configuration of an 18-kbit block RAM.
_WIDTHS = ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1))


def _halves_of_xc7(memory: MappedMemory) -> int:
    """Number of 18-kbit block RAMs, 0 if LUTs are cheaper; costs as in Yosys' xilinx/brams_xc4v.txt
    and lutrams_xc5v.txt.
    """
    halves = _blocks(memory, 1)
    wholes = _blocks(memory, 2)
    by_cost = {129 * halves: halves, 257 * wholes: 2 * wholes}
    width, rows = (6, 32) if memory.rows <= 32 else (3, 64)
    in_luts = 8 * ceil(memory.bits / width) * ceil(memory.rows / rows)
    return 0 if in_luts < min(by_cost) else by_cost[min(by_cost)]


def _blocks_of_ecp5(memory: MappedMemory) -> int:
    """Number of 18-kbit block RAMs, 0 if LUTs are cheaper; costs as in Yosys'
    lattice/brams_16kd.txt and lutrams_trellis.txt.
    """
    blocks = _blocks(memory, 1)
    in_luts = 4 * ceil(memory.bits / 4) * ceil(memory.rows / 16)
    return 0 if in_luts < 128 * blocks else blocks


def _blocks(memory: MappedMemory, size: int) -> int:
    """Number of block RAMs of ``size`` times 18 kbit."""
    width = next((bits for rows, bits in _WIDTHS if memory.rows <= rows), 1)
    deep = ceil(memory.rows / (_WIDTHS[-1][0] * size)) if memory.rows > _WIDTHS[-1][0] else 1
    if size == 2:
        width = 72 if memory.rows <= 512 else next(
            (bits for rows, bits in _WIDTHS if memory.rows <= 2 * rows and rows >= 512), 1
        )  # fmt: skip
    return deep * ceil(memory.bits / width)
