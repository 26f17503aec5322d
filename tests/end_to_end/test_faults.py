"""Each fault on the model and on the RTL: its report, and what other modules still do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    Store,
    Uop,
)
from amaranth_vta.sim.devices import DeviceError, open_device
from amaranth_vta.sw.runtime.device import Device, Fault

CONFIG = PRESETS["tiny"]  # depths: 256 uops, 128 INP, 64 WGT, 128 ACC
EXTENDED = PRESETS["tiny-extended"]  # the same, with all extensions
MEMORY = 0x20000
PROGRAM = 0x8000
RESULT = 0x4000
ORDERS = ("program", "reverse", "random:1", "last:load", "last:compute", "last:store")
ISA = isa.instruction_set(CONFIG)

load = Load(memory=Memory.INP, x_size=1)
idle_load = Load(memory=Memory.INP, x_size=0)
idle_compute = Gemm(uop_end=0)
idle_store = Store(x_size=0)
finish = Finish()
uops = Load(memory=Memory.UOP, x_size=4)


def with_flags(instruction: Instruction, **flags: int) -> Instruction:
    return type(instruction)(**{**vars(instruction), **flags})


@dataclass(frozen=True)
class Way:
    """How a device runs its programs: the model's order, the RTL's memory."""

    order: str = "program"
    dram: str = "ideal"


class Machines:
    """Fresh machines of one kind, which run each program in several ways."""

    def __init__(self, device: str, ways: Sequence[Way], config: Config = CONFIG) -> None:
        self.device = device
        self.config = config
        self.ways = ways

    def run(
        self,
        *instructions: Instruction | int,
        uop_table: Sequence[Uop] = (),
        address: int = PROGRAM,
        insn_count: int | None = None,
    ) -> list[tuple[Fault | None, Device]]:
        """Runs a program on zeroed memory with ``uop_table`` at byte 0."""
        dram = np.zeros(MEMORY, np.uint8)
        instruction_set = isa.instruction_set(self.config)
        encode = instruction_set.encode
        table = np.array([instruction_set.encode_uop(uop) for uop in uop_table], "<u4")
        dram[: table.nbytes] = table.view(np.uint8)
        stream = b"".join(
            (item if isinstance(item, int) else encode(item)).to_bytes(16, "little")
            for item in instructions
        )
        results = []
        for way in self.ways:
            device = open_device(self.device, self.config, MEMORY, dram=way.dram, order=way.order)
            device.write(0, dram)
            if stream:
                device.write(address, stream)
            count = len(instructions) if insn_count is None else insn_count
            results.append((device.run(address, count, time_limit=60).fault, device))
        return results

    def fault_of(
        self,
        *instructions: Instruction | int,
        uop_table: Sequence[Uop] = (),
        address: int = PROGRAM,
        insn_count: int | None = None,
    ) -> str | None:
        """The fault as ``module index cause``, which must not depend on the device or order of
        execution.
        """
        results = self.run(
            *instructions, uop_table=uop_table, address=address, insn_count=insn_count
        )
        faults = {fault for fault, _ in results}
        assert len(faults) == 1
        fault = faults.pop()
        return None if fault is None else f"{fault.module} {fault.instruction} {fault.cause}"


def machines_of(device: str, config: Config) -> Machines:
    if device == "functional":
        return Machines(device, [Way(order=order) for order in ORDERS], config)
    return Machines(device, [Way(dram=dram) for dram in ("ideal", "random:1")], config)


@pytest.fixture(params=["functional", "rtl"])
def machines(request: pytest.FixtureRequest) -> Machines:
    return machines_of(request.param, CONFIG)


@pytest.fixture(params=["functional", "rtl"])
def extended(request: pytest.FixtureRequest) -> Machines:
    return machines_of(request.param, EXTENDED)


ILLEGAL: dict[str, tuple[Instruction | int, str]] = {
    "opcode 5": (5, "compute"),
    "opcode 7 with every bit set": ((1 << 128) - 1, "compute"),
    "load of OUT": (Load(memory=Memory.OUT), "compute"),
    "load of memory 6": (Load(memory=6), "compute"),
    "load of memory 7": (Load(memory=7), "compute"),
    "load with reserved bits": (Load(memory=Memory.INP, reserved=32), "load"),
    "load of micro-ops with reserved bits": (Load(memory=Memory.UOP, reserved=1), "compute"),
    "load popping prev": (Load(memory=Memory.WGT, pop_prev=1), "load"),
    "load pushing prev": (Load(memory=Memory.INP, push_prev=1), "load"),
    "store popping next": (Store(pop_next=1), "store"),
    "store pushing next": (Store(push_next=1), "store"),
    "store of INP": (Store(memory=Memory.INP), "store"),
    "store of ACC_8BIT": (Store(memory=Memory.ACC_8BIT), "store"),
    "store with reserved bits": (Store(reserved=1), "store"),
    "store with y_pad_0": (Store(y_pad_0=1), "store"),
    "store with y_pad_1": (Store(y_pad_1=1), "store"),
    "store with x_pad_0": (Store(x_pad_0=1), "store"),
    "store with x_pad_1": (Store(x_pad_1=1), "store"),
    "store with pads and no rows": (Store(x_size=0, x_pad_1=1), "store"),
    "ALU opcode 5": (Alu(uop_end=0, alu_opcode=5), "compute"),
    "ALU opcode 7": (Alu(uop_end=0, alu_opcode=7), "compute"),
    "GEMM with an unused bit": (ISA.encode(Gemm(uop_end=0)) | 1 << 127, "compute"),
    "ALU with an unused bit": (
        ISA.encode(Alu(uop_end=0, alu_opcode=AluOp.ADD)) | 1 << 127,
        "compute",
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal_instructions_fault_in_the_module_they_go_to(machines: Machines, name: str) -> None:
    instruction, module = ILLEGAL[name]
    assert machines.fault_of(load, instruction, load, finish) == f"{module} 1 illegal_instruction"


def test_legality_is_checked_before_tokens_and_tokens_before_indices(machines: Machines) -> None:
    assert (
        machines.fault_of(Load(memory=Memory.INP, reserved=1, pop_next=1), finish)
        == "load 0 illegal_instruction"
    )
    beyond = Load(memory=Memory.INP, sram_base=128, x_size=1, pop_next=1)
    assert machines.fault_of(beyond, finish) == "load 0 deadlock"
    assert (
        machines.fault_of(beyond, Gemm(uop_end=0, push_prev=1), finish)
        == "load 0 index_out_of_range"
    )


def test_other_bits_of_finish_are_ignored(machines: Machines) -> None:
    assert machines.fault_of(load, ISA.encode(finish) | 1 << 127 | 1 << 64 | 1 << 7) is None


@pytest.mark.parametrize(
    ("memory", "depth", "module"),
    [
        (Memory.INP, 128, "load"),
        (Memory.WGT, 64, "load"),
        (Memory.UOP, 256, "compute"),
        (Memory.ACC, 128, "compute"),
        (Memory.ACC_8BIT, 128, "compute"),
    ],
)
def test_loads_past_the_depth_are_out_of_range(
    machines: Machines, memory: Memory, depth: int, module: str
) -> None:
    def load_of(**fields: int) -> Load:
        return Load(memory=memory, **fields)

    wrong = f"{module} 1 index_out_of_range"
    assert machines.fault_of(load, load_of(sram_base=depth - 1, x_size=1), finish) is None
    assert machines.fault_of(load, load_of(sram_base=depth - 1, x_size=2), finish) == wrong
    assert machines.fault_of(load, load_of(sram_base=depth, x_size=1), finish) == wrong
    assert machines.fault_of(load, load_of(sram_base=0xFFFF, x_size=1), finish) == wrong
    assert machines.fault_of(
        load, load_of(sram_base=depth - 3, x_size=1, x_pad_0=1, x_pad_1=1), finish
    ) is (None)
    assert (
        machines.fault_of(
            load, load_of(sram_base=depth - 3, x_size=1, x_pad_0=1, x_pad_1=2), finish
        )
        == wrong
    )
    assert machines.fault_of(
        load, load_of(sram_base=depth - 3, x_size=1, y_pad_0=1, y_pad_1=1), finish
    ) is (None)
    assert (
        machines.fault_of(load, load_of(sram_base=depth - 2, x_size=1, y_pad_1=2), finish) == wrong
    )
    # Rows of padding alone count too; no rows, or x_size = 0, never count.
    assert (
        machines.fault_of(load, load_of(sram_base=depth, y_size=0, x_size=1, y_pad_0=1), finish)
        == wrong
    )
    assert (
        machines.fault_of(load, load_of(sram_base=0xFFFF, y_size=0, x_size=0xFFFF), finish) is None
    )
    nothing = load_of(sram_base=0xFFFF, x_size=0, y_size=0xFFFF, x_pad_0=15, y_pad_0=15)
    assert machines.fault_of(load, nothing, finish) is None


def test_stores_past_the_depth_are_out_of_range(machines: Machines) -> None:
    def store(**fields: int) -> Store:
        return Store(dram_base=RESULT // 4, **fields)

    acc = Load(memory=Memory.ACC, x_size=128, push_next=1)
    wrong = "store 1 index_out_of_range"
    assert machines.fault_of(acc, store(sram_base=126, x_size=2, pop_prev=1), finish) is None
    assert machines.fault_of(acc, store(sram_base=127, x_size=2, pop_prev=1), finish) == wrong
    assert (
        machines.fault_of(acc, store(sram_base=120, x_size=3, y_size=3, pop_prev=1), finish)
        == wrong
    )
    assert machines.fault_of(acc, store(sram_base=0xFFFF, x_size=0, pop_prev=1), finish) is None
    assert machines.fault_of(acc, store(sram_base=0xFFFF, y_size=0, pop_prev=1), finish) is None


def loops(**fields: int) -> dict[str, int]:
    return {"uop_end": 1, **fields}


def test_gemm_and_alu_indices_that_are_read_are_checked(machines: Machines) -> None:
    last = {"dst": 127, "src": 127, "wgt": 63}

    def outcome(instruction: Instruction, **fields: int) -> str | None:
        return machines.fault_of(uops, instruction, finish, uop_table=[Uop(**fields)])

    wrong = "compute 1 index_out_of_range"
    assert outcome(Gemm(**loops()), **last) is None
    for name in ("dst", "src", "wgt"):
        for factor, iteration in (("factor_in", "iter_in"), ("factor_out", "iter_out")):
            step = loops(**{f"{name}_{factor}": 1, iteration: 2})
            assert outcome(Gemm(**step), **last) == wrong
            once = loops(**{f"{name}_{factor}": 1, iteration: 1})
            assert outcome(Gemm(**once), **last) is None
            # A reset does not read inputs and weights.
            assert outcome(Gemm(**step, reset=1), **last) == (wrong if name == "dst" else None)
            none = loops(**{**step, "iter_out": 0})
            assert outcome(Gemm(**none), **last) is None
    # Both loops together reach the first index out of range: 127 = 97 + 2 * 10 + 5 * 2.
    both = {"iter_out": 3, "iter_in": 6, "dst_factor_out": 10, "dst_factor_in": 2}
    assert outcome(Gemm(**loops(**both)), dst=97) is None
    assert outcome(Gemm(**loops(**both)), dst=98) == wrong
    # An index far out of range does not wrap around.
    far = loops(iter_out=16383, dst_factor_out=127, iter_in=2)
    assert outcome(Gemm(**far)) == wrong
    add = {"alu_opcode": AluOp.ADD}
    assert outcome(Alu(**loops(**add)), dst=127, src=127) is None
    source = loops(**add, src_factor_out=1, iter_out=2)
    assert outcome(Alu(**source), dst=3, src=127) == wrong
    assert outcome(Alu(**source, use_immediate=1), dst=3, src=127) is None
    assert outcome(Alu(**loops(**add, dst_factor_in=1, iter_in=2)), dst=127) == wrong


def test_uop_ranges_past_the_depth_are_out_of_range(machines: Machines) -> None:
    def gemm(begin: int, end: int, **fields: int) -> Gemm:
        return Gemm(uop_begin=begin, uop_end=end, reset=1, **fields)

    table = Load(memory=Memory.UOP, x_size=256)
    assert machines.fault_of(table, gemm(0, 256), finish) is None
    assert machines.fault_of(table, gemm(0, 257), finish) == "compute 1 index_out_of_range"
    assert machines.fault_of(table, gemm(255, 511), finish) == "compute 1 index_out_of_range"
    assert machines.fault_of(table, gemm(0, 257, iter_in=0), finish) is None
    assert machines.fault_of(table, gemm(200, 100), finish) is None


def test_only_the_uops_of_the_range_are_checked(machines: Machines) -> None:
    table = [Uop(dst=127), Uop(dst=0), Uop(dst=127)]
    step = {"reset": 1, "iter_out": 2, "dst_factor_out": 1}
    assert (
        machines.fault_of(uops, Gemm(uop_begin=1, uop_end=2, **step), finish, uop_table=table)
        is None
    )
    assert (
        machines.fault_of(uops, Gemm(uop_begin=1, uop_end=3, **step), finish, uop_table=table)
        == "compute 1 index_out_of_range"
    )


@pytest.mark.parametrize("operation", [AluOp.ADD, AluOp.REQUANTIZE, AluOp.LOOKUP])
def test_all_elements_of_a_source_are_checked(extended: Machines, operation: AluOp) -> None:
    last = EXTENDED.acc.depth - EXTENDED.alu_sources(operation)
    moved = {"iter_out": 2, "src_factor_out": last, "dst_factor_out": 1}
    for more, report in ((0, None), (1, "compute 1 index_out_of_range")):
        further = {"iter_in": 1 + more, "src_factor_in": 1, "dst_factor_in": 2}
        alu = Alu(alu_opcode=operation, uop_end=1, **moved, **further)
        assert extended.fault_of(uops, alu, finish, uop_table=[Uop(0, 0, 0)]) == report


def test_all_taps_of_a_depthwise_product_are_checked(extended: Machines) -> None:
    last = EXTENDED.inp.depth - EXTENDED.taps
    for first, report in ((last, None), (last + 1, "compute 1 index_out_of_range")):
        depthwise = Depthwise(uop_end=1, iter_out=2, src_factor_out=first)
        assert extended.fault_of(uops, depthwise, finish, uop_table=[Uop(0, 0, 0)]) == report


def test_all_bits_of_a_factor_are_checked(extended: Machines) -> None:
    """Including the bits beyond an accumulator's index, one of which is the sign."""

    def outcome(factor: int) -> str | None:
        immediate = isa.factor_immediate(factor)
        alu = Alu(alu_opcode=AluOp.MULTIPLY_ADD, immediate=immediate, uop_end=1)
        return extended.fault_of(uops, alu, finish, uop_table=[Uop(0, 0, 0)])

    depth = EXTENDED.acc.depth
    assert outcome(1) is outcome(depth - 1) is None
    beyond = [1 << bit for bit in range(depth.bit_length() - 1, isa.IMMEDIATE_WIDTH)]
    for factor in (*beyond, 0xFFFF, 0xFFFF - depth + 1, 0x8000 + depth - 1):
        assert outcome(factor) == "compute 1 index_out_of_range", factor


