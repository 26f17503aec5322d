"""Random programs are legal, free of races, and cover the intended cases."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.programs.builder import ProgramBuilder
from amaranth_vta.sim.programs.faults import FAULT_KINDS, random_faulty_program
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.programs.random_programs import legal_program, random_program
from amaranth_vta.sw.runtime.device import Fault
from tests.support.corners import CORNERS
from tests.support.golden import VECTORS
from tests.support.machines import others_nightly
from tests.support.seeds import each_seed
from tests.support.tokens import tokens_of, without_token

CONFIGS = (
    PRESETS
    | CORNERS
    | {
        name: ProgramImage.load(VECTORS / f"{name}-corners-1.npz").config
        for name in ("bus128", "deep8x32", "int4out8")
    }
)
# The others differ only in bus, lanes and depths, which do not affect the order of execution.
DAILY = (
    *("tiny", "batch2", "int4", "tiny-extended", "pynq-extended", "smallest", "largest tiles"),
    *("int4 4x8", "acc16", "bus256", "int4out8"),
)
ORDERS = ("program", "reverse", "random:1", "random:2", "last:load", "last:compute", "last:store")


def run(image: ProgramImage, order: str) -> tuple[FunctionalDevice, Fault | None]:
    device = FunctionalDevice(
        image.config,
        image.dram.size,
        order,
        report_uninitialized=True,
        report_races=True,
        report_false_claims=True,
    )
    device.write(0, image.dram)
    return device, device.run(image.insn_addr, image.insn_count).fault


def is_as_expected(image: ProgramImage, device: FunctionalDevice) -> bool:
    assert image.expected is not None
    return np.array_equal(device.read(0, image.dram.size), image.expected)


@each_seed(range(6), daily=2)
@pytest.mark.parametrize("name", others_nightly(CONFIGS, DAILY.__contains__))
def test_random_programs_give_the_same_in_every_order(name: str, seed: int) -> None:
    image = random_program(CONFIGS[name], seed, deep_tokens=seed == 1)
    for order in ORDERS:
        device, fault = run(image, order)
        assert fault is None, order
        assert device.races == [], order
        assert device.false_claims == [], order
        assert device.uninitialized_reads == [], order
        assert is_as_expected(image, device), order


def test_the_same_seed_gives_the_same_program_and_others_give_others() -> None:
    one, again, other = (random_program(PRESETS["tiny"], seed) for seed in (1, 1, 2))
    assert np.array_equal(one.dram, again.dram)
    assert one.dram.size != other.dram.size or not np.array_equal(one.dram, other.dram)


def test_random_programs_reach_everything() -> None:
    config = PRESETS["tiny"]
    decode = isa.instruction_set(config).decode
    seen: Counter[str] = Counter()
    written = {memory: np.zeros(depth, bool) for memory, depth in (("ACC", 128), ("INP", 128))}
    for seed in range(40):
        image = random_program(config, seed, deep_tokens=seed == 0)
        seen[f"address {image.insn_addr % 64}"] += 1
        for bits in image.instruction_bits():
            match decode(bits):
                case isa.Load() as load:
                    seen[isa.Memory(load.memory).name] += 1
                    if load.elements:
                        seen["padding"] += load.y_pad_0 + load.x_pad_1 > 0
                        seen["micro-op padding"] += load.x_pad_0 > 0 and load.memory == 0
                        seen["padding alone"] += load.y_size == 0
                        seen["overlap"] += load.y_size > 1 and load.x_stride < load.x_size
                        name = isa.Memory(load.memory).name
                        if name in written:
                            written[name][load.sram_base : load.sram_base + load.elements] = True
                    else:
                        seen["empty load"] += 1
                case isa.Store() as store:
                    seen["STORE"] += 1
                    seen["empty store"] += store.elements == 0
                    seen["overlapping store"] += store.y_size > 1 and store.x_stride < store.x_size
                case isa.Gemm() as gemm:
                    seen["empty GEMM"] += gemm.uops == 0
                    seen["reset"] += gemm.reset
                    seen["GEMM"] += gemm.uops > 1
                case isa.Alu() as alu:
                    seen[isa.AluOp(alu.alu_opcode).name] += alu.uops > 0
                    seen["immediate"] += alu.use_immediate
                    seen["register"] += not alu.use_immediate
                case isa.Finish() as finish:
                    seen["FINISH with tokens"] += finish.pop_prev + finish.push_next
    missing = [what for what, count in seen.items() if count < 3]
    assert not missing
    loaded = len(isa.loaded_memories(config.extensions))
    assert len(seen) == 4 + loaded + len(isa.BASE_ALU_OPS) + 14
    # Both ends of a scratchpad.
    for elements in written.values():
        assert elements[0]
        assert elements[-1]


def test_random_programs_use_the_extensions_that_there_are() -> None:
    config = PRESETS["tiny-extended"]
    decode = isa.instruction_set(config).decode
    seen: Counter[str] = Counter()
    for seed in range(20):
        for bits in legal_program(config, seed).instruction_bits():
            instruction = decode(bits)
            if isinstance(instruction, isa.Gemm | isa.Alu) and instruction.uops:
                name = instruction.opcode.name
                if isinstance(instruction, isa.Alu):
                    name = isa.AluOp(instruction.alu_opcode).name
                seen[f"{name}, independent" if instruction.independent else name] += 1
            if isinstance(instruction, isa.SetPadding):
                seen[isa.Padding(instruction.memory).name] += 1
            if isinstance(instruction, isa.Load) and instruction.memory == isa.Memory.WGT_4BIT:
                seen["WGT_4BIT"] += instruction.y_size > 0
    assert seen["WGT_4BIT"] > 3
    names = ("GEMM", "MULTIPLY", "DEPTHWISE", "ADD", "REQUANTIZE", "LOOKUP", "MULTIPLY_ADD")
    for name in names:
        assert seen[name] > 3
        assert seen[f"{name}, independent"] > 3
    for padding in isa.Padding:
        assert seen[padding.name] > 3


def test_random_programs_multiply_by_any_element_of_their_windows() -> None:
    config = PRESETS["tiny-extended"]
    decode = isa.instruction_set(config).decode
    factors: Counter[int] = Counter()
    for seed in range(30):
        for instruction in map(decode, random_program(config, seed).instruction_bits()):
            if isinstance(instruction, isa.Alu) and instruction.uops:
                factors.update([] if instruction.factor is None else [instruction.factor])
    windows = ProgramBuilder(config, random.Random(1)).windows(config.acc)
    elements = {element for window in windows for element in window}
    assert set(factors) <= elements
    assert len(factors) > len(elements) / 2


def test_faulty_programs_multiply_by_elements_past_the_depth() -> None:
    config = PRESETS["tiny-extended"]
    decode = isa.instruction_set(config).decode
    found: Counter[int | None] = Counter()
    for seed in range(30):
        image, fault = random_faulty_program(config, "operand_out_of_range", seed)
        faulty = decode(image.instruction_bits()[fault.instruction])
        if isinstance(faulty, isa.Alu):
            found[faulty.factor] += 1
    del found[None]
    assert sum(found.values()) > 2
    assert all(factor is not None and factor >= config.acc.depth for factor in found)


def test_deep_tokens_are_deep() -> None:
    depths = []
    for seed in range(4):
        image = random_program(PRESETS["tiny"], seed, deep_tokens=True)
        waiting: Counter[object] = Counter()
        events = [(token.giver, token.queue, 1) for token in tokens_of(image)]
        events += [(token.taker, token.queue, -1) for token in tokens_of(image)]
        for _, queue, step in sorted(events, key=lambda event: event[0]):
            waiting[queue] += step
            depths.append(waiting[queue])
    assert max(depths) > 150


@pytest.mark.parametrize(
    ("name", "seed"), [("tiny", 13), pytest.param("batch2", 5, marks=pytest.mark.nightly)]
)
def test_each_token_of_a_program_is_needed_or_proved_redundant(name: str, seed: int) -> None:
    image = random_program(PRESETS[name], seed, length=40)
    tokens = tokens_of(image)
    outcomes: Counter[str] = Counter()
    for token in tokens:
        shortened = without_token(image, token)
        assert shortened.insn_count == image.insn_count
        runs = [run(shortened, order) for order in ORDERS]
        # Removing a push together with its pop cannot cause a deadlock.
        assert all(fault is None for _, fault in runs)
        races = [device.races for device, _ in runs]
        differs = any(
            not is_as_expected(shortened, device) or device.uninitialized_reads
            for device, _ in runs
        )
        # The races found do not depend on the order of execution.
        assert len({bool(found) for found in races}) == 1, str(token)
        if not races[0]:
            # Proved redundant: all conflicting accesses are still ordered.
            assert not differs, str(token)
            outcomes["redundant"] += 1
        else:
            outcomes["seen in the results" if differs else "a race without effect"] += 1
    assert outcomes["redundant"] > 0
    assert outcomes["seen in the results"] >= 10, outcomes
    assert outcomes["seen in the results"] >= 2 * outcomes["a race without effect"], outcomes


def test_a_token_that_is_never_pushed_ends_the_same_in_every_order() -> None:
    image = random_program(PRESETS["tiny"], seed=11, length=20)
    fields = isa.instruction_set(image.config).layouts[isa.Opcode.FINISH]
    outcomes: Counter[str | None] = Counter()
    for token in tokens_of(image):
        bits = image.instruction_bits()
        name = "push_next" if token.queue[0] < token.queue[1] else "push_prev"
        bits[token.giver] &= ~fields[name].insert(1)
        changed = ProgramImage.assemble(image.config, image.dram, image.insn_addr, bits)
        faults = {run(changed, order)[1] for order in ORDERS}
        assert len(faults) == 1, str(token)
        outcomes.update(None if fault is None else fault.cause for fault in faults)
    # If tokens are left over at the end, a later token may replace the missing one.
    assert set(outcomes) <= {None, "deadlock"}
    assert outcomes["deadlock"] > 10


def test_a_token_names_the_instructions_that_push_and_pop_it() -> None:
    config = PRESETS["tiny"]
    program = [
        isa.Load(memory=isa.Memory.INP, push_next=1),
        isa.Gemm(uop_end=0, push_prev=1),
        isa.Gemm(uop_end=0, pop_prev=1, push_next=1),
        isa.Store(x_size=0, pop_prev=1, push_prev=1),
        isa.Load(memory=isa.Memory.INP, pop_next=1, push_next=1),
        isa.Finish(pop_next=1),
    ]
    image = ProgramImage.assemble(config, np.zeros(256, np.uint8), 0, program)
    tokens = tokens_of(image)
    assert [(token.number, token.giver, token.taker) for token in tokens] == [
        (0, 0, 2),
        (0, 1, 4),
        (0, 2, 3),
        (0, 3, 5),
    ]
    assert str(tokens[1]) == ("token 0 from compute to load, given by instruction 1, taken by 4")
    decode = isa.instruction_set(config).decode
    for token in tokens:
        changed = [decode(bits) for bits in without_token(image, token).instruction_bits()]
        differing = [
            index for index, (a, b) in enumerate(zip(program, changed, strict=True)) if a != b
        ]
        assert differing == sorted((token.giver, token.taker))
        assert tokens_of(without_token(image, token)) == [
            other for other in tokens if other != token
        ]


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_faulty_programs_are_reported_the_same_in_every_order(kind: str) -> None:
    for name in ("tiny", "batch2", "int4", "pynq", "tiny-extended"):
        for seed in range(3):
            image, fault = random_faulty_program(PRESETS[name], kind, seed)
            assert fault.cause in kind or (kind, fault.cause) in {
                ("transfer_out_of_range", "index_out_of_range"),
                ("transfer_out_of_bounds", "bus_error"),
                ("uop_out_of_range", "index_out_of_range"),
                ("operand_out_of_range", "index_out_of_range"),
                ("finish_before_the_end", "bad_stream"),
                ("no_finish_at_the_end", "bad_stream"),
            }
            assert image.expected is None
            for order in ORDERS:
                device = FunctionalDevice(image.config, image.dram.size, order)
                device.write(0, image.dram)
                device.set_limits(image.limits)
                assert device.run(image.insn_addr, image.insn_count).fault == fault, (seed, order)
