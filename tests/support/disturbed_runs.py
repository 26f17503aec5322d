"""Disturbed runs of the RTL, and checks that the machine stays safe.

A run always ends, or can be stopped, within a known time; it writes only the bytes of its STOREs;
and the next program behaves as on a fresh machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.sim.fuzz.comparison import differences
from amaranth_vta.sim.fuzz.reference import Reference, reference_of
from amaranth_vta.sim.machine.dram import MemoryTiming, ProtocolError, memory_timing
from amaranth_vta.sim.machine.host import StuckError
from amaranth_vta.sim.memory import instruction_words
from amaranth_vta.sim.programs.image import ProgramImage, limits_of, transfer_of
from amaranth_vta.sim.programs.random_programs import legal_program
from amaranth_vta.sim.programs.relocation import random_relocation, relocated
from amaranth_vta.sw.runtime.device import end_in_dram, limit_of

from .register_bench import RegisterBench

CONFIGS = ("tiny", "batch2", "int4", "tiny-extended")
# Alignment in bytes of the end and start of memory.
_UNIT = 64
# Space in bytes for relocating a program; larger than an element.
_MARGIN = 4096
# Runs are stopped after this many cycles: loops of legal instructions may have 2^28 iterations.
_MOST_CYCLES = 150_000
# Maximum cycles until the run ends, after the watchdog's timeout, or after a stop and memory's last
# answer; includes the cycles to read registers.
_END_CYCLES = 64
# Maximum cycles from the write of a stop until the machine acts on it.
_STOP_CYCLES = 32
# Maximum cycles in which a memory that is not stuck answers everything in flight.
_ANSWER_CYCLES = 20_000
_GOOD_PROGRAMS = 8


@dataclass(frozen=True)
class Disturbed:
    """A program, its memory and its disturbance. ``stop`` is the cycle in which the run is stopped,
    or None; ``by_line`` says whether by the reset line. ``memory`` is the range of valid addresses,
    except those in ``gap``; ``timeout`` is the watchdog's.
    """

    kind: str
    image: ProgramImage
    timing: MemoryTiming
    memory: range
    timeout: int
    stop: int | None = None
    by_line: bool = False
    gap: range = range(0)


@dataclass
class Outcome:
    """How a run ended, its cycles, and what was ``wrong``, which is empty for a good run."""

    kind: str
    end: str = ""
    cycles: int = 0
    wrong: list[str] = field(default_factory=list)


def attempt(seed: int, number: int) -> Outcome:
    """Run ``number`` of ``seed``, and a good program after it."""
    chance = random.Random(f"{seed}:{number}")
    config = PRESETS[CONFIGS[number % len(CONFIGS)]]
    kind = KINDS[number // len(CONFIGS) % len(KINDS)]
    return run(_MAKERS[kind](chance, config), chance)


def run(disturbed: Disturbed, chance: random.Random) -> Outcome:
    """Run the disturbed program on a fresh machine, then a good program, which must find no traces
    of it.
    """
    outcome = Outcome(disturbed.kind)
    image, memory = disturbed.image, disturbed.memory
    bench = RegisterBench(image.config, len(memory), disturbed.timing, memory.start)
    try:
        _fill(bench, image)
        bench.machine.leave_out(disturbed.gap)
        before = bench.memory.copy()
        may_write = _written_by(bench, image)
        outcome.end = _run(bench, disturbed, outcome)
        _settle(bench, disturbed, outcome)
        outside = np.flatnonzero((bench.memory != before) & ~may_write)
        if outside.size:
            at = bench.origin + int(outside[0])
            outcome.wrong.append(f"{outside.size} bytes are written outside, the first at {at:#x}")
        bench.machine.leave_out(range(0))
        outcome.wrong += _next_program(bench, chance)
    except (ProtocolError, StuckError) as error:
        outcome.wrong.append(str(error))
    finally:
        bench.close()
    return outcome


def _run(bench: RegisterBench, disturbed: Disturbed, outcome: Outcome) -> str:
    """Run the program until it ends or is stopped; return how it ended."""
    image = disturbed.image
    bench.set_bases(image.bases)
    bench.set_limits(image.limits)
    bench.poke("TIMEOUT", disturbed.timeout)
    bench.launch(image.insn_addr, image.insn_count)
    stop = _MOST_CYCLES if disturbed.stop is None else disturbed.stop
    began = bench.machine.run_start
    ended = bench.machine.advance(stop)
    by_stop = not ended
    if by_stop and disturbed.by_line:
        bench.reset_line()
        return "reset line"
    if by_stop:
        silent = bench.machine.silent_cycles
        if not bench.machine.quiet and silent > disturbed.timeout + _END_CYCLES:
            outcome.wrong.append(f"the watchdog does not act: nothing moves for {silent} cycles")
        bench.command("reset")
        # Memory answers the accesses in flight, or the watchdog acts.
        ended = bench.machine.advance(_ANSWER_CYCLES + disturbed.timeout)
    outcome.cycles = bench.machine.cycle - began
    if by_stop and not bench.status and bench.peek("CYCLES") <= stop + _STOP_CYCLES:
        return "done"  # just before the stop, which has cleared STATUS
    if not ended or "done" not in bench.status:
        outcome.wrong.append(f"the run does not end; STATUS is {sorted(bench.status)}")
        return "no end"
    silent, fault = bench.machine.silent_cycles, bench.fault
    if fault is None and not by_stop and bench.machine.errors:
        outcome.wrong.append("memory answers with an error, and no fault is reported")
    if fault is not None and fault.cause == "timeout":
        # A stop is a register write, which restarts the count of silent cycles.
        least = 0 if by_stop else disturbed.timeout
        if not least <= silent <= disturbed.timeout + _END_CYCLES:
            outcome.wrong.append(f"the watchdog of {disturbed.timeout} cycles acts after {silent}")
    elif by_stop and silent > _END_CYCLES:
        outcome.wrong.append(f"the run ends {silent} cycles after it was stopped and all rests")
    if fault is not None:
        return fault.cause
    if "stopped" in bench.status:
        return "stopped"
    if by_stop and outcome.cycles > stop + _STOP_CYCLES:
        outcome.wrong.append(f"a stop in cycle {stop} does nothing")
    return "done"


def _settle(bench: RegisterBench, disturbed: Disturbed, outcome: Outcome) -> None:
    """Wait until memory has answered all accesses; no more may follow."""
    bench.poke("INTERRUPT_ENABLE", 0)
    period = disturbed.timing.refresh_period
    for _ in range(20):
        bench.settle(_ANSWER_CYCLES + period)
        if bench.machine.quiet and "draining" not in bench.status:
            return
    outcome.wrong.append(f"accesses remain in flight; STATUS is {sorted(bench.status)}")


def _next_program(bench: RegisterBench, chance: random.Random) -> list[str]:
    bench.memory[:] = 0
    bench.poke("TIMEOUT", 0)
    good, expected = _good(bench.config, chance.randrange(_GOOD_PROGRAMS))
    there = relocated(good, bench.origin + _MARGIN, chance)
    return [f"next program: {what}" for what in differences(bench, good, expected, None, there)[0]]


@cache
def _good(config: Config, seed: int) -> tuple[ProgramImage, Reference]:
    image = legal_program(config, seed, length=12)
    return image, reference_of(image, is_ordered=True)


def _memory_size(image: ProgramImage) -> int:
    """Size of a memory for ``image`` and the program that runs after it."""
    goods = (_good(image.config, seed)[0] for seed in range(_GOOD_PROGRAMS))
    size = max(image.dram.size, *(good.dram.size for good in goods))
    return -(-(size + _MARGIN) // _UNIT) * _UNIT


def _fill(bench: RegisterBench, image: ProgramImage) -> None:
    """Write as much of ``image`` as fits into memory, and random bytes around it."""
    around = np.random.default_rng(image.insn_count)
    bench.memory[:] = around.integers(0, 256, bench.memory.size, np.uint8)
    first = image.origin - bench.origin
    inside = slice(max(first, 0), min(first + image.dram.size, bench.memory.size))
    bench.memory[inside] = image.dram[inside.start - first : inside.stop - first]


def _written_by(bench: RegisterBench, image: ProgramImage) -> npt.NDArray[np.bool_]:
    """Bytes that legal STOREs of the stream in memory may write."""
    may_write = np.zeros(bench.memory.size, bool)
    size = image.config.out.element_bytes
    limit = limit_of(image.limits, isa.Memory.OUT)
    first = image.bases.get(isa.Memory.OUT, 0) - bench.origin
    stream = image.insn_addr - bench.origin
    skipped = max(0, -(stream // isa.INSTRUCTION_BYTES)) if stream < 0 else 0
    at = stream + skipped * isa.INSTRUCTION_BYTES
    for bits in set(instruction_words(bench.memory, at, max(image.insn_count - skipped, 0))):
        store = transfer_of(image.config, bits)
        if not isinstance(store, isa.Store) or store.elements > image.config.acc.depth:
            continue
        if limit and end_in_dram(store) > limit:
            continue
        rows = first + (store.dram_base + np.arange(store.y_size) * store.x_stride) * size
        touched = (rows[:, np.newaxis] + np.arange(store.x_size * size)).reshape(-1)
        may_write[touched[(touched >= 0) & (touched < may_write.size)]] = True
    return may_write


# The kinds of disturbance.


def _program(chance: random.Random, config: Config) -> ProgramImage:
    """A legal program with limits, most often with base registers."""
    image = legal_program(config, chance.randrange(1 << 32), length=chance.choice((8, 16, 40)))
    image = replace(image, limits=limits_of(image))
    return random_relocation(image, chance) if chance.random() < 0.7 else image


def _timing(chance: random.Random) -> MemoryTiming:
    return memory_timing(chance.choice(("ideal", "ddr", f"random:{chance.randrange(1 << 16)}")))


def _around(image: ProgramImage) -> range:
    return range(image.origin, image.origin + _memory_size(image))


def _reset(chance: random.Random, config: Config) -> Disturbed:
    """A soft reset, or the reset line, in any cycle."""
    image, timing = _program(chance, config), _timing(chance)
    memory = _around(image)
    bench = RegisterBench(config, len(memory), timing, memory.start)
    _fill(bench, image)
    bench.set_bases(image.bases)
    bench.set_limits(image.limits)
    cycles = bench.run(image.insn_addr, image.insn_count).cycles
    bench.close()
    assert cycles is not None
    stop = chance.randrange(cycles + 4)
    return Disturbed(
        "reset", image, timing, memory, 10_000, stop=stop, by_line=chance.random() < 0.2
    )


def _stuck(chance: random.Random, config: Config) -> Disturbed:
    """A memory that periodically stalls for longer than the watchdog's timeout."""
    image = _program(chance, config)
    moving, stuck = chance.randint(80, 1500), chance.randint(2500, 6000)
    timing = replace(
        memory_timing(f"random:{chance.randrange(1 << 16)}"),
        seed=None,
        latency=chance.choice((4, 48)),
        refresh_period=moving + stuck,
        refresh_stall=stuck,
    )
    return Disturbed("stuck memory", image, timing, _around(image), chance.randint(60, 2000))