@pytest.mark.parametrize(
    ("memory", "size", "module"),
    [
        (Memory.INP, 4, "load"),
        (Memory.WGT, 16, "load"),
        (Memory.UOP, 4, "compute"),
        (Memory.ACC, 16, "compute"),
        (Memory.ACC_8BIT, 4, "compute"),
    ],
)
def test_reads_beyond_the_memory_are_bus_errors(
    machines: Machines, memory: Memory, size: int, module: str
) -> None:
    end = MEMORY // size
    wrong = f"{module} 1 bus_error"

    def outcome(**fields: int) -> str | None:
        return machines.fault_of(load, Load(memory=memory, **fields), finish)

    assert outcome(dram_base=end - 2, x_size=2) is None
    assert outcome(dram_base=end - 1, x_size=2) == wrong
    assert outcome(dram_base=end, x_size=1) == wrong
    assert outcome(dram_base=(1 << 32) - 1, x_size=1) == wrong  # not wrapped
    assert outcome(dram_base=end - 7, x_size=1, y_size=3, x_stride=3) is None
    assert outcome(dram_base=end - 6, x_size=1, y_size=3, x_stride=3) == wrong
    assert outcome(dram_base=0, x_size=1, y_size=3, x_stride=0xFFFF) == wrong
    # Addresses that are not read are not checked: rows of padding, and empty rows.
    assert outcome(dram_base=end, x_size=1, y_size=0, y_pad_0=2) is None
    assert outcome(dram_base=end, x_size=0) is None
    # Padding does not move the address.
    assert outcome(dram_base=end - 1, x_size=1, x_pad_1=15, y_pad_1=2) is None
    # The index is checked before the address.
    assert outcome(dram_base=end, x_size=9, y_size=100) == f"{module} 1 index_out_of_range"


