"""The compute module: loads of micro-ops and accumulators, GEMM and the tensor ALU."""

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import ReadSignature
from .clock_groups import ONE_CLOCK, ClockGroups
from .config import Config
from .counters.events import Events, transfer_events, unit_events
from .datapath.accumulators import Accumulators
from .datapath.alu import AluUnit
from .datapath.gemm import GemmUnit, inp_read_port
from .datapath.loops import Loops
from .dma.loader import Loader
from .dma.transfer import Bases, moved_elements, transfer
from .interfaces import instruction_layout, is_for_load, is_illegal
from .issue.command_queue import COUNT_WIDTH
from .issue.decode import Decoder
from .issue.in_order import InOrder, ModuleSignature
from .microarchitecture import Microarchitecture
from .scratchpad import ReadPortSignature, geometry


class Unit(enum.Enum, shape=2):
    """The compute unit that executes an instruction."""

    NONE = 0
    LOADER = 1
    GEMM = 2
    ALU = 3


_MEMORIES = (isa.Memory.UOP, isa.Memory.ACC)


class Compute(wiring.Component):
    """Issues instructions in order to the loader (UOP, ACC), the GEMM unit and the ALU.

    Instructions for one unit follow each other without a bubble. A GEMM or ALU instruction waits in
    its command queue until all older instructions of the other unit are done, unless it is marked
    independent. A LOAD issues after everything older has retired, and younger instructions wait
    until it retires. FINISH additionally waits for load and store.

    Timing: that of its parts. `InOrder` issues and retires, `Loops` holds waiting commands and
    unrolls loops into micro-ops, `GemmUnit` and `AluUnit` execute them.

    Ports
    -----
    (all of `ModuleSignature`)
    others_retired : load and store have no unretired instruction
    finished : high for one cycle when FINISH retires
    multiplies, alu_works : GEMM accepts a micro-op that multiplies, the ALU accepts a micro-op
    moved : as in `Loader`
    bases, read : DRAM base addresses, and the memory read port
    inp_read, wgt_read : read ports of the scratchpads that load fills
    out_read : low bits of the accumulators for store, `depth` elements of OUT
    """

    def __init__(
        self,
        config: Config,
        groups: ClockGroups = ONE_CLOCK,
        choices: Microarchitecture | None = None,
    ) -> None:
        self._config = config
        self._groups = groups
        self._choices = choices or Microarchitecture.of(config)
        out = geometry(config, isa.Memory.OUT)
        super().__init__(
            {
                **ModuleSignature(isa.Module.COMPUTE, len(Unit) - 1).members,
                "others_retired": In(1),
                "finished": Out(1),
                "multiplies": Out(1),
                "alu_works": Out(1),
                "moved": Out(moved_elements(config, _MEMORIES)),
                "bases": In(Bases),
                "read": Out(ReadSignature(8 * config.bus_bytes)),
                "inp_read": Out(inp_read_port(config)),
                "wgt_read": Out(ReadPortSignature(config.wgt.element_bits, config.wgt.depth, 1)),
                "out_read": In(
                    ReadPortSignature(config.out.element_bits, config.acc.depth, out.elements)
                ),
            }
        )

    @property
    def events(self) -> Events:
        """Increments of the counters of compute."""
        return {
            "compute_waits_for_load": self.activity.lacks_prev,
            "compute_waits_for_store": self.activity.lacks_next,
            "gemm_uops": self.multiplies,
            "alu_uops": self.alu_works,
            **transfer_events("compute", self.status, self.read.beat, self.moved),
            **unit_events("compute_load", self.activity, Unit.LOADER),
            **unit_events("gemm", self.activity, Unit.GEMM),
            **unit_events("alu", self.activity, Unit.ALU),
        }

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config

        m.submodules.order = order = InOrder(
            config,
            isa.Module.COMPUTE,
            [isa.Cause.BUS_ERROR, isa.Cause.INDEX_OUT_OF_RANGE, isa.Cause.INDEX_OUT_OF_RANGE],
            self._choices,
        )
        m.submodules.decoder = decoder = Decoder(config, len(Unit) - 1, self._choices)
        loader = Loader(config, _MEMORIES, self._choices)
        m.submodules.loader = self._groups.member("compute_dma", loader)
        self._groups.activate(m, "compute_dma", loader.active)
        m.submodules.loops = loops = Loops(config)
        m.submodules.gemm = gemm = GemmUnit(config, self._groups, self._choices)
        m.submodules.alu = alu = AluUnit(config, self._groups, self._choices)
        order.connect(m, self, decoder)
        connect(m, loader.read, flipped(self.read))
        connect(m, loops.gemm, gemm.i)
        connect(m, loops.alu, alu.i)
        m.d.comb += [loader.bases.eq(self.bases), loader.hold.eq(0)]

        m.submodules.uops = uops = geometry(config, isa.Memory.UOP).scratchpad(read_elements=(1,))
        connect(m, loader.uop, uops.write)
        connect(m, loops.uops, uops.read0)
        connect(m, gemm.inp, flipped(self.inp_read))
        connect(m, gemm.wgt, flipped(self.wgt_read))
        self._connect_accumulators(m, loader, gemm, alu)

        self._decode(m, decoder)
        is_finish = order.unit == Unit.NONE
        self._wait_for_older(m, order, is_finish)
        self._issue(m, decoder, order, loader, loops)
        self._order_units(m, order, loops)

        # Retire.
        finishing = Signal()
        with m.If(order.start & is_finish):
            m.d.sync += finishing.eq(1)
        m.d.comb += [
            order.done.eq(Cat(loader.done, gemm.done, alu.done)),
            order.error.eq(Cat(loader.error, gemm.error, alu.error)),
            order.drained.eq(loader.idle),
            self.finished.eq(order.status.retire & finishing),
            self.multiplies.eq(
                gemm.i.valid & gemm.i.ready & gemm.i.payload.enable & ~gemm.i.payload.context.reset
            ),
            self.alu_works.eq(alu.takes),
            self.moved.eq(loader.moved),
        ]
        return m

    def _view(self, entry: Any, opcode: isa.Opcode) -> data.View:
        """View an instruction with the layout of this opcode."""
        return data.View(instruction_layout(self._config, opcode), entry.bits)

    def _decode(self, m: Module, decoder: Decoder) -> None:
        """Determine the unit of an instruction, and whether the instruction is illegal."""
        config = self._config
        units = {
            isa.Opcode.LOAD: Unit.LOADER,
            isa.Opcode.GEMM: Unit.GEMM,
            isa.Opcode.ALU: Unit.ALU,
            isa.Opcode.FINISH: Unit.NONE,
        }
        if config.overwrite:
            units[isa.Opcode.MULTIPLY] = Unit.GEMM
        if config.depthwise:
            units[isa.Opcode.DEPTHWISE] = Unit.GEMM
        entry = decoder.insn.payload.entry
        with m.Switch(self._view(entry, isa.Opcode.FINISH).opcode):
            for opcode, unit in units.items():
                with m.Case(opcode):
                    m.d.comb += [
                        decoder.unit.eq(unit),
                        decoder.illegal.eq(is_illegal(config, opcode, entry.bits)),
                    ]
                    if opcode is isa.Opcode.LOAD:
                        with m.If(is_for_load(config, self._view(entry, opcode).memory)):
                            m.d.comb += decoder.illegal.eq(1)
            with m.Default():
                m.d.comb += decoder.illegal.eq(1)

    def _wait_for_older(self, m: Module, order: InOrder, is_finish: Value) -> None:
        """Hold an instruction until older ones of all other units have retired. GEMM and ALU
        instructions wait for each other in their command queues instead.
        """
        waits = Signal()
        units = list(Unit.__members__.values())
        computing = {Unit.GEMM, Unit.ALU}
        with m.Switch(order.unit):
            for unit in units:
                passed = computing if unit in computing else {unit}
                others = [order.pending[other.value] for other in units if other not in passed]
                with m.Case(unit):
                    m.d.comb += waits.eq(Cat(*others).any())
        m.d.comb += order.may_start.eq((~is_finish | self.others_retired) & ~waits)

    def _issue(
        self, m: Module, decoder: Decoder, order: InOrder, loader: Loader, loops: Loops
    ) -> None:
        """Pass the next instruction to its unit, or to the loops, when it issues."""
        entry = order.head.entry
        gemm_fields, alu_fields = (
            self._view(entry, opcode) for opcode in (isa.Opcode.GEMM, isa.Opcode.ALU)
        )
        gemm, alu = loops.gemm_command, loops.alu_command
        gemm_command, alu_command = gemm.payload.command, alu.payload.command
        with m.Switch(order.unit):
            for unit, ready in (
                (Unit.LOADER, loader.command.ready),
                (Unit.GEMM, gemm.ready),
                (Unit.ALU, alu.ready),
                (Unit.NONE, 1),
            ):
                with m.Case(unit):
                    m.d.comb += order.unit_ready.eq(ready)
        with m.If(order.unit == Unit.LOADER):
            m.d.comb += [
                order.out_of_range.eq(order.head.out_of_range),
                order.out_of_bounds.eq(order.head.out_of_bounds),
            ]
        m.d.comb += [
            loader.command.valid.eq(order.start & (order.unit == Unit.LOADER)),
            loader.command.payload.eq(transfer(self._config, decoder.decoded.payload)),
            gemm.valid.eq(order.start & (order.unit == Unit.GEMM)),
            gemm_command.sources_used.eq(~gemm_fields.reset),
            gemm_command.context.reset.eq(gemm_fields.reset),
            gemm_command.context.overwrite.eq(gemm_fields.opcode == isa.Opcode.MULTIPLY),
            alu.valid.eq(order.start & (order.unit == Unit.ALU)),
            alu_command.sources_used.eq(~alu_fields.use_immediate),
            alu_command.context.operation.eq(alu_fields.alu_opcode),
            alu_command.context.use_immediate.eq(alu_fields.use_immediate),
            alu_command.context.immediate.eq(alu_fields.immediate),
            loops.for_alu.eq(order.unit == Unit.ALU),
            order.begins.eq(Cat(loader.command.valid, loops.gemm_begins, loops.alu_begins)),
            order.queued[_unit_index(isa.Opcode.GEMM)].eq(loops.gemm_level),
            order.queued[_unit_index(isa.Opcode.ALU)].eq(loops.alu_level),
        ]
        if self._config.depthwise:
            # DEPTHWISE has ``overwrite`` at the position of GEMM's ``reset``.
            with m.If(gemm_fields.opcode == isa.Opcode.DEPTHWISE):
                m.d.comb += [
                    gemm_command.sources_used.eq(1),
                    gemm_command.context.reset.eq(0),
                    gemm_command.context.overwrite.eq(gemm_fields.reset),
                    gemm_command.context.tapped.eq(1),
                ]
        _connect_loops(m, gemm_command, gemm_fields)
        _connect_loops(m, alu_command, alu_fields)

    def _order_units(self, m: Module, order: InOrder, loops: Loops) -> None:
        """Make commands wait for older commands of the other unit, unless they are independent."""
        commands = {
            isa.Opcode.GEMM: (loops.gemm_command, loops.gemm_done, loops.gemm_ends),
            isa.Opcode.ALU: (loops.alu_command, loops.alu_done, loops.alu_ends),
        }
        # Number of the latest issued command per unit.
        issued = {
            code: Signal(COUNT_WIDTH, name=f"{code.name.lower()}_issued", init=-1)
            for code in commands
        }
        done = {code: Signal(COUNT_WIDTH, name=f"{code.name.lower()}_done") for code in commands}
        for unit, other in (commands, reversed(commands)):
            (command, done_before, ends), place = commands[unit], _unit_index(unit)
            m.d.sync += [
                issued[unit].eq(issued[unit] + command.valid),
                done[unit].eq(done[unit] + ends),
            ]
            m.d.comb += [
                done_before.eq(done[unit]),
                ends.eq(order.done[place] & ~order.error[place]),
                command.payload.follows.eq(issued[other]),
            ]
            if self._config.overlap:
                m.d.comb += command.payload.independent.eq(
                    self._view(order.head.entry, unit).independent
                )

    def _connect_accumulators(
        self, m: Module, loader: Loader, gemm: GemmUnit, alu: AluUnit
    ) -> None:
        m.submodules.accumulators = accumulators = Accumulators(self._config)
        connect(m, flipped(self.out_read), accumulators.out_read)
        connect(m, loader.acc, accumulators.load_write)
        connect(m, gemm.acc_read, accumulators.gemm_read)
        m.d.comb += accumulators.gemm_clear.eq(gemm.acc_read_clear)
        connect(m, gemm.acc_write, accumulators.gemm_write)
        connect(m, alu.dst_read, accumulators.alu_dst)
        connect(m, alu.src_read, accumulators.alu_src)
        m.d.comb += accumulators.alu_src_clear.eq(alu.src_read_clear)
        connect(m, alu.write, accumulators.alu_write)
        if self._config.overlap:
            connect(m, alu.ahead_read, accumulators.alu_ahead)
            m.d.comb += accumulators.alu_ahead_keeps.eq(alu.ahead_read_keeps)
        if self._config.lookup:
            load = loader.acc
            for element, written in enumerate(alu.written[1:]):
                m.d.comb += [
                    written.enable.eq(load.enable[element]),
                    written.index.eq(load.index + element),
                ]
            m.d.comb += [
                alu.written[0].enable.eq(gemm.acc_write.enable),
                alu.written[0].index.eq(gemm.acc_write.index),
            ]
        if self._config.overlap:
            arbitrate_banks(m, gemm, alu, self.fault.valid)


