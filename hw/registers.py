"""Registers of the machine as software sees them: one table for hardware and drivers.

A register has 32 bits, or 64 in two words with the low word first. A read of the low word of CYCLES
or of a counter latches the high word, which the next read of the high word returns. Addresses are
byte offsets on the AXI4-Lite port. This module is data only; `amaranth_vta.hw.bus.csr` generates
the hardware from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum

from . import isa
from .config import Config

WORD_BYTES = 4
# Address width of the register port, in bits.
ADDRESS_WIDTH = 12
IDENTITY = int.from_bytes(b"VTA0", "little")
VERSION = 1
COUNTER_WIDTH = 48


class Access(Enum):
    """How software uses a register."""

    READ = "read-only"
    # Counts of the latest run; during a run, a few cycles behind.
    COUNTER = "counter"
    READ_WRITE = "read and write"
    # Writing 1 to a bit triggers a command; reads return zero.
    COMMAND = "command"
    # Writing 1 to a bit clears it.
    CLEAR = "read, write 1 to clear"


@dataclass(frozen=True)
class Bits:
    """A field of a register: ``width`` bits from bit ``offset`` up."""

    name: str
    offset: int
    width: int
    doc: str


@dataclass(frozen=True)
class Register:
    """``width`` bits, 32 or 64, at byte ``offset``; ``bits`` are its fields, if any."""

    name: str
    offset: int
    access: Access
    doc: str
    width: int = 32
    bits: tuple[Bits, ...] = field(default=())
    # Value after power-up.
    init: int = 0

    def part(self, name: str) -> Bits:
        """The field called ``name``; raises `KeyError` if there is none."""
        for item in self.bits:
            if item.name == name:
                return item
        raise KeyError(f"{self.name} has no part {name}")


@dataclass(frozen=True)
class Counter:
    """A quantity counted in each run. Unless it depends on ``time``, it is the same on all devices
    for a program that ends without a fault.
    """

    name: str
    doc: str
    time: bool = True


_UNITS = {
    "load": "load",
    "store": "store",
    "gemm": "GEMM",
    "alu": "the ALU",
    "compute_load": "the loader of micro-ops and accumulators",
}
_WAITS = tuple(
    (module.name.lower(), neighbour.name.lower())
    for module in (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
    for neighbour in isa.neighbours(module).values()
)
_KINDS = {
    "load": "LOADs of INP and WGT",
    "compute_load": "LOADs of UOP and ACC",
    "gemm": "GEMM instructions, those that overwrite or reset included",
    "alu": "ALU instructions",
    "store": "STOREs",
}
_MEMORIES = {
    "inp": "read from memory into INP",
    "wgt": "read from memory into WGT",
    "uop": "read from memory into UOP",
    "acc": "read from memory into ACC, 32 or 16 bits per scalar",
    "acc_8bit": "read from memory into ACC, with scalars as narrow as those of OUT",
    "out": "written to memory",
}

COUNTERS = (
    *(
        Counter(
            f"{name}_busy",
            f"cycles in which {who} has taken an instruction and is not done with it",
        )
        for name, who in _UNITS.items()
    ),
    Counter("load_and_gemm_busy", "cycles in which load and GEMM are busy at once"),
    *(
        Counter(
            f"{who}_waits_for_{other}",
            f"cycles in which {who} has no instruction in flight, and its next one lacks a token "
            f"from {other}",
        )
        for who, other in _WAITS
    ),
    Counter(
        "fetch_waits_for_memory",
        "cycles in which the next instruction has not arrived from memory",
    ),
    Counter(
        "fetch_waits_for_modules",
        "cycles in which the next instruction waits for room in the queue of its module",
    ),
    *(
        Counter(
            f"{who}_waits_for_memory",
            f"cycles in which {who} has accesses to memory in flight, and no word of them moves",
        )
        for who in ("load", "compute", "store")
    ),
    *(Counter(f"{kind}_instructions", doc, time=False) for kind, doc in _KINDS.items()),
    Counter("gemm_uops", "micro-ops of GEMM that multiply, in all iterations", time=False),
    Counter("alu_uops", "micro-ops of the ALU, in all iterations", time=False),
    *(
        Counter(f"{memory}_elements", f"elements {doc}", time=False)
        for memory, doc in _MEMORIES.items()
    ),
    *(
        counter
        for kind, done, ends in (
            ("read", "read", "last word"),
            ("write", "written", "response"),
        )
        for counter in (
            Counter(f"{kind}_bursts", f"bursts {done}"),
            Counter(
                f"{kind}_latency",
                f"cycles from the request of a burst to its {ends}, summed over the bursts {done}",
            ),
        )
    ),
)
COUNTERS_OFFSET = 0x200
COUNTERS_END = COUNTERS_OFFSET + 2 * WORD_BYTES * len(COUNTERS)

# Which instructions use each base and limit.
_MEMORIES_IN_DRAM = {memory.name: f"LOADs of {memory.name}" for memory in isa.LIMITED} | {
    "OUT": "STOREs and LOADs of ACC_8BIT"
}

_TABLE = (
    Register("IDENTITY", 0x000, Access.READ, "the letters VTA0, the first in the lowest byte"),
    Register("VERSION", 0x004, Access.READ, "of this register map"),
    *(
        Register(
            item.name.upper(),
            0x010 + WORD_BYTES * number,
            Access.READ,
            item.metadata["doc"],
        )
        for number, item in enumerate(fields(Config))
    ),
    Register(
        "CONTROL",
        0x100,
        Access.COMMAND,
        "starts the actions whose bits are written as 1",
        bits=(
            Bits(
                "launch",
                0,
                1,
                "runs the program at INSN_ADDR; while busy or draining, or with reset, it is "
                "refused",
            ),
            Bits(
                "reset",
                1,
                1,
                "stops the program: no more accesses to memory begin, and when those in flight are "
                "complete, the run ends, stopped. If nothing runs: clears done, fault and stopped "
                "of STATUS",
            ),
        ),
    ),
    Register(
        "STATUS",
        0x104,
        Access.READ,
        "of the current or latest run",
        bits=(
            Bits("busy", 0, 1, "a program is running"),
            Bits("done", 1, 1, "the latest program has ended; cleared by a launch"),
            Bits("fault", 2, 1, "it ended with the fault that FAULT and FAULT_INSN describe"),
            Bits(
                "stopped",
                3,
                1,
                "it was stopped by CONTROL.reset; FAULT.module and FAULT_INSN say where it was",
            ),
            Bits(
                "draining",
                4,
                1,
                "it ended with a timeout, and memory has not yet answered all of its accesses",
            ),
            Bits("refused", 5, 1, "the latest launch was refused"),
        ),
    ),
    Register(
        "INTERRUPT_ENABLE",
        0x108,
        Access.READ_WRITE,
        "what raises the interrupt line",
        bits=(
            Bits("done", 0, 1, "the line is high while INTERRUPT_PENDING.done is"),
            Bits("fault", 1, 1, "the line is high while INTERRUPT_PENDING.fault is"),
        ),
    ),
    Register(
        "TIMEOUT",
        0x10C,
        Access.READ_WRITE,
        "cycles without a transfer on the bus while an access is in flight, after which the run "
        "ends with the fault `timeout`; 0 for never",
        init=1 << 24,
    ),
    Register("INSN_ADDR", 0x110, Access.READ_WRITE, "byte address of the program", width=64),
    Register("INSN_COUNT", 0x118, Access.READ_WRITE, "instructions of the program"),
    *(
        Register(
            f"{name}_BASE",
            0x120 + 2 * WORD_BYTES * number,
            Access.READ_WRITE,
            f"byte address of element 0 of {name}, a multiple of an element and of a bus word",
            width=64,
        )
        for number, name in enumerate(_MEMORIES_IN_DRAM)
    ),
    *(
        Register(
            f"{name}_LIMIT",
            0x148 + WORD_BYTES * number,
            Access.READ_WRITE,
            f"index of the first element that {users} may not access, counted from the base; 0 for "
            "none",
        )
        for number, (name, users) in enumerate(_MEMORIES_IN_DRAM.items())
    ),
    Register(
        "INTERRUPT_PENDING",
        0x17C,
        Access.CLEAR,
        "what has happened since it was last cleared; a launch clears all bits, and so does "
        "CONTROL.reset if nothing runs",
        bits=(
            Bits("done", 0, 1, "a program has ended"),
            Bits("fault", 1, 1, "it ended with a fault, or was stopped by CONTROL.reset"),
        ),
    ),
    Register(
        "FAULT",
        0x180,
        Access.READ,
        "why the latest run failed",
        bits=(
            Bits("cause", 0, 3, "0: it did not; otherwise as isa.Cause"),
            Bits("module", 8, 2, "as isa.Module"),
        ),
    ),
    Register("FAULT_INSN", 0x184, Access.READ, "index of the faulty instruction in the stream"),
    *(
        Register(
            f"TOKENS_{isa.queue_name(queue).upper()}",
            0x188 + WORD_BYTES * number,
            Access.READ,
            "tokens that no instruction had taken at the end of the latest run",
        )
        for number, queue in enumerate(isa.TOKEN_QUEUES)
    ),
    Register("CYCLES", 0x1A0, Access.READ, "cycles from launch to end of the run", width=64),
    *(
        Register(
            counter.name.upper(),
            COUNTERS_OFFSET + 2 * WORD_BYTES * number,
            Access.COUNTER,
            f"{counter.doc} ({COUNTER_WIDTH} bits)",
            width=64,
        )
        for number, counter in enumerate(COUNTERS)
    ),
)

REGISTERS: dict[str, Register] = {register.name: register for register in _TABLE}
