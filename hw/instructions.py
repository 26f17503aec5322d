"""Instruction queues between fetch and the modules; each instruction is checked once."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from . import isa
from .config import Config
from .dma.extent import ExtentChecker
from .interfaces import CheckedEntry, Limits, QueueEntry
from .microarchitecture import Microarchitecture, Storage
from .queues.levels import next_count, next_exceeds

_NAMES = tuple(
    module.name.lower() for module in (isa.Module.LOAD, isa.Module.COMPUTE, isa.Module.STORE)
)
_BITS = Shape.cast(CheckedEntry).width


class InstructionQueues(wiring.Component):
    """The instruction queues of load, compute and store, with range checks and credit counting.

    At most `isa.QUEUE_DEPTH` instructions per module are unretired.

    Timing: into an empty queue, an instruction is available four cycles after dispatch and its
    successor a cycle later. With `Microarchitecture.instruction_queues` in block RAM, it is
    available after six cycles and its successor three cycles later, or more when other modules are
    served first::

        compute              i   j
        compute_out                          i   j
        taken                                1   1
        block_ram:compute_out                        i           j
        block_ram:taken                              1           1

    Ports
    -----
    NAME, NAME_out : instructions of a module from fetch, which offers one at a time with the same
        payload at all three, and to the module
    NAME_retire : the module has retired an instruction
    NAME_empty : all of its instructions have retired
    limits : stable during a run
    settled : nothing is in transit: each module is offered its next instruction, or has none
    """

    def __init__(self, config: Config, choices: Microarchitecture | None = None) -> None:
        self._config = config
        self._choices = choices or Microarchitecture.of(config)
        super().__init__(
            {
                "limits": In(Limits()),
                "settled": Out(1),
                **{
                    port: member
                    for name in _NAMES
                    for port, member in (
                        (name, In(stream.Signature(QueueEntry))),
                        (f"{name}_out", Out(stream.Signature(CheckedEntry))),
                        (f"{name}_retire", In(1)),
                        (f"{name}_empty", Out(1)),
                    )
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.checker = checker = ExtentChecker(self._config)
        m.d.comb += checker.limits.eq(self.limits)
        passing = self._admit(m, checker)
        puts = Signal(len(_NAMES))
        m.d.comb += puts.eq(Mux(checker.o.valid, 1 << passing, 0))
        if self._choices.instruction_queues is Storage.BLOCK_RAM:
            settled = self._queue_in_block_ram(m, checker, puts)
        else:
            self._queue_in_luts(m, checker, puts)
            settled = Const(1)
        m.d.comb += self.settled.eq(checker.empty & settled)
        return m

    def _queue_in_luts(self, m: Module, checker: ExtentChecker, puts: Signal) -> None:
        """One LUT RAM with asynchronous read per module: no output register or multiplexer, and an
        instruction is available in the cycle after it arrived.
        """
        for number, name in enumerate(_NAMES):
            out = getattr(self, f"{name}_out")
            memory = Memory(shape=_BITS, depth=isa.QUEUE_DEPTH, init=[])
            m.submodules[f"{name}_memory"] = memory
            write, read = memory.write_port(), memory.read_port(domain="comb")
            level = Signal(range(isa.QUEUE_DEPTH + 1), name=f"{name}_level")
            takes = Signal(name=f"{name}_takes")
            m.d.comb += [
                write.en.eq(puts[number]),
                write.data.eq(Value.cast(checker.o.payload)),
                Value.cast(out.payload).eq(read.data),
                takes.eq(out.valid & out.ready),
            ]
            change = level, write.en, takes
            m.d.sync += [level.eq(next_count(*change)), out.valid.eq(next_exceeds(0, *change))]
            for port, moves in ((write, write.en), (read, takes)):
                place = Signal.like(port.addr, name=f"{name}_{'tail' if port is write else 'head'}")
                m.d.comb += port.addr.eq(place)
                with m.If(moves):
                    m.d.sync += place.eq(place + 1)

    def _queue_in_block_ram(self, m: Module, checker: ExtentChecker, puts: Signal) -> Value:
        """One block RAM for all queues (a block RAM has 512 words, a queue needs 64) with an output
        register per module. Returns whether each register is full or its queue empty.
        """
        log_depth = (isa.QUEUE_DEPTH - 1).bit_length()
        m.submodules.memory = memory = Memory(
            shape=_BITS,
            depth=isa.QUEUE_DEPTH << (len(_NAMES) - 1).bit_length(),
            init=[],
            # A word is never read in the cycle in which it is written: a full queue accepts
            # nothing.
            attrs={"ram_style": "block", "no_rw_check": 1},
        )
        write, read = memory.write_port(), memory.read_port()
        arrives = Signal(len(_NAMES))
        m.d.comb += [
            write.en.eq(checker.o.valid),
            write.data.eq(Value.cast(checker.o.payload)),
        ]
        m.d.sync += arrives.eq(0)
        settled: list[Value] = []
        taken = Signal()
        for number, name in enumerate(_NAMES):
            out = getattr(self, f"{name}_out")
            level = Signal(range(isa.QUEUE_DEPTH + 1), name=f"{name}_level")
            head = Signal(log_depth, name=f"{name}_head")
            tail = Signal(log_depth, name=f"{name}_tail")
            wants, gets = (Signal(name=f"{name}_{verb}") for verb in ("wants", "gets"))
            payload = Signal(_BITS, name=f"{name}_payload", reset_less=True)
            m.d.comb += [
                # From registers only: whether an instruction can issue is known late in the cycle.
                wants.eq((level != 0) & ~out.valid & ~arrives[number]),
                gets.eq(wants & ~taken),
                Value.cast(out.payload).eq(payload),
            ]
            with m.If(puts[number]):
                m.d.comb += write.addr.eq(Cat(tail, Const(number, 2)))
                m.d.sync += tail.eq(tail + 1)
            with m.If(gets):
                m.d.comb += [read.en.eq(1), read.addr.eq(Cat(head, Const(number, 2)))]
                m.d.sync += [head.eq(head + 1), arrives[number].eq(1)]
            m.d.sync += level.eq(next_count(level, puts[number], gets))
            with m.If(arrives[number]):
                m.d.sync += [payload.eq(read.data), out.valid.eq(1)]
            with m.Elif(out.ready):
                m.d.sync += out.valid.eq(0)
            settled += [(level == 0) | out.valid, ~arrives[number]]
            taken = taken | wants
        return Cat(settled).all()

    def _admit(self, m: Module, checker: ExtentChecker) -> Signal:
        """Pass instructions to the checker while their modules have credit; returns the module of
        the instruction that leaves it.
        """
        stages = [Signal(range(len(_NAMES)), name=f"module_{stage}") for stage in range(4)]
        for before, after in pairwise(stages):
            m.d.sync += after.eq(before)
        m.d.comb += checker.i.payload.eq(getattr(self, _NAMES[0]).payload)
        for number, name in enumerate(_NAMES):
            incoming = getattr(self, name)
            count = Signal(range(isa.QUEUE_DEPTH + 1), name=f"{name}_count")
            room, some = Signal(name=f"{name}_room"), Signal(name=f"{name}_some")
            m.d.comb += [
                room.eq(count != isa.QUEUE_DEPTH),
                incoming.ready.eq(room),
                getattr(self, f"{name}_empty").eq(~some),
            ]
            taken = incoming.valid & room
            change = count, taken, getattr(self, f"{name}_retire")
            m.d.sync += [count.eq(next_count(*change)), some.eq(next_exceeds(0, *change))]
            with m.If(taken):
                m.d.comb += [checker.i.valid.eq(1), stages[0].eq(number)]
        return stages[-1]