def test_writes_beyond_the_memory_are_bus_errors(machines: Machines) -> None:
    acc = Load(memory=Memory.ACC, x_size=16, push_next=1)

    def outcome(**fields: int) -> str | None:
        return machines.fault_of(acc, Store(pop_prev=1, **fields), finish)

    end = MEMORY // 4
    assert outcome(dram_base=end - 2, x_size=2) is None
    assert outcome(dram_base=end - 1, x_size=2) == "store 1 bus_error"
    assert outcome(dram_base=end - 3, x_size=1, y_size=2, x_stride=2) is None
    assert outcome(dram_base=end - 2, x_size=1, y_size=2, x_stride=2) == "store 1 bus_error"
    assert outcome(dram_base=(1 << 32) - 1, x_size=1) == "store 1 bus_error"
    assert outcome(dram_base=(1 << 32) - 1, x_size=0) is None


def test_fetch_beyond_the_memory_is_a_bus_error_of_the_first_instruction_beyond(
    machines: Machines,
) -> None:
    def outcome(address: int, insn_count: int) -> str | None:
        room = max(MEMORY - address, 0) // 16
        return machines.fault_of(*[load] * room, address=address, insn_count=insn_count)

    assert outcome(MEMORY - 48, 5) == "fetch 3 bus_error"
    assert outcome(MEMORY - 48, 4) == "fetch 3 bus_error"
    assert outcome(MEMORY - 48, 3) == "fetch 2 bad_stream"
    assert outcome(MEMORY - 1600, 500) == "fetch 100 bus_error"
    assert outcome(MEMORY, 1) == "fetch 0 bus_error"
    assert outcome(1 << 47, 1) == "fetch 0 bus_error"


