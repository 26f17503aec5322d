"""The tensor ALU: one vector operation per cycle on accumulators."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.fabric.groups import TOGETHER, ClockGroups
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.timing import alu_latency, has_long_alu, is_small

from .alu_lane import AluLane
from .dot_products import tile_layout
from .gemm import acc_read_port, acc_write_port, busy_banks
from .hazards import Hazards
from .requantize import RequantizingLane
from .sequencer import IndexedUop
from .table import Table, TableReader, TableWords, written_elements


class AluContext(data.Struct):
    """The fields of an ALU instruction other than its loops."""

    operation: AluOp
    use_immediate: 1
    immediate: signed(isa.IMMEDIATE_WIDTH)


class AluUnit(wiring.Component):
    """Executes micro-ops: ``acc[dst] = operation(acc[dst], immediate or acc[src])``.

    Timing: one micro-op per cycle. An item taken in cycle t reads its operands in t, or in t + 1
    with `has_long_alu`, and writes `alu_latency` + 1 cycles later, where `alu_latency` is the
    lanes'. The read ports forward what is being written. A micro-op with a hazard, which reads what
    an earlier one has yet to write, stalls until that is written (`Hazards`). A REQUANTIZE with
    parameters other than those of the micro-op before it in its instruction stalls until everything
    before it is written and its parameters have been read, one per cycle. So does the first
    MULTIPLY_ADD of an instruction, for its factor, and a LOOKUP, while
    its table is copied into the lanes, a word per cycle, unless they have it: the last table stays
    there until something is written to its accumulators.

    Ports
    -----
    i : micro-ops from the sequencer
    dst_read, src_read : read ports of the accumulators
    src_read_clear : with ``src_read``: 0 is read, to which an immediate is added
    write : write port of the accumulators; whole elements are written; without REQUANTIZE its data
        are 0 while nothing is
    written : what others write to the accumulators (with LOOKUP)
    bank, denied : the half of the accumulators in which the next micro-op writes; the other unit
        uses that, so the micro-op stalls
    busy_banks : per half of the accumulators, whether a write to it is in flight
    takes : it executes a micro-op, or stops at one
    done, error : as in the GEMM unit
    """

    def __init__(self, config: Config, groups: ClockGroups = TOGETHER) -> None:
        self._config = config
        self._groups = groups
        self.operands = alu_operands(config)
        super().__init__(
            {
                "i": In(stream.Signature(IndexedUop(self.operands, AluContext))),
                "dst_read": Out(acc_read_port(config)),
                "src_read": Out(acc_read_port(config)),
                "src_read_clear": Out(1),
                "write": Out(acc_write_port(config)),
                **({"written": In(written_elements(config))} if config.lookup else {}),
                "bank": Out(1),
                "denied": In(1),
                "busy_banks": Out(2),
                "takes": Out(1),
                "done": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        control = data.StructLayout(
            {
                "write": 1,
                "dst": config.acc.index_width,
                "context": AluContext,
                "done": 1,
                "error": 1,
            }
        )
        # Control that goes with a micro-op: one stage for each register of the lanes; the last one
        # writes.
        entering = Signal(control)
        stages = [Signal(control, name=f"stage_{n}") for n in range(alu_latency(config) + 1)]
        computing, writing = stages[0], stages[-1]
        finished = Signal(control)

        hazards = self._add_hazards(m, stages[:-1])
        next_uop, item = hazards.o, hazards.o.payload
        stopped, works, taken, ready = (
            Signal(name=name) for name in ("stopped", "works", "taken", "ready")
        )
        m.d.comb += [
            ready.eq(1),
            next_uop.ready.eq(~works | (~hazards.waits & ready & ~self.denied)),
            taken.eq(next_uop.valid & next_uop.ready),
            works.eq(next_uop.valid & item.enable & ~item.error & ~stopped),
            hazards.works.eq(works),
            self.bank.eq(item.indices.dst[-1]),
            self.takes.eq(taken & item.enable),
            self.dst_read.enable.eq(taken & works),
            self.dst_read.index.eq(item.indices.dst),
            self.src_read.enable.eq(taken & works),
            self.src_read.index.eq(item.indices.src),
            self.src_read_clear.eq(item.context.use_immediate),
            entering.write.eq(taken & works),
            entering.dst.eq(item.indices.dst),
            entering.context.eq(item.context),
            entering.done.eq(taken & (item.last | item.error) & ~stopped),
            entering.error.eq(item.error),
        ]
        with m.If(~item.context.use_immediate):
            m.d.comb += entering.context.immediate.eq(0)
        with m.If(taken & item.error):
            m.d.sync += stopped.eq(1)
        for one, other in pairwise([entering, *stages, finished]):
            m.d.sync += other.eq(one)

        lanes = self._add_lanes(m, computing)
        m.d.comb += [
            self.write.enable.eq(writing.write),
            self.write.lanes.eq(~0),
            self.write.index.eq(writing.dst),
            self.done.eq(finished.done),
            self.error.eq(finished.error),
        ]
        m.d.sync += self.busy_banks.eq(busy_banks([entering, *stages[:-1]]))
        busy = Signal()
        m.d.comb += busy.eq(Cat(stage.write for stage in stages).any())
        # While something is written too: after it, results return to 0.
        active: Value = busy
        if config.requantize:
            active |= self._read_parameters(m, hazards, lanes, ready, works, busy, taken)
        if config.lookup:
            looks_up = stages[lanes[0].to_index]
            active |= self._look_up(m, hazards, lanes, looks_up, ready, works, busy, taken)
        self._groups.activate(m, "lanes", active)
        return m

    def _add_hazards(self, m: Module, before: list[Any]) -> Hazards:
        """What micro-ops come from; ``before``: the stages that have not written yet."""
        m.submodules.hazards = hazards = Hazards(
            self.operands, AluContext, len(before), has_long_alu(self._config)
        )
        incoming = hazards.i.payload
        m.d.comb += [
            hazards.i.valid.eq(self.i.valid),
            self.i.ready.eq(hazards.i.ready),
            incoming.eq(self.i.payload),
        ]
        with m.If(self._reads_beyond(self.i.payload)):
            m.d.comb += incoming.error.eq(1)
        for stage, write in zip(before, hazards.in_flight, strict=True):
            m.d.comb += [write.write.eq(stage.write), write.dst.eq(stage.dst)]
        return hazards

    def _comes(self, operation: AluOp) -> Value:
        """Whether the micro-op that comes is such an operation."""
        item = self.i.payload
        return item.enable & (item.context.operation == operation)

    def _reads_beyond(self, item: Any) -> Value:
        """Whether parameters, a table or a factor that the micro-op reads are past the depth."""
        config, operation = self._config, item.context.operation
        kinds = [AluOp.REQUANTIZE] * config.requantize + [AluOp.LOOKUP] * config.lookup
        beyond = [
            (operation == kind) & (item.indices.src > config.acc.depth - config.alu_sources(kind))
            for kind in kinds
        ]
        if config.multiply_add:
            above = item.context.immediate[config.acc.index_width :]
            beyond.append((operation == AluOp.MULTIPLY_ADD) & above.any())
        return item.enable & Cat(beyond).any()

    def _add_lanes(self, m: Module, computing: Any) -> list[Any]:
        """A lane for each scalar of an element, which operates on what stage ``computing`` has
        read."""
        config = self._config
        tile = tile_layout(config.acc)
        first, second, written = (
            data.View(tile, port.data[0]) for port in (self.dst_read, self.src_read, self.write)
        )
        immediate = Signal(signed(config.acc_width))
        m.d.comb += immediate.eq(computing.context.immediate)
        lanes = []
        for b in range(config.batch):
            for j in range(config.block_out):
                looks_up = bool(config.lookup)
                lane: Any = (
                    RequantizingLane(looks_up, bool(config.multiply_add))
                    if config.requantize
                    else AluLane(config.acc_width, looks_up, registered=is_small(config))
                )
                lanes.append(lane)
                m.submodules[f"lane_{b}_{j}"] = self._groups.member("lanes", lane)
                m.d.comb += [
                    lane.enable.eq(computing.write),
                    lane.operation.eq(computing.context.operation),
                    lane.a.eq(first[b][j]),
                    # One of them is 0. With the choices of the read port, one LUT of six inputs.
                    lane.b.eq(second[b][j] | immediate),
                    written[b][j].eq(lane.result),
                ]
        return lanes

    def _read_parameters(
        self,
        m: Module,
        hazards: Hazards,
        lanes: list[Any],
        ready: Signal,
        works: Signal,
        busy: Signal,
        taken: Signal,
    ) -> Value:
        """Loads the parameters of REQUANTIZE into ``lanes`` when the next micro-op names others,
        and the factor of MULTIPLY_ADD at its first one.

        ``ready`` is low while it stalls for them. Gives whether a parameter arrives.
        """
        item, comes = hazards.o.payload, hazards.i.ready
        count = isa.REQUANTIZE_PARAMETERS
        wanted, known, hit = Signal(), Signal(), Signal()
        index = Signal(self._config.acc.index_width)
        step = Signal(range(count + 2))
        arriving = Signal(count)
        adds: Value = Const(0, 1)
        comes_to_add: Value = Const(0, 1)
        if self._config.multiply_add:
            adds = item.context.operation == AluOp.MULTIPLY_ADD
            comes_to_add = self._comes(AluOp.MULTIPLY_ADD)
        # Found when the micro-op comes: much depends on it.
        with m.If(comes):
            m.d.sync += [
                wanted.eq(self._comes(AluOp.REQUANTIZE) | comes_to_add),
                hit.eq(known & ((index == self.i.payload.indices.src) | comes_to_add)),
            ]
        with m.If(wanted & ~hit):
            m.d.comb += ready.eq(0)
        m.d.sync += arriving.eq(0)
        with m.If(works & wanted & ~hit & ~busy):
            with m.If(step < Mux(adds, 1, count)):
                m.d.comb += [
                    self.src_read.enable.eq(1),
                    self.src_read.index.eq(
                        Mux(adds, item.context.immediate, item.indices.src + step)
                    ),
                ]
                # A factor is what the lanes keep of a scale.
                m.d.sync += arriving.eq(Mux(adds, 0b0110, 1 << step))
            m.d.sync += step.eq(step + 1)
            with m.If(step == Mux(adds, 1, count)):
                m.d.sync += [
                    step.eq(0),
                    known.eq(1),
                    hit.eq(1),
                    index.eq(item.indices.src),
                ]
        # Accumulators may change between instructions.
        with m.If(taken & item.last):
            m.d.sync += [known.eq(0), hit.eq(0)]
        for lane in lanes:
            m.d.comb += lane.parameter.eq(arriving)
        return arriving.any()

    def _look_up(
        self,
        m: Module,
        hazards: Hazards,
        lanes: list[Any],
        looking: Any,
        ready: Signal,
        works: Signal,
        busy: Signal,
        taken: Signal,
    ) -> Value:
        """Gives ``lanes`` copies of the table that the next micro-op names, and looks up the
        entries for that in the stage ``looking``.

        ``ready`` as for `_read_parameters`. Gives whether a copy is written to.
        """
        item, config = hazards.o.payload, self._config
        m.submodules.table_reader = reader = TableReader(config)
        words = TableWords(config)
        m.submodules.table_words = self._groups.member("lanes", words)
        wanted, looks_up = Signal(), Signal()
        with m.If(hazards.i.ready):
            m.d.sync += wanted.eq(self._comes(AluOp.LOOKUP))
        m.d.comb += [
            reader.comes.eq(hazards.i.ready),
            reader.next_src.eq(self.i.payload.indices.src),
            reader.wanted.eq(works & wanted & ~busy),
            reader.src.eq(item.indices.src),
            words.element.eq(self.src_read.data[0]),
            words.take.eq(reader.take),
            words.taken_place.eq(reader.place),
            Value.cast(reader.written).eq(Cat(self.written, taken & works, item.indices.dst)),
            looks_up.eq(looking.write & (looking.context.operation == AluOp.LOOKUP)),
        ]
        with m.If(wanted & ~reader.known):
            m.d.comb += ready.eq(0)
        with m.If(reader.read):
            m.d.comb += [self.src_read.enable.eq(1), self.src_read.index.eq(reader.index)]
        for number, lane in enumerate(lanes):
            table = self._groups.member("lanes", Table())
            m.submodules[f"table_{number}"] = table
            m.d.comb += [
                table.write.eq(words.write),
                table.place.eq(words.place),
                table.word.eq(words.word),
                table.read.eq(looks_up),
                table.index.eq(lane.index),
                lane.entry.eq(table.entry),
            ]
        return reader.take | words.write


def alu_operands(config: Config) -> dict[str, int]:
    """Index width of each operand of an ALU micro-op."""
    return {"dst": config.acc.index_width, "src": config.acc.index_width}
