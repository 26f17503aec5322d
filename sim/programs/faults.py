"""Random programs with faults, each with the fault that every device must report."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import (
    Alu,
    AluOp,
    Depthwise,
    Finish,
    Forward,
    Gemm,
    Instruction,
    Load,
    Memory,
    Multiply,
    SetPadding,
    Store,
)
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.device import Fault, Limits, end_in_dram, limit_of

from .image import ProgramImage, limits_of
from .random_programs import legal_program


def random_faulty_program(
    config: Config, kinds: str | Sequence[str], seed: int, origin: int = 0
) -> tuple[ProgramImage, Fault]:
    """A program with faults of some of `FAULT_KINDS`, and the fault that every device must report:
    the first one in the stream.

    The image has no expected result, since memory after a fault may depend on the execution order.
    Its memory begins at address ``origin``.
    """
    image = faulty_program(config, (kinds,) if isinstance(kinds, str) else kinds, seed, origin)
    device = FunctionalDevice(config, image.dram.size, origin=origin)
    device.write(origin, image.dram)
    device.set_limits(image.limits)
    fault = device.run(image.insn_addr, image.insn_count).fault
    assert fault is not None
    return image, fault


def faulty_program(
    config: Config, kinds: Sequence[str], seed: int, origin: int = 0
) -> ProgramImage:
    """A program with faults of all ``kinds``, each somewhere in the stream."""
    chance = random.Random(f"{seed}:{'+'.join(kinds)}:{config}")
    image = legal_program(config, seed, length=20, origin=origin)
    stream: list[Instruction | int] = list(image.instruction_bits())
    size = image.insn_addr - origin + len(stream) * isa.INSTRUCTION_BYTES
    size += len(kinds) * _MAX_INSERTED * isa.INSTRUCTION_BYTES
    memory = range(origin, origin - (-size // _MEMORY_UNIT) * _MEMORY_UNIT)
    limits = limits_of(image) if "transfer_out_of_bounds" in kinds else {}
    for kind in kinds:
        at = chance.randrange(len(stream))
        _FAULTS[kind](_Fault(config, chance, stream, at, memory, image.insn_addr, limits))
    dram = np.zeros(len(memory), np.uint8)
    dram[: image.insn_addr - origin] = image.dram[: image.insn_addr - origin]
    faulty = ProgramImage.assemble(config, dram, image.insn_addr, stream, origin)
    return replace(faulty, limits=limits)


# Memory sizes are rounded up to a multiple of this many bytes.
_MEMORY_UNIT = 64


@dataclass
class _Fault:
    """Context for inserting a fault before instruction ``at`` of ``stream``. ``memory`` is the
    range of valid addresses; data lie below the address ``before``, the stream above; ``limits``
    are those of the image.
    """

    config: Config
    chance: random.Random
    stream: list[Instruction | int]
    at: int
    memory: range
    before: int
    limits: Limits

    def insert(self, *instructions: Instruction | int) -> None:
        self.stream[self.at : self.at] = instructions


def _insert_illegal(fault: _Fault) -> None:
    chance, config = fault.chance, fault.config
    instructions = isa.instruction_set(config)
    unknown = [opcode for opcode in (5, 6, 7) if opcode not in instructions.layouts]
    extended = isa.extended_alu_ops(config.extensions)
    absent = [code for code in range(8) if code not in (*isa.BASE_ALU_OPS, *extended)]
    padding = SetPadding(memory=chance.choice((6, 7)), dram_base=chance.randrange(1 << 32))
    paddings = [
        replace(padding, **{name: 1})
        for name in (chance.choice(isa.UNUSED_BY_SET_PADDING), "reserved")
    ]
    paddings.append(replace(padding, memory=6, **{chance.choice(("pop_prev", "push_prev")): 1}))
    spare = [
        bits
        for loop in (Gemm(uop_end=0), Alu(alu_opcode=0, uop_end=0))
        for bits in (
            instructions.encode(loop) | 1 << bit for bit in range(3, isa.INSTRUCTION_WIDTH)
        )
        if instructions.unused_bits(bits)
    ]
    stored = () if config.forward else (Memory.INP,)
    not_loaded = () if config.wgt_4bit else (Memory.OUT,)
    fault.insert(
        chance.choice(
            (
                *([chance.choice(spare)] * 2 if spare else ()),
                chance.randrange(1 << 125) << 3 | chance.choice(unknown),
                Load(memory=chance.choice((*not_loaded, 6, 7))),
                *(paddings if config.pad_value else ()),
                Load(memory=Memory.INP, reserved=1 << chance.randrange(6)),
                Load(memory=Memory.ACC, reserved=1 << chance.randrange(6)),
                Load(memory=Memory.WGT, pop_prev=1),
                Load(memory=Memory.INP, push_prev=1),
                Store(pop_next=1),
                Store(push_next=1),
                Store(memory=chance.choice((0, 1, *stored, 3, 5, 6, 7))),
                Store(reserved=1 << chance.randrange(6)),
                Store(x_size=0, **{chance.choice(("x_pad_0", "x_pad_1")): 1}),
                Store(x_size=0, **{chance.choice(("y_pad_0", "y_pad_1")): 15}),
                *([Alu(alu_opcode=chance.choice(absent), uop_end=0)] if absent else ()),
                *([Multiply(reset=1, uop_end=0)] if config.overwrite else ()),
                *(Alu(alu_opcode=operation, use_immediate=1, uop_end=0) for operation in extended),
            )
        )
    )


def _insert_transfer_out_of_range(fault: _Fault) -> None:
    chance = fault.chance
    memory = chance.choice((*isa.loaded_memories(fault.config.extensions), Memory.OUT))
    depth = fault.config.memory(memory).depth
    sizes = fault.config
    longest = max(item.depth for item in (sizes.uop, sizes.inp, sizes.wgt, sizes.acc))
    beyond = chance.choice(
        (
            {"sram_base": depth - 1, "x_size": 2},
            {"sram_base": depth, "x_size": 1},
            {"sram_base": 0xFFFF, "x_size": 0xFFFF, "y_size": 0xFFFF},
            {"sram_base": depth - 1, "x_size": 1, "y_size": 2},
            # One side exceeds every scratchpad: by a little, by a lot, or as a power-of-two
            # multiple.
            {"x_size": longest + chance.randint(1, 9)},
            {"x_size": min(0xFFFF, longest * chance.choice((2, 4, 8)) + chance.randrange(2))},
            {"x_size": 1, "y_size": longest + chance.randint(1, 9)},
            {"x_size": 1, "y_size": min(0xFFFF, longest * chance.choice((2, 4, 8)))},
            {"x_size": chance.randint(1, 0xFFFF), "y_size": chance.randint(depth, 0xFFFF)},
        )
    )
    if fault.config.forward and chance.random() < 0.2:
        fault.insert(_forward_out_of_range(fault))
        return
    fault.insert(Store(**beyond) if memory is Memory.OUT else Load(memory=memory, **beyond))


def _forward_out_of_range(fault: _Fault) -> Forward:
    """A FORWARD that writes inputs or reads accumulators beyond the depth, by one or by many."""
    inp, acc = fault.config.inp.depth, fault.config.acc.depth
    return fault.chance.choice(
        (
            Forward(sram_base=inp),
            Forward(sram_base=inp - 1, y_pad_1=1),
            Forward(sram_base=inp - 2, x_pad_0=1, x_pad_1=1, y_size=0, y_pad_0=1),
            Forward(dram_base=isa.forward_base(acc - 1), x_size=2),
            Forward(dram_base=isa.forward_base(acc - 1, -1), y_size=2, x_stride=1),
            Forward(y_size=2, x_stride=acc),
            Forward(dram_base=isa.forward_base(0xFFFF, -1), y_size=2, x_stride=0xFFFF),
            Forward(x_size=inp + 1),
            Forward(x_size=0xFFFF, y_size=0xFFFF),
        )
    )


def _insert_uop_out_of_range(fault: _Fault) -> None:
    depth, chance = fault.config.uop.depth, fault.chance
    begin = chance.choice((0, depth - 1))
    end = chance.choice((depth + 1, 2 * depth - 1))
    loops = {"uop_begin": begin, "uop_end": end, "iter_out": 2}
    fault.insert(chance.choice((Gemm(reset=1, **loops), Gemm(**loops), Alu(alu_opcode=0, **loops))))


def _insert_operand_out_of_range(fault: _Fault) -> None:
    """Insert an all-zero micro-op and an instruction whose loop factors move an operand beyond the
    depth.
    """
    config, chance = fault.config, fault.chance
    zero = Load(memory=Memory.UOP, x_size=1, y_size=0, y_pad_0=1)
    make: Callable[..., Instruction]
    name, depth, make = chance.choice(
        (
            ("dst", config.acc.depth, Gemm),
            ("src", config.inp.depth, Gemm),
            ("wgt", config.wgt.depth, Gemm),
            ("dst", config.acc.depth, Alu),
            ("src", config.acc.depth, Alu),
        )
    )
    loop, other = chance.choice((("out", "in"), ("in", "out")))
    fields: dict[str, int] = {
        f"iter_{loop}": 2,
        f"{name}_factor_{loop}": depth - 1,
        f"iter_{other}": 2,
        f"{name}_factor_{other}": 1,
    }
    if make is Alu:
        fields["alu_opcode"] = AluOp.ADD
    elif name == "dst":
        fields["reset"] = 1
    kinds: list[Sequence[Instruction]] = [[make(uop_end=1, **fields)]]
    if config.depthwise:
        # Only the last tap is beyond the depth.
        first = config.inp.depth - config.taps + 1
        kinds.append([Depthwise(uop_end=1, iter_out=2, src_factor_out=first)])
    beyond = {"uop_end": 1, "iter_out": 2, "dst_factor_out": 1}
    # Only the last parameter, or the last element of the table, is beyond the depth.
    tables = [
        Alu(alu_opcode=operation, src_factor_out=config.acc.depth - sources + 1, **beyond)
        for operation in isa.extended_alu_ops(config.extensions)
        if (sources := config.alu_sources(operation)) > 1
    ]
    if tables:
        kinds.append(tables)
    if config.multiply_add:
        first, last = config.acc.depth, (1 << isa.IMMEDIATE_WIDTH) - 1
        # Indices in the upper half are encoded as negative immediates.
        factors = (first, last, last >> 1, (last >> 1) + 1, chance.randint(first, last))
        kinds.append(
            [
                Alu(alu_opcode=AluOp.MULTIPLY_ADD, immediate=isa.factor_immediate(factor), **beyond)
                for factor in factors
            ]
        )
    out_of_range = chance.choice(chance.choice(kinds))
    fault.insert(zero, out_of_range)


def _insert_bus_error(fault: _Fault) -> None:
    """Insert a transfer that crosses the end or the start of the memory, in any row and beat."""
    chance = fault.chance
    memory = chance.choice((*isa.loaded_memories(fault.config.extensions), Memory.OUT))
    geometry = fault.config.memory(memory)
    size, depth = geometry.element_bytes, min(geometry.depth, fault.config.acc.depth)
    first, end = fault.memory.start // size, fault.memory.stop // size
    many, before = chance.randint(1, depth), chance.randrange(depth)
    rows = chance.randint(1, max(1, depth // 8))
    beyond = chance.choice(
        (
            {"dram_base": (1 << 32) - 1, "x_size": 1},
            {"dram_base": (1 << 32) - 1, "x_size": 2, "y_size": 1},
            {"dram_base": 1 << 31, "x_size": 1, "y_size": 2, "x_stride": 0xFFFF},
            # Across the end: at some beat of the only row, or from some row on.
            {"dram_base": end - min(before, many - 1), "x_size": many},
            {"dram_base": end - 4 * rows, "x_size": 8, "y_size": rows, "x_stride": 4},
            *(
                (
                    {"dram_base": first - 1 - before, "x_size": 1},
                    {"dram_base": first - 1 - min(before, many - 1), "x_size": many},
                    {
                        "dram_base": first - 4 * rows,
                        "x_size": 8,
                        "y_size": rows,
                        "x_stride": 4,
                    },
                    {"dram_base": first - 9, "x_size": 1, "y_size": 2, "x_stride": 9},
                )
                * 2
                if first
                else ()
            ),
        )
    )
    # With few large elements, the rows may start below address 0.
    beyond["dram_base"] = max(0, beyond["dram_base"])
    wrong = Store(**beyond) if memory is Memory.OUT else Load(memory=memory, **beyond)
    fault.insert(wrong, *_behind(fault, memory, chance.choice((0, 0, 3, 6))))


def _behind(fault: _Fault, memory: Memory, count: int) -> list[Load | Store]:
    """Transfers of the same module that directly follow a faulty transfer of ``memory``, without a
    token between. They must have no effect, although a machine requests several transfers ahead.
    """
    config, chance = fault.config, fault.chance
    siblings = [memory]
    if memory is not Memory.OUT:
        module = isa.module_of(Load(memory=memory))
        loaded = isa.loaded_memories(config.extensions)
        siblings = [other for other in loaded if isa.module_of(Load(memory=other)) is module]
    transfers: list[Load | Store] = []
    for _ in range(count):
        chosen = chance.choice(siblings)
        tile = config.memory(chosen)
        # A machine may put a STORE's words on the bus before memory refuses the previous STORE, so
        # STOREs write into unused bytes behind the program, which nothing loads.
        places = range(fault.memory.start, fault.before)
        if chosen is Memory.OUT:
            places = range(fault.memory.stop - _SPARE_BYTES, fault.memory.stop)
        first, end = places.start // tile.element_bytes, places.stop // tile.element_bytes
        many = chance.randint(1, min(tile.depth, end - first))
        place = {
            "sram_base": chance.randrange(tile.depth - many + 1),
            "dram_base": chance.randint(first, end - many),
            "x_size": many,
        }
        transfers.append(Store(**place) if chosen is Memory.OUT else Load(memory=chosen, **place))
    return transfers


def _insert_transfer_out_of_bounds(fault: _Fault) -> None:
    """Insert a transfer that exceeds the limit of its memory by one element or many, in the only
    row or in the last of several; transfers after it must have no effect.
    """
    chance = fault.chance
    memory = chance.choice([*isa.loaded_memories(fault.config.extensions), Memory.OUT])
    limit = limit_of(fault.limits, memory)
    rows, columns = chance.choice(((1, 1), (1, 4), (2, 1), (3, 2)))
    stride = chance.choice((0, 1, columns, columns + 3)) if rows > 1 else 0
    fields = {"x_size": columns, "y_size": rows, "x_stride": stride}
    transfer = Store(**fields) if memory is Memory.OUT else Load(memory=memory, **fields)
    reach = end_in_dram(transfer)
    over = chance.choice((1, 1, chance.randint(1, reach), 1 << 20))
    wrong = replace(transfer, dram_base=max(0, limit - reach + over))
    fault.insert(wrong, *_behind(fault, memory, chance.choice((0, 3))))


def _insert_token_overflow(fault: _Fault) -> None:
    # More tokens than the program can pop, which is at most a few hundred.
    nothing: Instruction = fault.chance.choice(
        (
            Load(memory=Memory.INP, x_size=0, push_next=1),
            Gemm(uop_end=0, push_next=1),
            Gemm(uop_end=0, push_prev=1),
            Store(x_size=0, push_prev=1),
        )
    )
    fault.insert(*[nothing] * _MAX_INSERTED)


def _insert_finish(fault: _Fault) -> None:
    fault.insert(Finish())


def _drop_finish(fault: _Fault) -> None:
    del fault.stream[-1]


def _insert_deadlock(fault: _Fault) -> None:
    """Insert pops without matching pushes: more than there can be tokens left."""
    nothing: Instruction = fault.chance.choice(
        (
            Load(memory=Memory.INP, x_size=0, pop_next=1),
            Gemm(uop_end=0, pop_next=1),
            Gemm(uop_end=0, pop_prev=1),
            Store(x_size=0, pop_prev=1),
        )
    )
    fault.insert(*[nothing] * 500)


def _flip_bits(fault: _Fault) -> None:
    """Flip up to three bits of one instruction; the result may still be legal."""
    encode = isa.instruction_set(fault.config).encode
    decode = isa.instruction_set(fault.config).decode
    found = fault.stream[fault.at]
    original = encode(found) if isinstance(found, Instruction) else found
    while True:
        bits = original
        for _ in range(fault.chance.randint(1, 3)):
            bits ^= 1 << fault.chance.randrange(isa.INSTRUCTION_WIDTH)
        # Reject results that would run for minutes.
        if getattr(decode(bits), "uops", 0) < _MAX_UOPS:
            fault.stream[fault.at] = bits
            return


_MAX_UOPS = 1 << 15
# More tokens than a token queue holds.
_MAX_INSERTED = isa.TOKEN_LIMIT + 500
# Free bytes at the end of memory: less than the space reserved per fault, which is mostly unused
# if the fault inserts only a few instructions.
_SPARE_BYTES = 16384

_FAULTS: dict[str, Callable[[_Fault], None]] = {
    "illegal_instruction": _insert_illegal,
    "transfer_out_of_range": _insert_transfer_out_of_range,
    "uop_out_of_range": _insert_uop_out_of_range,
    "operand_out_of_range": _insert_operand_out_of_range,
    "bus_error": _insert_bus_error,
    "transfer_out_of_bounds": _insert_transfer_out_of_bounds,
    "token_overflow": _insert_token_overflow,
    "finish_before_the_end": _insert_finish,
    "no_finish_at_the_end": _drop_finish,
    "deadlock": _insert_deadlock,
    "flipped_bits": _flip_bits,
}
# Kinds that always end in a fault, even alone.
FAULT_KINDS = tuple(kind for kind in _FAULTS if kind != "flipped_bits")
