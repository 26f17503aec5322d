"""Instructions that access no memory: programs contain them only for their tokens."""

from __future__ import annotations

import random

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

X_PADS = ("x_pad_0", "x_pad_1")


def empty_instruction(config: Config, chance: random.Random) -> Instruction:
    """An instruction that accesses no memory, with all other fields random."""
    anything = {
        "sram_base": chance.randrange(1 << 16),
        "dram_base": chance.randrange(1 << 32),
        "x_stride": chance.randrange(1 << 16),
    }
    pads = {name: chance.randrange(16) for name in ("y_pad_0", "y_pad_1", *X_PADS)}
    top = config.uop.depth
    empty: dict[str, int] = chance.choice(
        (
            {"uop_begin": top - 1, "uop_end": 2 * top - 1, "iter_out": 0, "iter_in": 9},
            {"uop_begin": 0, "uop_end": 2 * top - 1, "iter_out": (1 << 14) - 1, "iter_in": 0},
            {"uop_begin": top - 1, "uop_end": top - 1},
            {"uop_begin": top - 1, "uop_end": 1, "iter_in": (1 << 14) - 1},
        )
    )
    memory = chance.choice((Memory.INP, Memory.WGT, Memory.UOP, Memory.ACC, Memory.ACC_8BIT))
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
