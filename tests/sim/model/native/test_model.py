"""The compiled model against the clear model: every byte, every report."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import (
    Alu,
    AluOp,
    Depthwise,
    Finish,
    Gemm,
    Instruction,
    Load,
    Memory,
    Multiply,
    Store,
    Uop,
)
from amaranth_vta.sim.model.machine import ClearModel
from amaranth_vta.sim.model.native.model import NativeModel, available_vectors
from amaranth_vta.sim.programs.faults import FAULT_KINDS, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import random_program
from amaranth_vta.sw.runtime.device import Fault, Limits
from tests.support.corners import CORNERS
from tests.support.golden import VECTORS
from tests.support.machines import others_nightly
from tests.support.seeds import each_seed

VECTOR_FILES = sorted(VECTORS.glob("*.npz"))
CONFIGS = (
    PRESETS
    | CORNERS
    | {
        path.stem.partition("-")[0]: ProgramImage.load(path).config
        for path in VECTOR_FILES
        if path.stem.endswith("-1")
    }
    | {"int4 that forwards": replace(PRESETS["int4"], forward=1)}
)
# All scalar widths, tile shapes and extensions. One library serves all machines.
DAILY = (
    *("tiny", "batch2", "int4 that forwards", "tiny-extended", "pynq-extended"),
    *("smallest", "largest tiles", "int4 4x8", "acc16", "bus256", "asym"),
)
LENGTH = 300  # of random programs, in instructions: 110,000 for all seeds and configurations


class Pair:
    """The clear model and the compiled model for each host instruction set, run in lockstep."""

    def __init__(self, config: Config, memory: np.ndarray) -> None:
        self.memories = [memory.copy()]
        self.clear = ClearModel(config, self.memories[0])
        self.native = []
        for vectors in available_vectors():
            self.memories.append(memory.copy())
            self.native.append(NativeModel(config, self.memories[-1], vectors))

    def set_limits(self, limits: Limits) -> None:
        self.clear.set_limits(limits)
        for native in self.native:
            native.set_limits(limits)

    def agree(self, insn_addr: int, insn_count: int) -> bool:
        """Whether a run ends equally on all models: report, counters, memory and accumulators."""
        expected = self.clear.run(insn_addr, insn_count, None)
        accumulators = self.clear.executor.acc.tiles
        return all(
            native.run(insn_addr, insn_count, None) == expected
            and np.array_equal(memory, self.memories[0])
            and np.array_equal(native.accumulators, accumulators)
            for native, memory in zip(self.native, self.memories[1:], strict=True)
        )


@pytest.mark.parametrize("path", VECTOR_FILES, ids=lambda path: path.stem)
def test_vectors_give_the_same(path: Path) -> None:
    image = ProgramImage.load(path)
    pair = Pair(image.config, image.dram)
    assert pair.agree(image.insn_addr, image.insn_count)
    # Again, with the scratchpads and memory of the first run.
    assert pair.agree(image.insn_addr, image.insn_count)


@each_seed(range(9), daily=1)
@pytest.mark.parametrize("name", others_nightly(CONFIGS, DAILY.__contains__))
def test_random_programs_give_the_same(name: str, seed: int) -> None:
    image = random_program(CONFIGS[name], seed, LENGTH, deep_tokens=seed == 0)
    assert Pair(image.config, image.dram).agree(image.insn_addr, image.insn_count)


@each_seed(range(2), daily=1)
@pytest.mark.parametrize("name", others_nightly(CONFIGS, DAILY.__contains__))
def test_faulty_programs_give_the_same_report_and_a_machine_that_goes_on(
    name: str, seed: int
) -> None:
    config = CONFIGS[name]
    good = random_program(config, 99)
    for kind in FAULT_KINDS:
        image, _ = random_faulty_program(config, kind, seed)
        room = max(image.dram.size, good.dram.size)
        pair = Pair(config, np.resize(image.dram, room))
        pair.set_limits(image.limits)
        assert pair.agree(image.insn_addr, image.insn_count), kind
        for memory in pair.memories:
            memory[: good.dram.size] = good.dram
        pair.set_limits({})
        assert pair.agree(good.insn_addr, good.insn_count), kind


def test_streams_of_any_bits_give_the_same() -> None:
    """Instructions of sparse random bits, most of them faulty, which no compiler would emit."""
    chance = random.Random(1)
    for name, config in CONFIGS.items():
        finish = isa.instruction_set(config).encode(Finish())
        for _ in range(60):
            words = [_sparse(chance) for _ in range(chance.randrange(1, 8))] + [finish]
            image = ProgramImage.assemble(config, np.zeros(0x4000, np.uint8), 0x3000, words)
            assert Pair(config, image.dram).agree(image.insn_addr, image.insn_count), (name, words)


@pytest.mark.parametrize("name", ["tiny", "tiny-extended"])
def test_each_bit_of_an_instruction_gives_the_same(name: str) -> None:
    """Legal instructions with one flipped bit cover the meaning of each field and the legality
    rules.
    """
    config = CONFIGS[name]
    encode = isa.instruction_set(config).encode
    instructions = [LOAD, GEMM, STORE, Load(memory=Memory.ACC), Alu(alu_opcode=0, uop_end=0)]
    if config.pad_value:
        instructions += [isa.set_padding(padding, 5) for padding in isa.Padding]
        instructions += [Multiply(uop_end=0), Alu(alu_opcode=AluOp.REQUANTIZE, uop_end=0)]
        instructions.append(Alu(alu_opcode=AluOp.MULTIPLY_ADD, uop_end=1))
    pair = Pair(config, np.zeros(0x1000, np.uint8))
    for instruction in instructions:
        for bit in range(isa.INSTRUCTION_WIDTH):
            words = [encode(instruction) ^ 1 << bit, encode(Finish())]
            raw = b"".join(word.to_bytes(16, "little") for word in words)
            for memory in pair.memories:
                memory[: len(raw)] = np.frombuffer(raw, np.uint8)
            assert pair.agree(0, 2), (instruction, bit)


def _sparse(chance: random.Random) -> int:
    bits = chance.getrandbits(128)
    for _ in range(chance.randrange(6)):
        bits &= chance.getrandbits(128)
    return bits & ~7 | chance.randrange(8)


@pytest.mark.parametrize("name", others_nightly(CONFIGS, DAILY.__contains__))
def test_long_loops_give_the_same(name: str) -> None:
    """Micro-ops over whole scratchpads of random contents; destinations that repeat, that are
    distinct, and that overlap; more iterations than one batch of the model.
    """
    config = CONFIGS[name]
    chance = random.Random(name)
    for number in range(40):
        instruction, uops = _random_loops(config, chance, long=number == 0)
        pair = Pair(config, _loops_image(config, instruction, uops))
        assert pair.agree(0, 3), instruction


def _random_loops(
    config: Config, chance: random.Random, long: bool
) -> tuple[Instruction, list[Uop]]:
    kinds = [Gemm, Gemm, Alu]
    if config.overwrite:
        kinds.append(Multiply)
    if config.depthwise:
        kinds.append(Depthwise)
    operations = [*isa.BASE_ALU_OPS, *([AluOp.REQUANTIZE] * 3 if config.requantize else [])]
    operations += [AluOp.MULTIPLY_ADD] * 3 if config.multiply_add else []
    kind = chance.choice(kinds)
    iterations = (chance.randrange(130, 180), chance.randrange(120, 160)) if long else (40, 40)
    sizes = [1 if chance.random() < 0.2 else chance.randrange(1, most + 1) for most in iterations]
    names = [field.name for field in fields(kind) if "factor" in field.name]
    depths = {
        "dst": config.acc.depth,
        "src": config.inp.depth if kind is not Alu else max(config.acc.depth - 3, 1),
        "wgt": config.wgt.depth,
    }
    if kind is Depthwise:
        depths["src"] -= config.taps - 1
    factors = {}
    # Elements of each memory that remain for the indices of micro-ops.
    for name in names:
        which, size = name[:3], sizes[name.endswith("_in")]
        most = (depths[which] - 1) // (2 * max(size - 1, 1))
        factor = (
            chance.choice((0, 0, 1, 2, 4, most))
            if which != "dst"
            else chance.choice((0, 1, 1, 2, 4, size, most))
        )
        factors[name] = min(factor, most)
        depths[which] -= factors[name] * (size - 1)
    count = chance.choice((1, 2, 3, 9, 30)) if not long else 2
    dense = chance.random() < 0.5
    uops = [
        Uop(
            dst=min(at if dense else chance.randrange(depths["dst"]), depths["dst"] - 1),
            src=chance.randrange(depths["src"]),
            wgt=chance.randrange(depths["wgt"]),
        )
        for at in range(min(count, config.uop.depth))
    ]
    if chance.random() < 0.5:
        same = uops[0].dst
        uops = [replace(uop, dst=same) for uop in uops]
    if kind is Alu:
        operation = chance.choice(operations)
        immediate = operation in isa.BASE_ALU_OPS and chance.random() < 0.5
        options = {
            "alu_opcode": operation,
            "use_immediate": int(immediate),
            "immediate": chance.choice((chance.randrange(-(1 << 15), 1 << 15), 3, -5)),
        }
        if operation is AluOp.MULTIPLY_ADD:
            options["immediate"] = isa.factor_immediate(chance.randrange(config.acc.depth))
    else:
        options = {"reset": int(kind is Gemm and chance.random() < 0.1)}
    instruction = kind(uop_end=len(uops), iter_out=sizes[0], iter_in=sizes[1], **factors, **options)
    return instruction, uops


def _encoded(config: Config, program: Sequence[Instruction]) -> np.ndarray:
    encode = isa.instruction_set(config).encode
    return np.frombuffer(b"".join(encode(i).to_bytes(16, "little") for i in program), np.uint8)


def _loops_image(config: Config, instruction: Instruction, uops: Sequence[Uop]) -> np.ndarray:
    """A program of three instructions at 0, and its micro-ops."""
    at = 64
    program = [
        Load(memory=Memory.UOP, x_size=len(uops), dram_base=at // 4),
        instruction,
        Finish(),
    ]
    instruction_set = isa.instruction_set(config)
    words = _encoded(config, program).tobytes()
    words += bytes(at - len(words))
    words += b"".join(instruction_set.encode_uop(uop).to_bytes(4, "little") for uop in uops)
    return np.frombuffer(words + bytes(-len(words) % 64), np.uint8)


def test_requantization_near_halves_gives_the_same() -> None:
    """Products at or near a tie, closer to it and farther from it than float32 resolves, rounded in
    each way.
    """
    config = PRESETS["pynq-extended"]
    numbers = np.random.default_rng(1)
    rows, lanes = 60, config.block_out
    requantize = Alu(alu_opcode=AluOp.REQUANTIZE, uop_end=1, iter_in=rows, dst_factor_in=1)
    uop = Uop(dst=isa.REQUANTIZE_PARAMETERS, src=0)
    for number in range(60):
        factor = numbers.integers(1, 1 << numbers.integers(2, 25, lanes))
        half = numbers.integers(0, 128, lanes) + 0.5
        scale = np.rint(half / factor * 2.0**isa.SCALE_FRACTION).astype(np.int64)
        scale = np.clip(scale + numbers.integers(-1, 2, lanes), 0, (1 << 49) - 1)
        wide = number % 4 == 3
        bounds = numbers.integers(0, 256, (3, lanes)) << np.array([[0], [8], [16]])
        rounding = numbers.integers(0, 32, lanes) << isa.ROUND_TWICE_BIT
        parameters = [
            numbers.integers(-3, 4, lanes),
            scale & 0xFFFFFFFF,
            scale >> 32,
            bounds.sum(axis=0) | wide << isa.WIDE_BIT | rounding,
        ]
        near = numbers.integers(-2, 3, (rows, lanes)) - parameters[0]
        signs = numbers.choice((-1, 1), (rows, lanes))
        accumulators = signs * (factor << 7 * wide) + near
        words = np.concatenate((parameters, accumulators)).astype(np.uint32)
        image = _loops_image(config, requantize, [uop])
        at = -(-image.size // config.acc.element_bytes)
        memory = np.zeros((at + len(words)) * config.acc.element_bytes, np.uint8)
        memory[: image.size] = image
        memory[at * config.acc.element_bytes :] = words.reshape(-1).view(np.uint8)
        program = [
            Load(memory=Memory.UOP, x_size=1, dram_base=64 // 4),
            Load(memory=Memory.ACC, x_size=len(words), dram_base=at),
            requantize,
            Finish(),
        ]
        memory[:64] = _encoded(config, program)
        assert Pair(config, memory).agree(0, len(program)), number


def test_requantization_of_its_own_parameters_gives_the_same() -> None:
    config = PRESETS["tiny-extended"]
    for parameters in range(16):
        for loops in ({"iter_in": 12, "dst_factor_in": 1}, {"iter_out": 12, "dst_factor_out": 1}):
            instruction = Alu(alu_opcode=AluOp.REQUANTIZE, uop_end=1, **loops)
            image = _loops_image(config, instruction, [Uop(dst=2, src=parameters)])
            assert Pair(config, image).agree(0, 3), instruction


def test_multiply_add_by_any_factor_gives_the_same() -> None:
    """Factors that the instruction itself writes, other factors, and factors beyond the depth."""
    config = PRESETS["tiny-extended"]
    depth = config.acc.depth
    loops = {"iter_in": 12, "dst_factor_in": 1, "iter_out": 3, "src_factor_out": 1}
    for factor in (*range(16), depth - 1, depth, 2 * depth, (1 << 15) + 1, (1 << 16) - 1):
        for source in (0, 1, 2, 3, 40):
            instruction = Alu(
                alu_opcode=AluOp.MULTIPLY_ADD,
                immediate=isa.factor_immediate(factor),
                uop_end=1,
                src_factor_in=int(source < 40),
                **loops,
            )
            image = _loops_image(config, instruction, [Uop(dst=2, src=source)])
            pair = Pair(config, image)
            assert pair.agree(0, 3), instruction
            assert pair.clear.executor.counters["alu_uops"] == (36 if factor < depth else 0)


def test_a_run_can_be_stopped_in_the_middle_of_an_instruction() -> None:
    config = PRESETS["tiny"]
    endless = Gemm(uop_end=2, iter_out=(1 << 14) - 1, iter_in=(1 << 14) - 1)
    for vectors in available_vectors():
        memory = _loops_image(config, endless, [Uop(), Uop()]).copy()
        model = NativeModel(config, memory, vectors)
        outcome = model.run(0, 3, 0.01)
        assert outcome.fault == Fault("compute", 1, "timeout")
        assert 0 < outcome.counters["gemm_uops"] < endless.uops
        short = _loops_image(config, Gemm(uop_end=2), [Uop(), Uop()])
        memory[: short.size] = short
        assert model.run(0, 3, None).fault is None


def test_a_signal_interrupts_a_long_instruction() -> None:
    config = PRESETS["tiny"]
    endless = Gemm(uop_end=2, iter_out=(1 << 14) - 1, iter_in=(1 << 14) - 1)
    model = NativeModel(config, _loops_image(config, endless, [Uop(), Uop()]).copy())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.run(0, 3, None)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert model.run(0, 1, None).fault == Fault("fetch", 0, "bad_stream")


LOAD, GEMM, STORE = Load(memory=Memory.INP, x_size=0), Gemm(uop_end=0), Store(x_size=0)


def test_full_queues_give_the_same() -> None:
    """Instructions that wait for later ones: up to the depth of a queue, and beyond it."""
    blocked_and_freeing: list[tuple[Instruction, Instruction]] = [
        (replace(LOAD, pop_next=1), replace(GEMM, push_prev=1)),
        (replace(GEMM, pop_prev=1), replace(LOAD, push_next=1)),
        (replace(GEMM, pop_next=1), replace(STORE, push_prev=1)),
        (replace(STORE, pop_prev=1), replace(GEMM, push_next=1)),
    ]
    for blocked, freeing in blocked_and_freeing:
        for count in range(isa.QUEUE_DEPTH - 2, isa.QUEUE_DEPTH + 3):
            waiting = [blocked] * count
            for program in (
                [*waiting, *[freeing] * count, Finish()],
                [*waiting, Finish(), *[freeing] * count, Finish()],
                waiting,
            ):
                memory = _encoded(PRESETS["tiny"], program)
                pair = Pair(PRESETS["tiny"], memory)
                assert pair.agree(0, len(program)), (blocked, count)
                assert pair.agree(0, len(program) + 9), (blocked, count)


def test_programs_and_micro_ops_that_change_give_the_same() -> None:
    """In each run, a STORE replaces a later instruction and the host changes a micro-op: nothing
    cached from an earlier run may be used.
    """
    config, uop, data, replaced = PRESETS["tiny"], 0x400, 0x800, 4
    program: list[Instruction] = [
        Load(memory=Memory.UOP, dram_base=uop // 4),
        Load(memory=Memory.ACC, dram_base=data // 16, x_size=4, push_next=1),
        Store(dram_base=replaced * 16 // 4, x_size=4, pop_prev=1, push_prev=1),
        replace(GEMM, pop_next=1),
        GEMM,
        Finish(),
    ]
    words = _encoded(config, program)
    memory = np.zeros(0x1000, np.uint8)
    memory[: words.size] = words
    pair = Pair(config, memory)
    results = set()
    for run in range(1, 5):
        add = Alu(alu_opcode=AluOp.ADD, use_immediate=1, immediate=run, uop_end=1)
        for held in pair.memories:
            held[data : data + 64] = _encoded(config, [add]).astype(np.int32).view(np.uint8)
            held[uop] = run // 3
        assert pair.agree(0, len(program)), run
        results.add(pair.clear.executor.acc.tiles[:2].tobytes())
    assert len(results) == 4


def test_an_instruction_waits_while_more_are_decoded_than_are_kept() -> None:
    config, many = PRESETS["tiny"], 1 << 16
    waiting, freeing = replace(LOAD, pop_next=1), replace(GEMM, push_prev=1)
    nothing = np.tile(_encoded(config, [GEMM]), many)
    ends = (_encoded(config, part) for part in ([waiting], [freeing, Finish()]))
    memory = np.insert(np.concatenate([*ends]), 16, nothing)
    for vectors in available_vectors():
        outcome = NativeModel(config, memory, vectors).run(0, many + 3, None)
        assert outcome.fault is None
        assert outcome.counters["load_instructions"] == 1
        assert outcome.counters["gemm_instructions"] == many + 1


def test_a_race_ends_as_in_program_order() -> None:
    """A load and a store of the same bytes, which can both start once compute has pushed both
    tokens.
    """
    config, shared = PRESETS["tiny"], 0x400
    load = Load(memory=Memory.INP, dram_base=shared // config.inp.element_bytes, pop_next=1)
    store = Store(dram_base=shared // config.out.element_bytes, pop_prev=1)
    results = set()
    for first, second in ((load, store), (store, load)):
        program: list[Instruction] = [
            Load(memory=Memory.UOP, dram_base=0x800 // 4),
            first,
            second,
            replace(GEMM, push_prev=1, push_next=1),
            Gemm(uop_end=1),
            Finish(),
        ]
        memory = np.zeros(0x1000, np.uint8)
        memory[shared : shared + 4] = 1, 2, 3, 4
        words = _encoded(config, program)
        memory[: words.size] = words
        pair = Pair(config, memory)
        assert pair.agree(0, len(program))
        results.add(pair.clear.executor.acc.tiles[0].tobytes())
    assert len(results) == 2


def test_full_token_counters_give_the_same() -> None:
    giving, taking = replace(LOAD, push_next=1), replace(GEMM, pop_prev=1)
    for given in range(isa.TOKEN_LIMIT - 1, isa.TOKEN_LIMIT + 3):
        for taken in (0, 1, given):
            program: list[Instruction] = [*[giving] * given, *[taking] * taken, Finish()]
            memory = _encoded(PRESETS["tiny"], program)
            assert Pair(PRESETS["tiny"], memory).agree(0, len(program)), (given, taken)


def test_addresses_and_lengths_of_any_size_give_the_same() -> None:
    memory = np.zeros(0x1000, np.uint8)
    for address in (0, 8, 0xFF0, 0x1000, 1 << 62, (1 << 64) - 16, 1 << 64, (1 << 70) + 1):
        for count in (0, 1, 2, 300, 1 << 32, 1 << 70):
            assert Pair(PRESETS["tiny"], memory).agree(address, count), (address, count)
