from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.datapath.gemm import gemm_operands
from amaranth_vta.hw.datapath.sequencer import Sequencer
from amaranth_vta.sim.testbench.amaranth import pauses, put_all, simulate

CONFIG = PRESETS["tiny"]
OPERANDS = gemm_operands(CONFIG)
# Operands of another kind of command, with sources in a smaller memory.
OTHERS = {"dst": OPERANDS["dst"], "src": OPERANDS["src"] - 3}
KINDS = [OPERANDS, OTHERS]


def expected_items(command: dict, uops: list[isa.Uop]) -> list[tuple]:
    """What `Sequencer` promises, as the loops of the instruction set's page."""
    if not command["uop_end"] > command["uop_begin"] or 0 in (
        command["iter_out"],
        command["iter_in"],
    ):
        return [(None, 0, 1, 0)]
    items: list[tuple] = []
    for o, i, u in product(
        range(command["iter_out"]),
        range(command["iter_in"]),
        range(command["uop_begin"], command["uop_end"]),
    ):
        if u >= CONFIG.uop.depth:
            items.append((None, 1, 0, 1))
            continue
        indices: dict[str, int] = {}
        error = 0
        for name, bits in KINDS[command.get("kind", 0)].items():
            factor = command["factors"][name]
            index = getattr(uops[u], name) + o * factor["outer"] + i * factor["inner"]
            if index >= 1 << bits and (name == "dst" or command["sources_used"]):
                error = 1
            indices[name] = index
        items.append((None if error else indices, 1, 0, error))
    last, enable, _, error = items[-1]
    return [*items[:-1], (last, enable, 1, error)]


def _reads(command: dict) -> int:
    """Number of reads of the micro-op buffer: one if all items have the same micro-op."""
    uops = max(0, command["uop_end"] - command["uop_begin"])
    rounds = command["iter_out"] * command["iter_in"]
    return min(rounds, 1) if uops == 1 else uops * rounds


def run(
    commands: list[dict], uops: list[isa.Uop], stalls: float, kinds: Any = OPERANDS
) -> tuple[list[tuple], int]:
    sequencer = Sequencer(CONFIG, kinds, 4)
    encode = isa.instruction_set(CONFIG).encode_uop
    want = [item for command in commands for item in expected_items(command, uops)]
    items: list[tuple] = []
    cycles = reads = 0

    async def memory(ctx: Any) -> None:
        nonlocal reads
        while True:
            _, _, enable, index = await ctx.tick().sample(sequencer.uop_enable, sequencer.uop_index)
            reads += enable
            if enable:
                ctx.set(sequencer.uop_bits, encode(uops[index]))

    async def put(ctx: Any) -> None:
        await put_all(ctx, sequencer.i, commands)

    async def get(ctx: Any) -> None:
        nonlocal cycles
        pause = pauses(stalls, 5)
        while len(items) < len(want) and cycles < 10_000:
            ready = not pause()
            ctx.set(sequencer.o.ready, ready)
            _, _, valid, item = await ctx.tick().sample(sequencer.o.valid, sequencer.o.payload)
            cycles += 1
            if valid and ready:
                indices = None
                if item.enable and not item.error:
                    used = KINDS[item.kind] if commands[0]["sources_used"] else ["dst"]
                    indices = {name: getattr(item.indices, name) for name in used}
                items.append((indices, item.enable, item.last, item.error))

    simulate(sequencer, put, get, background=[memory])
    assert reads == sum(map(_reads, commands))
    if not commands[0]["sources_used"]:
        want = [
            (None if indices is None else {"dst": indices["dst"]}, *rest) for indices, *rest in want
        ]
    assert items == want
    return items, cycles


def loop(begin: int, end: int, out: int, inner: int, *factors: int, sources_used: int = 1) -> dict:
    names = list(OPERANDS)
    return {
        "uop_begin": begin,
        "uop_end": end,
        "iter_out": out,
        "iter_in": inner,
        "factors": {
            name: {"outer": factors[2 * n], "inner": factors[2 * n + 1]}
            for n, name in enumerate(names)
        },
        "sources_used": sources_used,
        "context": 0,
    }


def random_uops(largest: int) -> list[isa.Uop]:
    generator = random.Random(3)
    return [
        isa.Uop(*(generator.randrange(largest) for _ in range(3))) for _ in range(CONFIG.uop.depth)
    ]


@pytest.mark.parametrize("stalls", [0, 0.4])
@pytest.mark.parametrize("sources_used", [0, 1])
def test_sequencer_runs_the_loops_in_order(stalls: float, sources_used: int) -> None:
    generator = random.Random(4)
    commands = [
        loop(
            begin := generator.randrange(8),
            begin + generator.randrange(4),
            generator.randrange(4),
            generator.randrange(4),
            *(generator.randrange(8) for _ in range(6)),
            sources_used=sources_used,
        )
        for _ in range(20)
    ]
    run(commands, random_uops(16), stalls)


def test_commands_of_a_kind_are_checked_for_its_own_operands() -> None:
    generator = random.Random(6)
    commands = []
    for _ in range(40):
        factors = [generator.randrange(8) for _ in range(6)]
        command = loop(0, generator.randrange(1, 4), 2, 3, *factors)
        commands.append({**command, "kind": generator.randrange(2)})
    items, _ = run(commands, random_uops(16), 0, KINDS)
    assert 10 < sum(error for *_, error in items) < len(items) - 10


def test_sequencer_leaves_no_gap_between_commands() -> None:
    commands = [loop(0, 4, 1, 2, 0, 1, 0, 1, 0, 1)] * 10
    items, cycles = run(commands, random_uops(8), 0)
    # One cycle until the first command is offered, three until its first item, then no gaps.
    assert cycles == len(items) + 3


@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("level", [0, 1])
def test_sequencer_marks_an_index_past_the_depth_however_far(operand: int, level: int) -> None:
    factors = [0] * 6
    factors[2 * operand + level] = 63
    outer, inner = (9, 1) if level == 0 else (1, 9)
    items, _ = run([loop(0, 1, outer, inner, *factors)], random_uops(8), 0)
    assert items[0][3] == 0
    assert items[-1][3] == 1


def test_sequencer_marks_a_micro_op_past_the_end_of_its_buffer() -> None:
    items, _ = run(
        [loop(CONFIG.uop.depth - 1, CONFIG.uop.depth + 1, 1, 1, *[0] * 6)], random_uops(8), 0
    )
    assert [item[3] for item in items] == [0, 1]
