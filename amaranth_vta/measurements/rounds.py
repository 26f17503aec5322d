"""Round-trip latencies: rounds of instructions that depend on each other.

A round is measured as the difference between two programs that repeat it a different number of
times, so that the launch and the initial latency cancel out. Both programs are longer than the
instruction queues, so that fetch uses the bus as in any long program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import (
    Alu,
    AluOp,
    Finish,
    Forward,
    Gemm,
    Instruction,
    Load,
    Memory,
    Store,
    Uop,
    forward_base,
)
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sim.programs.image import ProgramImage

from .measurement import difference, image_of, run_compared

# DRAM addresses of tiles, of accumulators to load, and of results; micro-ops are at 0.
_TILES_AT, _ACCUMULATORS_AT, _RESULTS_AT = 1 << 16, 1 << 18, 1 << 19
# Number of micro-ops, and of accumulators, per long instruction.
_ITEMS = 16
# Number of rounds in the first program, and of additional rounds in the second.
ROUNDS = 64


@dataclass(frozen=True)
class Round:
    """``cycles`` of `ROUNDS` rounds, None on a device without a clock; ``mismatches`` counts bytes
    that differ from the functional model's.
    """

    name: str
    cycles: int | None
    mismatches: int


def measure_rounds(config: Config, options: RunOptions) -> Iterator[Round]:
    """Yields the rounds that the machine of ``config`` supports; its scratchpads must hold 16 of
    everything.
    """
    for name, instructions in _rounds(config).items():
        cycles: list[int | None] = []
        mismatches = 0
        for repeats in (ROUNDS, 2 * ROUNDS):
            image = _image(config, instructions * repeats)
            device = options.open(config, image.dram.size)
            result, differ = run_compared(config, image, device)
            mismatches += differ
            cycles.append(result.cycles)
        yield Round(name, difference(*cycles), mismatches)


def _rounds(config: Config) -> dict[str, list[Instruction]]:
    """The instructions of each round, by name."""
    # Fields for the last micro-op alone, and for all 16, of GEMM or of the ALU.
    last, every = {"uop_begin": _ITEMS - 1, "uop_end": _ITEMS}, {"uop_end": _ITEMS}
    for_load = {"pop_prev": 1, "push_prev": 1}
    for_store = {"pop_next": 1, "push_next": 1}
    # Token flags of the load and store modules mirror those of compute.
    load, store = for_store, for_load
    place = {"sram_base": _ITEMS - 1, "x_size": 1}
    one = _load(config, Memory.INP, x_size=1, **load)
    to_memory = Store(dram_base=_RESULTS_AT // config.out.element_bytes, **place, **store)
    add = {"alu_opcode": AluOp.ADD}
    rounds: dict[str, list[Instruction]] = {
        "GEMM, STORE": [Gemm(**last, **for_store), to_memory],
        "LOAD of an input, GEMM": [one, Gemm(**last, **for_load)],
        "LOAD of 16 micro-ops, GEMM of 16": [_load(config, Memory.UOP), Gemm(**every)],
        "LOAD of 16 accumulators, GEMM of 16": [_load(config, Memory.ACC), Gemm(**every)],
        "GEMM of 16, ALU of 16": [Gemm(**every), Alu(use_immediate=1, immediate=3, **add, **every)],
        "GEMM of 16, ALU on the last of them": [
            Gemm(**every),
            Alu(uop_begin=_ITEMS, uop_end=_ITEMS + 1, **add),
        ],
    }
    if config.forward:
        # Writes the input that the last micro-op reads.
        source = forward_base(_ITEMS - 1)
        forward = Forward(sram_base=_ITEMS - 1, dram_base=source, x_size=1, **store)
        rounds["GEMM, FORWARD"] = [Gemm(**last, **for_store), forward]
    return rounds


def _load(config: Config, memory: Memory, x_size: int = _ITEMS, **fields: int) -> Load:
    """A LOAD to address 0 of a scratchpad."""
    at = {Memory.UOP: 0, Memory.ACC: _ACCUMULATORS_AT}.get(memory, _TILES_AT)
    return Load(
        memory=memory,
        dram_base=at // config.memory(memory).element_bytes,
        x_size=x_size,
        **fields,
    )


def _image(config: Config, rounds: list[Instruction]) -> ProgramImage:
    """A program that loads all scratchpads, runs ``rounds`` and stores their results."""
    other = config.acc.depth // 2
    uops = [Uop(dst=n, src=n, wgt=n) for n in range(_ITEMS)]
    uops.append(Uop(dst=other, src=_ITEMS - 1))
    results = _RESULTS_AT // config.out.element_bytes + 1
    program: list[Instruction] = [
        _load(config, Memory.INP),
        _load(config, Memory.WGT, push_next=1),
        _load(config, Memory.UOP, len(uops), pop_prev=1, push_prev=1),
        _load(config, Memory.ACC),
        replace(_load(config, Memory.ACC, 1), sram_base=other, push_next=1),
        Store(x_size=0, pop_prev=1, push_prev=1),
        *rounds,
        Gemm(uop_end=0, push_next=1),
        Store(x_size=_ITEMS, dram_base=results, pop_prev=1),
        Store(sram_base=other, x_size=1, dram_base=results + _ITEMS),
        Finish(),
    ]
    return image_of(config, uops, program)
