"""Estimates the energy of an instruction stream: `energy_by_part`."""

from __future__ import annotations

from functools import cache

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.sw.runtime.events import Events, alu_event

from .energies import Energy, summed
from .technologies import Technology

# Parts of the machine in the order of a report.
PARTS = ("multipliers", "adders", "INP", "WGT", "ACC", "UOP", "ALU", "DRAM")
_UOP_BYTES = isa.UOP_WIDTH // 8
_OPERANDS = (isa.Memory.INP, isa.Memory.WGT, isa.Memory.ACC)


def energy_by_part(config: Config, technology: Technology, counts: Events) -> dict[str, Energy]:
    """The energy of the events, for each of `PARTS`.

    It is a sum over events, so that the energy of several streams is the sum of theirs, and the
    same for equal work on any device. Included are arithmetic, scratchpads and DRAM; clock tree,
    pipeline registers, control, wires between modules, leakage and the host are not.
    """
    per = _per_event(config, technology)
    return {
        part: summed(energies[part] * counts[event] for event, energies in per if part in energies)
        for part in PARTS
    }


@cache
def _per_event(config: Config, technology: Technology) -> tuple[tuple[str, dict[str, Energy]], ...]:
    """For each event, the energy that it takes in each part."""
    byte = {
        memory: technology.sram_byte(tile.depth * tile.element_bytes)
        for memory in (isa.Memory.UOP, isa.Memory.INP, isa.Memory.WGT, isa.Memory.ACC)
        for tile in [config.memory(memory)]
    }
    access = {memory: per * config.memory(memory).element_bytes for memory, per in byte.items()}
    acc = {"ACC": access[isa.Memory.ACC]}
    uop = {"UOP": byte[isa.Memory.UOP] * _UOP_BYTES}
    operands = {"INP": access[isa.Memory.INP], "WGT": access[isa.Memory.WGT]}
    rows = config.batch
    dense = rows * config.block_in * config.block_out
    taps = rows * config.block_out * config.taps
    found = {
        "multiply": _products(config, technology, Energy(dense, dense, dense))
        | operands
        | acc
        | uop,
        # At worst the multipliers that a DEPTHWISE does not need switch as well.
        "depthwise": _products(config, technology, Energy(taps, taps, dense))
        | {"INP": operands["INP"] * config.taps, "WGT": operands["WGT"]}
        | acc
        | uop,
        "accumulate": acc,
        "reset": acc | uop,
        "alu_source": acc,
        "store": acc,
        "bytes_read": {"DRAM": technology.dram_byte},
        "bytes_written": {"DRAM": technology.dram_byte},
        # A controller with several banks opens about the least number (`benchmarks/dram_pages.py`).
        "pages_least": {"DRAM": technology.activation * Energy(1, 1, 0)},
        "pages_most": {"DRAM": technology.activation * Energy(0, 0, 1)},
    }
    for memory, energy in access.items():
        found[f"load_{memory.name.lower()}"] = {memory.name: energy}
    lanes = rows * config.block_out
    for op in isa.AluOp:
        # Each operation reads its destination and writes it.
        work = _operation(config, technology, op) * lanes
        found[alu_event(op)] = {"ALU": work, "ACC": acc["ACC"] * 2} | uop
    return tuple(found.items())


def _products(config: Config, technology: Technology, count: Energy) -> dict[str, Energy]:
    """The energy of ``count`` products and of the additions that sum them.

    Adders of the tree are as wide as the products at the low end, and as the accumulators at the
    high end; typical is the middle of the tree.
    """
    inp, wgt, acc = (config.memory(item).scalar_width for item in _OPERANDS)
    product = technology.multiplication(inp, wgt)
    sums = _between(
        technology.addition(inp + wgt),
        technology.addition(inp + wgt + config.log_block_in / 2),
        technology.addition(acc),
    )
    return {"multipliers": count * product, "adders": count * sums}


def _operation(config: Config, technology: Technology, op: isa.AluOp) -> Energy:
    """The energy of one lane of an operation of the ALU."""
    width = config.acc.scalar_width
    add = technology.addition(width)
    match op:
        case isa.AluOp.MUL | isa.AluOp.MULTIPLY_ADD:
            # Factors are 16 bits wide in many programs, and at most as wide as an accumulator.
            least = technology.multiplication(width, isa.IMMEDIATE_WIDTH)
            products = _between(least, least, technology.multiplication(width, width))
            return products + add if op is isa.AluOp.MULTIPLY_ADD else products
        case isa.AluOp.REQUANTIZE:
            product = technology.multiplication(isa.MULTIPLIED_WIDTH, isa.SCALE_WIDTH)
            # The bias, the zero point and the two bounds.
            value = product + add * 4
            return _between(product, value, value)
        case isa.AluOp.LOOKUP:
            return technology.sram_byte(isa.TABLE_BYTES)
        case _:
            return add


def _between(least: Energy, typical: Energy, most: Energy) -> Energy:
    """The energy of an operation that is ``least``, ``typical`` or ``most``."""
    return Energy(least.low, typical.typical, most.high)
