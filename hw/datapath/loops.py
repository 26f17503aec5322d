"""Command queues and sequencers of GEMM and the ALU."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.issue.command_queue import COUNT_WIDTH, CommandQueue, WaitingCommand
from amaranth_vta.hw.queues.levels import next_count
from amaranth_vta.hw.scratchpad import ReadPortSignature
from amaranth_vta.hw.timing import ALU_COMMANDS, GEMM_COMMANDS

from .alu import AluContext, alu_operands
from .gemm import GemmContext, gemm_operands
from .sequencer import IndexedUop, LoopCommand, Sequencer


class Loops(wiring.Component):
    """Queues the commands of GEMM and the ALU until the instructions of the other unit for which
    they wait are done, and unrolls their loops into micro-ops.

    With OVERLAP each unit has a queue and a sequencer. Without it each command waits for all older
    commands of the other unit, so commands start in issue order, and a shared queue and sequencer
    take no more cycles.

    Timing: that of `CommandQueue` and `Sequencer`.

    Ports
    -----
    gemm_command, alu_command : `WaitingCommand`; for one unit at a time
    for_alu : an arriving command is the ALU's; known before it issues
    gemm_level, alu_level : number of waiting commands
    gemm_begins, alu_begins : a command of the unit starts in this cycle
    gemm_done, alu_done, gemm_ends, alu_ends : per unit, instructions done before this cycle,
        counted as in `WaitingCommand`, and whether one more completes in this cycle
    gemm, alu : micro-ops
    uops : read port of the micro-op buffer
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._operands = {"gemm": gemm_operands(config), "alu": alu_operands(config)}
        self._contexts = {"gemm": GemmContext(config), "alu": AluContext}
        self._most = {"gemm": GEMM_COMMANDS, "alu": ALU_COMMANDS}
        self._commands = {
            name: LoopCommand(config, self._operands[name], self._contexts[name])
            for name in self._operands
        }
        uops = {
            name: IndexedUop(self._operands[name], self._contexts[name]) for name in self._operands
        }
        super().__init__(
            {
                "for_alu": In(1),
                "uops": Out(ReadPortSignature(config.uop.element_bits, config.uop.depth, 1)),
                **{
                    port: member
                    for name, command in self._commands.items()
                    for port, member in (
                        (f"{name}_command", In(stream.Signature(WaitingCommand(command)))),
                        (f"{name}_level", Out(range(self._most[name] + 1))),
                        (f"{name}_begins", Out(1)),
                        (f"{name}_done", In(COUNT_WIDTH)),
                        (f"{name}_ends", In(1)),
                        (name, Out(stream.Signature(uops[name]))),
                    )
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        if self._config.overlap:
            self._add_sequencers(m)
        else:
            self._share_sequencer(m)
        return m

    def _add_sequencers(self, m: Module) -> None:
        """Give each unit its own queue and sequencer."""
        others = {
            "gemm": (self.alu_done, self.alu_ends),
            "alu": (self.gemm_done, self.gemm_ends),
        }
        sequencers = {}
        for name, command in self._commands.items():
            m.submodules[f"{name}_commands"] = queue = CommandQueue(command, self._most[name])
            m.submodules[f"{name}_sequencer"] = sequencer = sequencers[name] = Sequencer(
                self._config,
                self._operands[name],
                self._contexts[name],
            )
            connect(m, flipped(getattr(self, f"{name}_command")), queue.i)
            connect(m, queue.o, sequencer.i)
            connect(m, sequencer.o, flipped(getattr(self, name)))
            m.d.comb += [
                Cat(queue.other_done, queue.other_ends).eq(Cat(others[name])),
                getattr(self, f"{name}_level").eq(queue.level),
                getattr(self, f"{name}_begins").eq(queue.o.valid & queue.o.ready),
            ]
        gemm, alu = sequencers["gemm"], sequencers["alu"]
        # The ALU has priority, since it reads few micro-ops, each for many vectors; but not while
        # it stalls. The grant is registered: no combinational path leads from a stall of one unit
        # to the other.
        stalled, for_gemm = Signal(), Signal()
        m.d.sync += stalled.eq(alu.o.valid & ~alu.o.ready)
        m.d.comb += [
            for_gemm.eq(gemm.uop_wanted & (stalled | ~alu.uop_wanted)),
            self.uops.enable.eq(gemm.uop_enable | alu.uop_enable),
            self.uops.index.eq(Mux(for_gemm, gemm.uop_index, alu.uop_index)),
            gemm.uop_bits.eq(self.uops.data[0]),
            gemm.uop_denied.eq(~for_gemm),
            alu.uop_bits.eq(self.uops.data[0]),
            alu.uop_denied.eq(for_gemm),
        ]

    def _share_sequencer(self, m: Module) -> None:
        """Share one queue and one sequencer, with two kinds of commands."""
        m.submodules.sequencer = sequencer = Sequencer(
            self._config,
            list(self._operands.values()),
            data.UnionLayout(self._contexts),
        )
        m.submodules.commands = queue = CommandQueue(
            sequencer.i.payload.shape(), sum(self._most.values())
        )
        connect(m, queue.o, sequencer.i)
        item = sequencer.o.payload
        m.d.comb += [
            queue.other_done.eq(Mux(queue.o.payload.kind, self.gemm_done, self.alu_done)),
            queue.other_ends.eq(Mux(queue.o.payload.kind, self.gemm_ends, self.alu_ends)),
            queue.i.payload.command.kind.eq(self.for_alu),
            sequencer.o.ready.eq(Mux(item.kind, self.alu.ready, self.gemm.ready)),
            self.uops.enable.eq(sequencer.uop_enable),
            self.uops.index.eq(sequencer.uop_index),
            sequencer.uop_bits.eq(self.uops.data[0]),
        ]
        for kind, name in enumerate(self._commands):
            command, micro_ops = getattr(self, f"{name}_command"), getattr(self, name)
            level, begins = getattr(self, f"{name}_level"), getattr(self, f"{name}_begins")
            # Each unit has as many issue credits as with a separate queue.
            m.d.comb += [
                command.ready.eq(level != self._most[name]),
                begins.eq(queue.o.valid & queue.o.ready & (queue.o.payload.kind == kind)),
                micro_ops.valid.eq(sequencer.o.valid & (item.kind == kind)),
                *(micro_ops.payload[part].eq(item[part]) for part in ("enable", "last", "error")),
                *(
                    micro_ops.payload.indices[operand].eq(item.indices[operand])
                    for operand in self._operands[name]
                ),
                micro_ops.payload.context.eq(item.context[name]),
            ]
            issues = command.valid & command.ready
            m.d.sync += level.eq(next_count(level, issues, begins))
            with m.If(issues):
                m.d.comb += queue.i.valid.eq(1)
            with m.If(self.for_alu == kind):
                _offer(m, command.payload, queue.i.payload, name)


def _offer(m: Module, given: data.View, offered: data.View, name: str) -> None:
    """Offer a command of unit ``name`` to the shared queue."""
    own, common = given.command, offered.command
    m.d.comb += [
        offered.follows.eq(given.follows),
        *(
            common[part].eq(own[part])
            for part in ("uop_begin", "uop_end", "iter_out", "iter_in", "sources_used")
        ),
        *(
            common.factors[operand][loop].eq(own.factors[operand][loop])
            for operand, _ in own.factors.shape()
            for loop in ("outer", "inner")
        ),
        common.context[name].eq(own.context),
    ]