def test_a_full_token_counter_stalls_only_the_module_that_pushes_to_it(machines: Machines) -> None:
    full = [with_flags(idle_load, push_next=1)] * isa.TOKEN_LIMIT
    assert machines.fault_of(*full, load, finish) is None
    one_more = with_flags(load, push_next=1)
    assert machines.fault_of(*full, one_more, finish) == "load 1023 token_overflow"


def test_bad_streams_are_found_by_fetch(machines: Machines) -> None:
    assert machines.fault_of(load, finish, load, finish) == "fetch 1 bad_stream"
    assert machines.fault_of(finish, finish) == "fetch 0 bad_stream"
    assert machines.fault_of(load, load, load) == "fetch 2 bad_stream"
    assert machines.fault_of(load, 7) == "fetch 1 bad_stream"
    assert machines.fault_of(finish) is None
    assert machines.fault_of() == "fetch 0 bad_stream"


def test_a_misaligned_stream_is_bad_whatever_it_holds(machines: Machines) -> None:
    for offset, report in (
        (0, None),
        (16, None),
        (1, "fetch 0 bad_stream"),
        (8, "fetch 0 bad_stream"),
    ):
        assert machines.fault_of(finish, address=PROGRAM + offset) == report


def test_a_bad_stream_is_found_behind_a_full_queue(machines: Machines) -> None:
    stuck = [with_flags(idle_load, pop_next=1)] * isa.QUEUE_DEPTH
    assert machines.fault_of(*stuck, finish, finish) == "fetch 64 bad_stream"
    # The 65th instruction of the same module is fetched but cannot be dispatched, and blocks later
    # ones.
    assert machines.fault_of(*stuck, stuck[0], finish, finish) == "load 0 deadlock"


