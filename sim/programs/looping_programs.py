"""Programs that repeat a few instructions, as the tiles of a layer do, for bounds on cycles.

An error of a bound accumulates over iterations, until it exceeds the slack of a single one.
Results are meaningless: iterations read and write the same few elements.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Forward, Gemm, Instruction, Load, Memory, Store

from .image import ProgramImage

_DRAM_BYTES, _PROGRAM = 1 << 16, 1 << 15


def looping_program(config: Config, seed: int, iterations: int) -> ProgramImage:
    """LOADs, GEMM, ALU, and a STORE or two, of random sizes, with a random number of iterations
    between a module and its successor.
    """
    dice = random.Random(seed)
    body = _Body(config, dice)
    # Forwards micro-op 0, and no tokens.
    program: list[Instruction] = [Load(memory=Memory.UOP, x_size=1)]
    for number in range(iterations):
        program += body.iteration(number)
    # Tokens that no iteration takes are left over.
    return ProgramImage.assemble(
        config, np.zeros(_DRAM_BYTES, np.uint8), _PROGRAM, [*program, Finish()]
    )


class _Body:
    """The instructions of an iteration."""

    def __init__(self, config: Config, dice: random.Random) -> None:
        self._overlap, self._half = bool(config.overlap), config.acc.depth // 2
        # Small transfers and loops wait for fetch.
        self._size = min(dice.choice((8, 64)), config.inp.depth // 4, self._half)
        self._items = dice.choice(((1,), (1, 8, 100, self._half)))
        self._depths = [dice.choice((1, 2, 4)) for _ in range(2)]
        self._loads = [self._load(dice) for _ in range(dice.randrange(1, 4))]
        self._gemms = [self._loops(dice) for _ in range(dice.randrange(1, 4))]
        self._alus = [self._loops(dice) for _ in range(dice.randrange(1, 3))]
        self._parameters = dice.randrange(4) == 0
        self._store = {"y_size": dice.randrange(1, 4), "x_size": dice.randrange(1, self._size // 4)}
        self._forward = dice.randrange(1, self._size)
        self._ends = dice.choice(("store", "forward", "both") if config.forward else ("store",))

    def _load(self, dice: random.Random) -> dict[str, int]:
        y_size = dice.choice((1, 1, 2, 8))
        x_size = dice.randrange(1, self._size // y_size + 1)
        padding = {"x_pad_0": 1, "y_pad_1": 1} if dice.randrange(4) == 0 else {}
        return {"y_size": y_size, "x_size": x_size, "x_stride": x_size + 1, **padding}

    def _loops(self, dice: random.Random) -> dict[str, int]:
        independent = {"independent": dice.randrange(2)} if self._overlap else {}
        items = min(dice.choice(self._items), self._half)
        base = {"iter_out": 1, "iter_in": items, "dst_factor_in": 1}
        return {"uop_end": 1, **base, **independent}

    def iteration(self, number: int) -> list[Instruction]:
        """Those of one iteration; tokens of the first ones are not there yet."""
        takes = [int(number >= depth) for depth in self._depths]
        last = len(self._loads) - 1
        found: list[Instruction] = [
            Load(
                memory=Memory.INP,
                pop_next=takes[0] if place == 0 else 0,
                push_next=int(place == last),
                **fields,
            )
            for place, fields in enumerate(self._loads)
        ]
        if self._parameters:
            found.append(Load(memory=Memory.ACC, x_size=3))
        found += [
            Gemm(
                pop_prev=int(place == 0),
                pop_next=takes[1] if place == 0 else 0,
                push_prev=int(place == len(self._gemms) - 1),
                **fields,
            )
            for place, fields in enumerate(self._gemms)
        ]
        found += [
            Alu(
                alu_opcode=AluOp.ADD,
                use_immediate=1,
                push_next=int(place == len(self._alus) - 1),
                **fields,
            )
            for place, fields in enumerate(self._alus)
        ]
        ends: list[Instruction] = []
        if self._ends != "store":
            ends.append(Forward(x_size=self._forward, y_size=1, pop_prev=1))
        if self._ends != "forward":
            taken = int(not ends)
            ends.append(Store(x_stride=self._store["x_size"], pop_prev=taken, **self._store))
        return [*found, *ends[:-1], replace(ends[-1], push_prev=1)]