def _ends(chance: random.Random, config: Config) -> Disturbed:
    """A memory that ends or begins anywhere within the program's data or instructions, so that any
    beat of a burst may get an error response, SLVERR or DECERR.
    """
    image = _program(chance, config)
    size = _memory_size(image)
    border = image.origin + chance.randrange(1, image.dram.size // _UNIT) * _UNIT
    ends_there = chance.random() < 0.5 and border >= size
    start = border - size if ends_there else min(border, config.dram_bytes - size)
    memory = range(start, start + size)
    return Disturbed("end of memory", image, _timing(chance), memory, 10_000)


def _gap(chance: random.Random, config: Config) -> Disturbed:
    """A memory that lacks one bus word, which may be any beat of a burst or of an element that the
    program loads or stores.
    """
    image = _program(chance, config)
    transfers = [transfer_of(config, bits) for bits in image.instruction_bits()]
    transfer = chance.choice([item for item in transfers if item is not None])
    memory = isa.Memory(transfer.memory)
    size = config.memory(memory).element_bytes
    row, column = chance.randrange(transfer.y_size), chance.randrange(transfer.x_size)
    element = transfer.dram_base + row * transfer.x_stride + column
    base = image.bases.get(isa.limited_as(memory), 0)
    word = (base + element * size + chance.randrange(size)) // config.bus_bytes * config.bus_bytes
    gap = range(word, word + config.bus_bytes)
    return Disturbed("missing word", image, _timing(chance), _around(image), 10_000, gap=gap)


def _flip(chance: random.Random, config: Config) -> Disturbed:
    """Up to eight flipped bits in the instruction stream, sometimes also in the 4 KiB before it."""
    image = _program(chance, config)
    dram = image.dram.copy()
    stream = 8 * (image.insn_addr - image.origin)
    for _ in range(chance.randint(1, 8)):
        anywhere = chance.random() < 0.3
        bit = chance.randrange(stream - 8 * 4096 if anywhere else stream, 8 * dram.size)
        dram[bit // 8] ^= 1 << bit % 8
    flipped = replace(image, dram=dram)
    return Disturbed("flipped bits", flipped, _timing(chance), _around(image), 10_000)


def _garbage(chance: random.Random, config: Config) -> Disturbed:
    """A stream of random bits, random fields, or shuffled or corrupted instructions of a program;
    sometimes with a random start address.
    """
    image = _program(chance, config)
    words = image.instruction_bits()
    codes = [*isa.instruction_set(config).layouts]
    makers: list[Callable[[], int]] = [
        lambda: chance.getrandbits(isa.INSTRUCTION_WIDTH),
        lambda: chance.getrandbits(isa.INSTRUCTION_WIDTH - 3) << 3 | chance.choice(codes),
        lambda: chance.choice(words),
        lambda: chance.choice(words) ^ 1 << chance.randrange(isa.INSTRUCTION_WIDTH),
    ]
    chosen = chance.sample(makers, chance.randint(1, len(makers)))
    stream = b"".join(
        chance.choice(chosen)().to_bytes(isa.INSTRUCTION_BYTES, "little") for _ in words
    )
    dram = image.dram.copy()
    first = image.insn_addr - image.origin
    dram[first : first + len(stream)] = np.frombuffer(stream, np.uint8)
    garbage = replace(image, dram=dram)
    if chance.random() < 0.2:
        at = image.origin + chance.randrange(dram.size // isa.INSTRUCTION_BYTES) * 16
        most = (image.origin + dram.size - at) // isa.INSTRUCTION_BYTES
        garbage = replace(garbage, insn_addr=at, insn_count=chance.randint(0, most))
    return Disturbed("garbage", garbage, _timing(chance), _around(image), 10_000)


_MAKERS: dict[str, Callable[[random.Random, Config], Disturbed]] = {
    "reset": _reset,
    "stuck memory": _stuck,
    "end of memory": _ends,
    "missing word": _gap,
    "flipped bits": _flip,
    "garbage": _garbage,
}
KINDS = tuple(_MAKERS)
