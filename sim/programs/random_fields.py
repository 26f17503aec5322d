"""Random fields of instructions and micro-ops, limited to elements that a program may access, and
random instructions that access none.
"""

from __future__ import annotations

import random

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import (
    Alu,
    Depthwise,
    Forward,
    Gemm,
    Instruction,
    Load,
    Memory,
    Multiply,
    Store,
)
from amaranth_vta.sim.model.observers.observer import Elements
from amaranth_vta.sw.runtime.device import end_in_dram

X_PADS = ("x_pad_0", "x_pad_1")
_PADS = ("y_pad_0", "y_pad_1", *X_PADS)


def random_rows(
    chance: random.Random, elements: int, available: int, padded: bool
) -> dict[str, int]:
    """Sizes, stride and padding of a transfer of 1 to ``elements`` elements that spans at most
    ``available`` elements in memory.
    """
    while True:
        fields = {
            "x_size": chance.choice((1, 1, 2, 3, 4, 5, 8, chance.randint(1, elements))),
            "y_size": chance.choice((1, 1, 1, 2, 3, 5)),
        }
        fields["x_stride"] = chance.choice(
            (
                fields["x_size"],
                fields["x_size"] + chance.randrange(4),
                chance.randrange(4),
                chance.randrange(1000),
            )
        )
        if padded and chance.random() < 0.4:
            fields |= {pad: chance.choice((0, 1, 2, chance.randrange(16))) for pad in _PADS}
            fields["y_size"] = chance.choice((0, fields["y_size"], fields["y_size"]))
        load = Load(memory=Memory.INP, **fields)
        if 0 < load.elements <= elements and end_in_dram(load) <= available:
            return fields


def many_rows(chance: random.Random, elements: int, available: int) -> dict[str, int]:
    """Sizes and stride of a transfer with hundreds of short rows, as many as fit in ``elements``,
    that spans at most ``available`` elements in memory.
    """
    x_size = chance.randint(1, 2)
    rows = min(elements // x_size, 1000, available)
    most = (available - x_size) // max(rows - 1, 1)
    stride = min(chance.choice((0, 1, 3, most)), most, (1 << isa.SIZE_WIDTH) - 1)
    return {"x_size": x_size, "y_size": rows, "x_stride": stride}


def random_set_padding(chance: random.Random) -> isa.SetPadding:
    value = chance.choice(
        (0, -1, -128, 127, chance.randint(-128, 127), chance.randrange(-(1 << 31), 1 << 31))
    )
    return isa.set_padding(chance.choice(list(isa.Padding)), value)


def random_loops(chance: random.Random) -> dict[str, int]:
    """Iterations of the two loops around micro-ops."""
    return {name: chance.choice((1, 1, 2, 3, 5)) for name in ("iter_out", "iter_in")}


def random_operand(
    chance: random.Random, name: str, window: range, loops: dict[str, int], count: int
) -> tuple[Elements, dict[str, int]]:
    """Micro-op fields and loop factors of one operand for ``count`` micro-ops, all within
    ``window``.
    """
    left = len(window) - 1
    factors = {}
    for loop in chance.sample(("out", "in"), 2):
        steps = loops[f"iter_{loop}"] - 1
        if steps:
            factor = chance.randint(0, min(left // steps, 4))
            left -= factor * steps
        else:
            factor = chance.choice((0, 1, len(window) - 1))
        factors[f"{name}_factor_{loop}"] = factor
    kind = chance.random()
    if kind < 0.4:
        start = chance.randint(0, left)
        step = chance.choice((0, 1, 1, 2))
        offsets = [min(start + step * at, left) for at in range(count)]
    else:
        offsets = [chance.randint(0, left) for _ in range(count)]
    return np.array([window.start + offset for offset in offsets]), factors


def chained_operand(
    chance: random.Random, dst: Elements, factors: dict[str, int]
) -> tuple[Elements, dict[str, int]]:
    """Micro-op fields and loop factors of sources that an earlier micro-op, up to seven before, has
    just written; ``dst`` and ``factors`` are those of the destinations.
    """
    sources = {f"src_factor_{loop}": factors[f"dst_factor_{loop}"] for loop in ("in", "out")}
    return np.roll(dst, chance.randint(0, 7)), sources


def random_immediate(chance: random.Random) -> int:
    return chance.choice(
        (chance.randint(-4, 4), chance.randint(-40, 40), chance.randrange(-(1 << 15), 1 << 15))
    )


def random_table(chance: random.Random, window: range, size: int) -> range:
    """A part of ``window`` that holds a LOOKUP table of ``size`` elements, or several overlapping
    tables.
    """
    most = min(size + chance.choice((0, 0, 1, 3)), len(window) - 1)
    first = window.start + chance.randrange(len(window) - most + 1)
    return range(first, first + most)


def outside(window: range, table: range) -> range:
    """The longer of the parts of ``window`` before and after ``table``."""
    before = range(window.start, min(window.stop, table.start))
    return max(before, range(max(window.start, table.stop), window.stop), key=len)


def empty_instruction(config: Config, chance: random.Random) -> Instruction:
    """An instruction that accesses no memory and only passes on tokens; all other fields are
    random.
    """
    anything = {
        "sram_base": chance.randrange(1 << 16),
        "dram_base": chance.randrange(1 << 32),
        "x_stride": chance.randrange(1 << 16),
    }
    pads = {name: chance.randrange(16) for name in _PADS}
    top = config.uop.depth
    empty: dict[str, int] = chance.choice(
        (
            {"uop_begin": top - 1, "uop_end": 2 * top - 1, "iter_out": 0, "iter_in": 9},
            {"uop_begin": 0, "uop_end": 2 * top - 1, "iter_out": (1 << 14) - 1, "iter_in": 0},
            {"uop_begin": top - 1, "uop_end": top - 1},
            {"uop_begin": top - 1, "uop_end": 1, "iter_in": (1 << 14) - 1},
        )
    )
    memory = chance.choice(isa.loaded_memories(config.extensions))
    rows = chance.randrange(1 << 16)
    operations = [*isa.BASE_ALU_OPS, *isa.extended_alu_ops(config.extensions)]
    return chance.choice(
        (
            Load(memory=memory, x_size=0, y_size=rows, **anything, **pads),
            Load(memory=memory, x_size=rows, y_size=0, **anything),
            Store(x_size=0, y_size=rows, **anything),
            Store(x_size=rows, y_size=0, **anything),
            Gemm(**empty),
            Alu(alu_opcode=chance.choice(operations), **empty),
            *([Multiply(**empty)] if config.overwrite else []),
            *([Forward(x_size=0, y_size=rows, **anything)] if config.forward else []),
            *([Depthwise(overwrite=1, **empty)] if config.depthwise else []),
        )
    )
