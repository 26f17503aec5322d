"""The compute module: micro-ops, accumulators, GEMM and tensor ALU, in the order of the stream."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .bus.axi import ReadSignature
from .config import Config
from .datapath.accumulators import Accumulators
from .datapath.alu import AluContext, AluUnit, alu_operands
from .datapath.gemm import GemmContext, GemmUnit, gemm_operands
from .datapath.operation import AluOp
from .datapath.sequencer import Sequencer
from .dma.loader import Loader
from .dma.transfer import Bases, moved_elements, sets_padding_wrongly, transfer
from .fabric.buffer import ReadPortSignature, geometry
from .fabric.issue import InOrder, ModuleSignature
from .fabric.structures import instruction_layout


class Unit(enum.Enum, shape=2):
    """Who executes an instruction inside compute."""

    NONE = 0
    LOADER = 1
    GEMM = 2
    ALU = 3


_MEMORIES = (isa.Memory.UOP, isa.Memory.ACC)


class Compute(wiring.Component):
    """Issues instructions in order to the loader (UOP, ACC), the GEMM unit and the ALU.

    Instructions for the same unit follow one another without a gap; an instruction for another
    unit waits until everything before it has retired. FINISH waits for the other modules too.

    Timing: that of its parts: `InOrder` issues and retires, `Sequencer` makes micro-ops of loops,
    `GemmUnit` and `AluUnit` execute them.

    Ports
    -----
    (all of `ModuleSignature`)
    others_retired : load and store have retired everything that they were given
    finished : high for a cycle when FINISH retires
    multiplies, alu_works : GEMM executes a micro-op that multiplies, the ALU one of its own
    moved : as that of `Loader`
    bases, read : DRAM base addresses, and the memory read port
    inp_read, wgt_read : read ports of the scratchpads that load fills
    out_read : what store reads: the low bits of the accumulators, `depth` elements of OUT
    """

    def __init__(self, config: Config) -> None:
        self._config = config
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
                "inp_read": Out(ReadPortSignature(config.inp.element_bits, config.inp.depth, 1)),
                "wgt_read": Out(ReadPortSignature(config.wgt.element_bits, config.wgt.depth, 1)),
                "out_read": In(
                    ReadPortSignature(config.out.element_bits, config.acc.depth, out.elements)
                ),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config

        m.submodules.order = order = InOrder(
            config,
            isa.Module.COMPUTE,
            _MEMORIES,
            [isa.Cause.BUS_ERROR, isa.Cause.INDEX_OUT_OF_RANGE, isa.Cause.INDEX_OUT_OF_RANGE],
        )
        m.submodules.loader = loader = Loader(config, _MEMORIES)
        m.submodules.gemm_sequencer = gemm_sequencer = Sequencer(
            config, gemm_operands(config), GemmContext
        )
        m.submodules.gemm = gemm = GemmUnit(config)
        m.submodules.alu_sequencer = alu_sequencer = Sequencer(
            config, alu_operands(config), AluContext
        )
        m.submodules.alu = alu = AluUnit(config)
        order.connect(m, self)
        connect(m, loader.read, flipped(self.read))
        connect(m, gemm_sequencer.o, gemm.i)
        connect(m, alu_sequencer.o, alu.i)
        m.d.comb += [loader.bases.eq(self.bases), loader.hold.eq(0)]

        self._connect_micro_ops(m, loader, gemm_sequencer, alu_sequencer)
        self._connect_tiles(m, gemm)
        self._connect_accumulators(m, loader, gemm, alu)

        # Decode.
        bits = order.head.entry.bits
        memory, loops_gemm, loops_alu = (
            data.View(instruction_layout(config, opcode), bits)
            for opcode in (isa.Opcode.LOAD, isa.Opcode.GEMM, isa.Opcode.ALU)
        )
        is_finish = Signal()
        loaded: list[int] = [isa.Memory.UOP, isa.Memory.ACC, isa.Memory.ACC_8BIT]
        if config.pad_value:
            loaded.append(isa.Padding.COMPUTE)
        last_operation = isa.AluOp.REQUANTIZE if config.requantize else max(isa.BASE_ALU_OPS)
        with m.Switch(memory.opcode):
            with m.Case(isa.Opcode.LOAD):
                m.d.comb += [
                    order.unit.eq(Unit.LOADER),
                    order.unit_ready.eq(loader.command.ready),
                    order.out_of_range.eq(order.head.out_of_range),
                    order.illegal.eq(
                        (memory.reserved != 0)
                        | Cat(memory.memory != known for known in loaded).all()
                        | sets_padding_wrongly(config, memory)
                    ),
                ]
            with m.Case(isa.Opcode.GEMM):
                m.d.comb += [
                    order.unit.eq(Unit.GEMM),
                    order.unit_ready.eq(gemm_sequencer.i.ready),
                    order.illegal.eq(_uncovered_bits(bits, loops_gemm)),
                ]
            if config.overwrite:
                with m.Case(isa.Opcode.MULTIPLY):
                    m.d.comb += [
                        order.unit.eq(Unit.GEMM),
                        order.unit_ready.eq(gemm_sequencer.i.ready),
                        order.illegal.eq(_uncovered_bits(bits, loops_gemm) | loops_gemm.reset),
                    ]
            with m.Case(isa.Opcode.ALU):
                m.d.comb += [
                    order.unit.eq(Unit.ALU),
                    order.unit_ready.eq(alu_sequencer.i.ready),
                    order.illegal.eq(
                        _uncovered_bits(bits, loops_alu)
                        | (loops_alu.alu_opcode > last_operation)
                        | ((loops_alu.alu_opcode == isa.AluOp.REQUANTIZE) & loops_alu.use_immediate)
                    ),
                ]
            with m.Case(isa.Opcode.FINISH):
                m.d.comb += [order.unit_ready.eq(1), is_finish.eq(1)]
            with m.Default():
                m.d.comb += order.illegal.eq(1)

        # Start. An instruction waits for those of all other units, one that says that it is
        # independent not for those of the unit beside it.
        waits = Signal()
        units = list(Unit.__members__.values())
        with m.Switch(order.unit):
            for unit in units:
                others = [order.pending[other.value] for other in units if other is not unit]
                with m.Case(unit):
                    m.d.comb += waits.eq(Cat(*others).any())
        if config.overlap:
            for unit, loops in ((Unit.GEMM, loops_gemm), (Unit.ALU, loops_alu)):
                with m.If((order.unit == unit) & loops.independent):
                    m.d.comb += waits.eq(
                        order.pending.bit_select(Unit.LOADER, 1)
                        | order.pending.bit_select(Unit.NONE, 1)
                    )
        m.d.comb += [
            order.may_start.eq((~is_finish | self.others_retired) & ~waits),
            loader.command.valid.eq(order.start & (order.unit == Unit.LOADER)),
            loader.command.payload.eq(transfer(config, order.head)),
            gemm_sequencer.i.valid.eq(order.start & (order.unit == Unit.GEMM)),
            gemm_sequencer.i.payload.sources_used.eq(~loops_gemm.reset),
            gemm_sequencer.i.payload.context.reset.eq(loops_gemm.reset),
            gemm_sequencer.i.payload.context.overwrite.eq(memory.opcode == isa.Opcode.MULTIPLY),
            alu_sequencer.i.valid.eq(order.start & (order.unit == Unit.ALU)),
            alu_sequencer.i.payload.sources_used.eq(~loops_alu.use_immediate),
            alu_sequencer.i.payload.context.operation.eq(AluOp(loops_alu.alu_opcode)),
            alu_sequencer.i.payload.context.use_immediate.eq(loops_alu.use_immediate),
            alu_sequencer.i.payload.context.immediate.eq(loops_alu.immediate),
        ]
        _connect_loops(m, gemm_sequencer.i.payload, loops_gemm)
        _connect_loops(m, alu_sequencer.i.payload, loops_alu)

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
            self.alu_works.eq(alu.i.valid & alu.i.ready & alu.i.payload.enable),
            self.moved.eq(loader.moved),
        ]
        return m

    def _connect_micro_ops(
        self, m: Module, loader: Loader, gemm: Sequencer, alu: Sequencer
    ) -> None:
        uops = geometry(self._config, isa.Memory.UOP).scratchpad(read_elements=(1,))
        m.submodules.uops = uops
        connect(m, loader.uop, uops.write)
        # The ALU goes first: it needs few micro-ops, and each for many vectors.
        m.d.comb += [
            uops.read0.enable.eq(gemm.uop_enable | alu.uop_enable),
            uops.read0.index.eq(Mux(alu.uop_enable, alu.uop_index, gemm.uop_index)),
            gemm.uop_bits.eq(uops.read0.data[0]),
            gemm.uop_denied.eq(alu.uop_enable),
            alu.uop_bits.eq(uops.read0.data[0]),
        ]

    def _connect_tiles(self, m: Module, gemm: GemmUnit) -> None:
        m.d.comb += [
            self.inp_read.enable.eq(gemm.inp_enable),
            self.inp_read.index.eq(gemm.inp_index),
            Value.cast(gemm.inp_data).eq(self.inp_read.data[0]),
            self.wgt_read.enable.eq(gemm.wgt_enable),
            self.wgt_read.index.eq(gemm.wgt_index),
            Value.cast(gemm.wgt_data).eq(self.wgt_read.data[0]),
        ]

    def _connect_accumulators(
        self, m: Module, loader: Loader, gemm: GemmUnit, alu: AluUnit
    ) -> None:
        m.submodules.accumulators = accumulators = Accumulators(self._config)
        connect(m, flipped(self.out_read), accumulators.out_read)
        connect(m, loader.acc, accumulators.load_write)
        for port, enable, index, data_out in (
            (
                accumulators.gemm_read,
                gemm.acc_read_enable,
                gemm.acc_read_index,
                gemm.acc_read_data,
            ),
            (accumulators.alu_dst, alu.dst_read_enable, alu.dst_read_index, alu.dst_read_data),
            (accumulators.alu_src, alu.src_read_enable, alu.src_read_index, alu.src_read_data),
        ):
            m.d.comb += [
                port.enable.eq(enable),
                port.index.eq(index),
                Value.cast(data_out).eq(port.data[0]),
            ]
        for port, enable, index, data_in in (
            (
                accumulators.gemm_write,
                gemm.acc_write_enable,
                gemm.acc_write_index,
                gemm.acc_write_data,
            ),
            (accumulators.alu_write, alu.write_enable, alu.write_index, alu.write_data),
        ):
            m.d.comb += [
                port.enable.eq(enable),
                port.lanes.eq(~0),
                port.index.eq(index),
                port.data[0].eq(Value.cast(data_in)),
            ]
        if self._config.overlap:
            # A unit enters a bank when the other one has left it; GEMM goes first.
            gemm_bank, alu_bank = gemm.i.payload.indices.dst[-1], alu.i.payload.indices.dst[-1]
            m.d.comb += [
                gemm.denied.eq(alu.busy_banks.bit_select(gemm_bank, 1)),
                alu.denied.eq(
                    gemm.busy_banks.bit_select(alu_bank, 1)
                    | (gemm.i.valid & (gemm_bank == alu_bank))
                ),
            ]


def _uncovered_bits(bits: Value, view: data.View) -> Value:
    """Whether any bit is set that no field of the instruction covers."""
    covered = 0
    for _, item in view.shape():
        covered |= ((1 << item.width) - 1) << item.offset
    uncovered = ~covered & ((1 << isa.INSTRUCTION_WIDTH) - 1)
    return (bits & uncovered) != 0


def _connect_loops(m: Module, command: data.View, loops: data.View) -> None:
    for name in ("uop_begin", "uop_end", "iter_out", "iter_in"):
        m.d.comb += command[name].eq(loops[name])
    for name, _ in command.factors.shape():
        m.d.comb += [
            command.factors[name].outer.eq(loops[f"{name}_factor_out"]),
            command.factors[name].inner.eq(loops[f"{name}_factor_in"]),
        ]
