"""The compute module: micro-ops, accumulators, GEMM and tensor ALU, in the order of the stream."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from . import isa
from .alu import AluContext, AluOp, AluUnit, alu_operands
from .axi import ReadSignature
from .buffer import ReadPortSignature, Scratchpad, geometry
from .config import Config
from .dma import Bases, Loader, transfer
from .gemm import GemmContext, GemmUnit, gemm_operands
from .issue import InOrder
from .sequencer import Sequencer
from .structures import (
    FaultPort,
    GivePort,
    ModuleStatus,
    QueueEntry,
    TakePort,
    instruction_layout,
)


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
    insn, status, fault : as for every module
    from_load, to_load, from_store, to_store : tokens
    others_retired : load and store have retired everything that they were given
    finished : high for a cycle when FINISH retires
    bases, read : DRAM base addresses, and the memory read port
    inp_read, wgt_read : read ports of the scratchpads that load fills
    out_read : what store reads: the low bits of the accumulators, `depth` elements of OUT
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        out = geometry(config, isa.Memory.OUT)
        super().__init__(
            {
                "insn": In(stream.Signature(QueueEntry)),
                "status": Out(ModuleStatus()),
                "fault": Out(FaultPort()),
                "from_load": Out(TakePort()),
                "to_load": Out(GivePort()),
                "from_store": Out(TakePort()),
                "to_store": Out(GivePort()),
                "others_retired": In(1),
                "finished": Out(1),
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
        connect(m, flipped(self.insn), order.insn)
        connect(m, order.status, flipped(self.status))
        connect(m, order.fault, flipped(self.fault))
        connect(m, order.from_prev, flipped(self.from_load))
        connect(m, order.to_prev, flipped(self.to_load))
        connect(m, order.from_next, flipped(self.from_store))
        connect(m, order.to_next, flipped(self.to_store))
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
        with m.Switch(memory.opcode):
            with m.Case(isa.Opcode.LOAD):
                m.d.comb += [
                    order.unit.eq(Unit.LOADER),
                    order.unit_ready.eq(loader.command.ready),
                    order.out_of_range.eq(order.head.out_of_range),
                    order.illegal.eq(
                        (memory.reserved != 0)
                        | (
                            (memory.memory != isa.Memory.UOP)
                            & (memory.memory != isa.Memory.ACC)
                            & (memory.memory != isa.Memory.ACC_8BIT)
                        )
                    ),
                ]
            with m.Case(isa.Opcode.GEMM):
                m.d.comb += [
                    order.unit.eq(Unit.GEMM),
                    order.unit_ready.eq(gemm_sequencer.i.ready),
                    order.illegal.eq(_uncovered_bits(bits, loops_gemm)),
                ]
            with m.Case(isa.Opcode.ALU):
                m.d.comb += [
                    order.unit.eq(Unit.ALU),
                    order.unit_ready.eq(alu_sequencer.i.ready),
                    order.illegal.eq(
                        _uncovered_bits(bits, loops_alu)
                        | (loops_alu.alu_opcode > max(isa.BASE_ALU_OPS))
                    ),
                ]
            with m.Case(isa.Opcode.FINISH):
                m.d.comb += [order.unit_ready.eq(1), is_finish.eq(1)]
            with m.Default():
                m.d.comb += order.illegal.eq(1)

        # Start.
        m.d.comb += [
            order.may_start.eq(
                Mux(
                    is_finish,
                    self.others_retired & (order.pending == 0),
                    (order.pending == 0) | (order.unit == order.latest_unit),
                )
            ),
            loader.command.valid.eq(order.start & (order.unit == Unit.LOADER)),
            loader.command.payload.eq(transfer(config, order.head)),
            gemm_sequencer.i.valid.eq(order.start & (order.unit == Unit.GEMM)),
            gemm_sequencer.i.payload.sources_used.eq(~loops_gemm.reset),
            gemm_sequencer.i.payload.context.reset.eq(loops_gemm.reset),
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
        ]
        return m

    def _connect_micro_ops(
        self, m: Module, loader: Loader, gemm: Sequencer, alu: Sequencer
    ) -> None:
        uops = geometry(self._config, isa.Memory.UOP).scratchpad(read_elements=(1,))
        m.submodules.uops = uops
        connect(m, loader.uop, uops.write)
        # Only one of the two units is ever at work.
        m.d.comb += [
            uops.read0.enable.eq(gemm.uop_enable | alu.uop_enable),
            uops.read0.index.eq(Mux(gemm.uop_enable, gemm.uop_index, alu.uop_index)),
            gemm.uop_bits.eq(uops.read0.data[0]),
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
        config = self._config
        shape = geometry(config, isa.Memory.ACC)
        m.submodules.accumulators = accumulators = shape.scratchpad(
            read_elements=(1, 1), transparent=(0, 1)
        )
        # Store never waits for a port of the accumulators: it reads a memory of their low bits,
        # which are written wherever the accumulators are.
        m.submodules.shadow = shadow = Scratchpad(
            element_bits=config.out.element_bits,
            depth=config.acc.depth,
            write_elements=shape.elements,
            lanes=shape.lanes,
            read_elements=(geometry(config, isa.Memory.OUT).elements,),
        )
        connect(m, flipped(self.out_read), shadow.read0)

        write = accumulators.write
        m.d.comb += [
            accumulators.read0.enable.eq(gemm.acc_read_enable | alu.dst_read_enable),
            accumulators.read0.index.eq(
                Mux(gemm.acc_read_enable, gemm.acc_read_index, alu.dst_read_index)
            ),
            Value.cast(gemm.acc_read_data).eq(accumulators.read0.data[0]),
            Value.cast(alu.dst_read_data).eq(accumulators.read0.data[0]),
            accumulators.read1.enable.eq(alu.src_read_enable),
            accumulators.read1.index.eq(alu.src_read_index),
            Value.cast(alu.src_read_data).eq(accumulators.read1.data[0]),
        ]
        with m.If(gemm.acc_write_enable):
            m.d.comb += [
                write.enable.eq(1),
                write.lanes.eq(~0),
                write.index.eq(gemm.acc_write_index),
                write.data[0].eq(Value.cast(gemm.acc_write_data)),
            ]
        with m.Elif(alu.write_enable):
            m.d.comb += [
                write.enable.eq(1),
                write.lanes.eq(~0),
                write.index.eq(alu.write_index),
                write.data[0].eq(Value.cast(alu.write_data)),
            ]
        with m.Else():
            m.d.comb += [
                write.enable.eq(loader.acc.enable),
                write.lanes.eq(loader.acc.lanes),
                write.index.eq(loader.acc.index),
                write.data.eq(loader.acc.data),
            ]
        m.d.comb += [
            shadow.write.enable.eq(write.enable),
            shadow.write.lanes.eq(write.lanes),
            shadow.write.index.eq(write.index),
        ]
        scalars = config.acc.rows * config.acc.columns
        for number in range(shape.elements):
            m.d.comb += shadow.write.data[number].eq(
                Cat(
                    write.data[number].word_select(scalar, config.acc_width)[: config.out_width]
                    for scalar in range(scalars)
                )
            )


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