def test_a_bad_last_instruction_is_not_handed_on(machines: Machines) -> None:
    acc = Load(memory=Memory.ACC, x_size=1, dram_base=PROGRAM // 16, push_next=1)
    for fault, device in machines.run(acc, Store(dram_base=RESULT // 4, x_size=1, pop_prev=1)):
        assert fault == Fault("fetch", 1, "bad_stream")
        assert device.read(RESULT, 4).sum() == 0


@pytest.mark.parametrize(
    ("program", "report"),
    [
        ([with_flags(idle_load, pop_next=1)], "load 0 deadlock"),
        ([load, with_flags(idle_compute, pop_prev=1)], "compute 1 deadlock"),
        ([load, with_flags(idle_compute, pop_next=1)], "compute 1 deadlock"),
        ([load, with_flags(idle_store, pop_prev=1)], "store 1 deadlock"),
        # A cycle: each waits for the other's token.
        (
            [
                idle_load,
                Load(memory=Memory.INP, x_size=0, pop_next=1, push_next=1),
                Gemm(uop_end=0, pop_prev=1, push_prev=1),
            ],
            "load 1 deadlock",
        ),
        # One of two tokens is missing: neither is popped.
        (
            [
                with_flags(idle_load, push_next=1),
                with_flags(idle_compute, pop_prev=1, pop_next=1),
            ],
            "compute 1 deadlock",
        ),
    ],
)
def test_deadlock_is_of_the_lowest_blocked_instruction(
    machines: Machines, program: list[Instruction], report: str
) -> None:
    assert machines.fault_of(*program, finish) == report


def test_finish_itself_may_be_blocked(machines: Machines) -> None:
    assert machines.fault_of(load, with_flags(finish, pop_prev=1)) == "compute 1 deadlock"
    assert machines.fault_of(with_flags(load, push_next=1), with_flags(finish, pop_prev=1)) is None


def test_a_full_queue_that_hides_the_token_is_a_deadlock(machines: Machines) -> None:
    waiting = with_flags(idle_load, pop_next=1)
    giving = with_flags(idle_compute, push_prev=1)
    assert machines.fault_of(*[waiting] * 64, *[giving] * 64, finish) is None
    assert machines.fault_of(*[waiting] * 65, *[giving] * 65, finish) == "load 0 deadlock"


@pytest.mark.parametrize(
    ("giver", "flag", "module"),
    [
        (idle_load, "push_next", "load"),
        (idle_compute, "push_prev", "compute"),
        (idle_compute, "push_next", "compute"),
        (idle_store, "push_prev", "store"),
    ],
)
def test_a_counter_holds_1023_tokens(
    machines: Machines, giver: Instruction, flag: str, module: str
) -> None:
    pushing = with_flags(giver, **{flag: 1})
    assert machines.fault_of(*[pushing] * 1023, finish) is None
    assert machines.fault_of(*[pushing] * 1024, finish) == f"{module} 1023 token_overflow"
    assert (
        machines.fault_of(*[pushing] * 1024, idle_compute, finish)
        == f"{module} 1023 token_overflow"
    )


def test_finish_may_overflow_a_counter(machines: Machines) -> None:
    pushing = with_flags(idle_compute, push_next=1)
    program = [*[pushing] * 1023, with_flags(finish, push_next=1, push_prev=1)]
    assert machines.fault_of(*program) == "compute 1023 token_overflow"


@pytest.mark.parametrize(
    ("pushing", "failing"),
    [
        (idle_compute, Gemm(uop_end=CONFIG.uop.depth + 1, iter_out=2)),
        (idle_compute, Alu(uop_end=CONFIG.uop.depth + 1, alu_opcode=AluOp.ADD)),
        (Load(memory=Memory.ACC, x_size=0), Load(memory=Memory.ACC, dram_base=1 << 20)),
        (idle_load, Load(memory=Memory.INP, dram_base=1 << 20)),
    ],
)
def test_an_overflow_is_found_though_a_later_instruction_has_failed(
    machines: Machines, pushing: Instruction, failing: Instruction
) -> None:
    """Also if other instructions wait for the failed one."""
    module = "load" if pushing is idle_load else "compute"
    pushes = [with_flags(pushing, push_next=1)] * 1024
    for behind in ([], [Alu(uop_end=0, alu_opcode=AluOp.ADD), idle_compute]):
        assert (
            machines.fault_of(*pushes, failing, *behind, finish) == f"{module} 1023 token_overflow"
        )


def test_a_push_waits_for_room_that_comes(machines: Machines) -> None:
    pushing, popping = with_flags(idle_load, push_next=1), with_flags(idle_compute, pop_prev=1)
    assert machines.fault_of(*[pushing] * 1040, *[popping] * 1040, finish) is None


def test_an_overflow_outranks_a_deadlock_of_lower_index(machines: Machines) -> None:
    blocked = with_flags(idle_store, pop_prev=1)
    pushing = with_flags(idle_load, push_next=1)
    assert machines.fault_of(blocked, *[pushing] * 1024, finish) == "load 1024 token_overflow"


def test_of_several_faults_the_lowest_index_is_reported(machines: Machines) -> None:
    bad_load = Load(memory=Memory.INP, sram_base=128)
    bad_compute = Load(memory=Memory.ACC, sram_base=128)
    bad_store = Store(sram_base=128)
    assert machines.fault_of(load, bad_store, bad_load, bad_compute, load) == (
        "store 1 index_out_of_range"
    )
    assert (
        machines.fault_of(load, bad_compute, bad_load, 5, finish) == "compute 1 index_out_of_range"
    )
    assert machines.fault_of(load, load, bad_load, bad_compute, load) == "load 2 index_out_of_range"


def test_a_fault_outranks_a_deadlock_of_lower_index(machines: Machines) -> None:
    waiting = with_flags(idle_compute, pop_prev=1)
    bad = Load(memory=Memory.INP, sram_base=128, push_next=1)
    assert machines.fault_of(waiting, bad, finish) == "load 1 index_out_of_range"


def test_a_module_that_faults_stops_and_gives_no_token_and_others_go_on(machines: Machines) -> None:
    acc = Load(memory=Memory.ACC, x_size=1, dram_base=PROGRAM // 16, push_next=1)
    program = [
        Load(memory=Memory.INP, sram_base=128, push_next=1),
        load,
        acc,
        Store(dram_base=RESULT // 4, x_size=1, pop_prev=1),
        with_flags(idle_compute, pop_prev=1, push_next=1),
        Store(dram_base=RESULT // 4 + 1, x_size=1, pop_prev=1),
        finish,
    ]
    for fault, device in machines.run(*program):
        assert fault == Fault("load", 0, "index_out_of_range")
        written = device.read(PROGRAM, 16)[::4]
        assert written.any()
        assert np.array_equal(device.read(RESULT, 4), written)
        assert device.read(RESULT + 4, 4).sum() == 0


def test_fetch_stops_at_its_fault_and_earlier_instructions_complete(machines: Machines) -> None:
    acc = Load(memory=Memory.ACC, x_size=1, dram_base=PROGRAM // 16, push_next=1)
    store = Store(dram_base=RESULT // 4, x_size=1, pop_prev=1)
    for fault, device in machines.run(acc, store, finish, finish):
        assert fault == Fault("fetch", 2, "bad_stream")
        assert np.array_equal(device.read(RESULT, 4), device.read(PROGRAM, 16)[::4])


def test_what_a_machine_cannot_address_is_a_bus_error() -> None:
    config = replace(CONFIG, log_dram_size=MEMORY.bit_length() - 1)
    machines = Machines("pysim", [Way()], config)
    far = Load(memory=Memory.INP, dram_base=1 << 30, x_size=1)
    assert machines.fault_of(load, far, finish) == "load 1 bus_error"
    past = Store(dram_base=MEMORY // 4 - 1, x_size=1, y_size=2, x_stride=1)
    assert machines.fault_of(idle_load, past, finish) == "store 1 bus_error"
    assert machines.fault_of(address=1 << 47, insn_count=1) == "fetch 0 bus_error"
    longest = (1 << 32) - 1
    fault = machines.fault_of(*[load] * 3, address=MEMORY - 48, insn_count=longest)
    assert fault == "fetch 3 bus_error"


def test_memory_beyond_what_a_machine_addresses_is_refused() -> None:
    config = replace(CONFIG, log_dram_size=16)
    with pytest.raises(DeviceError, match="beyond the 65,536 bytes .* LOG_DRAM_SIZE = 16"):
        open_device("functional", config, (1 << 16) + 64)
    open_device("functional", config, 1 << 16)