def arbitrate_banks(m: Module, gemm: GemmUnit, alu: AluUnit, failed: Value) -> None:
    """Admit each unit to an accumulator bank once the other unit has left it; GEMM has priority.

    After a fault (``failed``) neither unit continues, although later independent instructions
    still issue.
    """
    gemm_bank, alu_bank = gemm.i.payload.indices.dst[-1], alu.bank
    m.d.comb += [
        gemm.denied.eq(alu.busy_banks.bit_select(gemm_bank, 1) | failed),
        alu.denied.eq(
            gemm.busy_banks.bit_select(alu_bank, 1)
            | (gemm.i.valid & (gemm_bank == alu_bank))
            | failed
        ),
        alu.busy_ports.eq(gemm.busy_ports),
    ]


def _unit_index(opcode: isa.Opcode) -> int:
    """Index of the compute unit that executes ``opcode``."""
    return Unit.__members__[opcode.name].value - 1


def _connect_loops(m: Module, command: data.View, loops: data.View) -> None:
    for name in ("uop_begin", "uop_end", "iter_out", "iter_in"):
        m.d.comb += command[name].eq(loops[name])
    for name, _ in command.factors.shape():
        m.d.comb += [
            command.factors[name].outer.eq(loops[f"{name}_factor_out"]),
            command.factors[name].inner.eq(loops[f"{name}_factor_in"]),
        ]
