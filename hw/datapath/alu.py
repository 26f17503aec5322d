"""The tensor ALU: one vector operation per cycle on accumulators."""

from itertools import pairwise
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_vta.hw import isa
from amaranth_vta.hw.clock_groups import ONE_CLOCK, ClockGroups
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.hw.timing import alu_latency, early_end, has_long_alu

from .alu_lane import AluLane
from .dot_products import tile_layout
from .gemm import acc_read_port, acc_write_port, busy_banks
from .hazards import Hazards
from .looped_lanes import LoopedLanes
from .requantize import RequantizingLane
from .sequencer import IndexedUop
from .shared_lanes import SharedLanes
from .sources import SourceReader
from .table import Table, TableReader, TableWords, written_elements


class AluContext(data.Struct):
    """Fields of an ALU instruction other than its loops."""

    operation: AluOp
    use_immediate: 1
    immediate: signed(isa.IMMEDIATE_WIDTH)


class AluUnit(wiring.Component):
    """Executes micro-ops: ``acc[dst] = operation(acc[dst], immediate or acc[src])``.

    Timing: one micro-op per cycle, or per as many cycles as columns share a lane. An item accepted
    in cycle t reads its operands in t, or in t + 1 with `has_long_alu`, and writes `alu_latency` +
    1 cycles later. The read ports forward data that are being written. A micro-op with a hazard,
    which reads an element that an older one has not written yet, stalls until the write
    (`Hazards`). A REQUANTIZE whose parameters differ from its predecessor's in the same instruction
    reads them first, each in as many cycles as a micro-op takes, while older micro-ops are in
    flight; without a copy they take one more cycle. These stall until everything older is written,
    and then read elements before their operands: the first MULTIPLY_ADD of an instruction (its
    factor); a LOOKUP whose table is not in the lanes (one word per cycle). The latest table stays
    valid until one of its accumulators is written. With OVERLAP some sources take one more cycle
    (`SourceReader`).

    Ports
    -----
    i : micro-ops from the sequencer
    dst_read, src_read : read ports of the accumulators
    src_read_clear : with ``src_read``: 0 is read, to which an immediate is added
    write : write port of the accumulators, for whole elements; without REQUANTIZE its data are 0
        while nothing is written
    written : writes of other units to the accumulators (with LOOKUP)
    bank, denied : half of the accumulators that the next micro-op writes; the other unit uses it,
        so the micro-op stalls
    busy_ports : (with OVERLAP) per half of the accumulators, whether the other unit reads it in
        this cycle
    ahead_read, ahead_read_keeps : (with OVERLAP) read port for sources without a copy, never in the
        half that ``dst_read`` reads; and per half whether its data are kept for another cycle,
        otherwise they become 0
    busy_banks : per half of the accumulators, whether a write to it is in flight
    takes : it executes a micro-op, or stops at one
    done, error : as in the GEMM unit
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
        self.operands = alu_operands(config)
        super().__init__(
            {
                "i": In(stream.Signature(IndexedUop(self.operands, AluContext))),
                "dst_read": Out(acc_read_port(config)),
                "src_read": Out(acc_read_port(config)),
                "src_read_clear": Out(1),
                "write": Out(acc_write_port(config)),
                **({"written": In(written_elements(config))} if config.lookup else {}),
                **(_prefetch_ports(config) if config.overlap else {}),
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
        # Control that accompanies a micro-op: one stage per register of the lanes; the last one
        # writes.
        entering = Signal(control)
        latency = alu_latency(config, self._choices)
        stages = [Signal(control, name=f"stage_{n}") for n in range(latency + 1)]
        computing, writing = stages[0], stages[-1]
        finished = Signal(control)
        ending = [*stages, finished][-1 - early_end(config)]

        hazards = self._add_hazards(m, stages if has_long_alu(config) else stages[:-1])
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
            self.takes.eq(taken & item.enable),
        ]
        busy = Signal()
        reader = None
        if has_long_alu(config):
            reader = self._add_reader(m, hazards, works)
            m.d.comb += ready.eq(~reader.ahead & reader.ready)
        else:
            self._read_operands(m, item, taken & works)
        m.d.comb += [
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

        # Also during the write: afterwards results return to 0.
        active: Value = busy
        lanes = self._add_lanes(m, computing)
        if reader:
            waiting = _Waiting(hazards, reader, works, works & ~busy, taken, ready)
            active |= self._prefetch(m, waiting, lanes, stages)
        m.d.comb += [
            self.write.enable.eq(writing.write),
            self.write.lanes.eq(~0),
            self.write.index.eq(writing.dst),
            self.done.eq(ending.done),
            self.error.eq(ending.error),
        ]
        m.d.sync += self.busy_banks.eq(busy_banks([entering, *stages[:-1]]))
        m.d.comb += busy.eq(Cat(stage.write for stage in stages).any())
        self._groups.activate(m, "lanes", active)
        return m

    def _read_operands(self, m: Module, item: Any, enters: Value) -> None:
        """Read both operands of a micro-op when it enters the pipeline."""
        m.d.comb += [
            self.bank.eq(item.indices.dst[-1]),
            self.dst_read.enable.eq(enters),
            self.dst_read.index.eq(item.indices.dst),
            self.src_read.enable.eq(enters),
            self.src_read.index.eq(item.indices.src),
            self.src_read_clear.eq(item.context.use_immediate),
        ]

    def _add_reader(self, m: Module, hazards: Hazards, works: Signal) -> SourceReader:
        """Add the reader for the operands of the micro-op in the stall register."""
        item = hazards.o.payload
        m.submodules.reader = reader = SourceReader(self._config, item.shape())
        connect(m, reader.dst_read, flipped(self.dst_read))
        connect(m, reader.src_read, flipped(self.src_read))
        if self._config.overlap:
            connect(m, reader.ahead_read, flipped(self.ahead_read))
            m.d.comb += self.ahead_read_keeps.eq(reader.ahead_read_keeps)
        m.d.comb += [
            self.src_read_clear.eq(reader.src_read_clear),
            self.bank.eq(item.indices.dst[-1]),
            reader.busy_ports.eq(self.busy_ports if self._config.overlap else 0),
            reader.comes.eq(hazards.i.ready),
            reader.coming.eq(self.i.payload),
            reader.coming_waits.eq(hazards.coming_waits),
            reader.item.eq(item),
            reader.works.eq(works),
            reader.waits.eq(hazards.source_waits),
            hazards.prefetches.eq(reader.ahead),
            hazards.moves_on.eq(reader.granted & reader.moves_on),
            hazards.next_element.eq(reader.next_element),
        ]
        return reader

    def _add_hazards(self, m: Module, before: list[Any]) -> Hazards:
        """Add the hazard check before the pipeline; ``before``: stages that may still write."""
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

    def _arriving_is(self, operation: AluOp) -> Value:
        """Whether the arriving micro-op has this operation."""
        item = self.i.payload
        return item.enable & (item.context.operation == operation)

    def _reads_beyond(self, item: Any) -> Value:
        """Whether parameters, table or factor of the micro-op exceed the depth."""
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

    def _second_read(self) -> Value:
        """OR of all second operands read, of which at most one is not 0."""
        if not self._config.overlap:
            return self.src_read.data[0]
        return self.src_read.data[0] | self.ahead_read.data[0]

    def _add_lanes(self, m: Module, computing: Any) -> list[Any]:
        """Add a lane per scalar of an element, which operates on the data read by stage
        ``computing``; returns the lanes, or their ports.
        """
        config = self._config
        lanes = self._lanes(m)
        tile = tile_layout(config.acc)
        first, second, written = (
            data.View(tile, value)
            for value in (self.dst_read.data[0], self._second_read(), self.write.data[0])
        )
        immediate = Signal(signed(config.acc_width))
        m.d.comb += immediate.eq(computing.context.immediate)
        for number, lane in enumerate(lanes):
            b, j = divmod(number, config.block_out)
            m.d.comb += [
                lane.enable.eq(computing.write),
                lane.operation.eq(computing.context.operation),
                lane.a.eq(first[b][j]),
                # One of them is 0. Together with the read port's multiplexer, one six-input LUT.
                lane.b.eq(second[b][j] | immediate),
                written[b][j].eq(lane.result),
            ]
        return lanes

    def _lanes(self, m: Module) -> list[Any]:
        config, looks_up = self._config, bool(self._config.lookup)
        if self._has_bundle:
            bundle = LoopedLanes(config) if self._groups.separate else SharedLanes(config)
            m.submodules.lanes = self._groups.member("lanes", bundle)
            return bundle.lanes
        lanes = []
        for b in range(config.batch):
            for j in range(config.block_out):
                lane: Any = (
                    RequantizingLane(looks_up, bool(config.multiply_add), bool(config.round_twice))
                    if config.requantize
                    else AluLane(config.acc_width, looks_up, self._choices.alu_lane_registers)
                )
                lanes.append(lane)
                m.submodules[f"lane_{b}_{j}"] = self._groups.member("lanes", lane)
        return lanes

    @property
    def _has_bundle(self) -> bool:
        """Whether one component contains all lanes and their tables."""
        shares = self._config.lane_columns > 1
        return shares or (self._groups.separate and bool(self._config.requantize))

    def _prefetch(
        self, m: Module, waiting: "_Waiting", lanes: list[Any], stages: list[Any]
    ) -> Value:
        """Load the parameters, factor or table of the waiting micro-op into ``lanes``. Returns
        whether one of them arrives.
        """
        config, reader = self._config, waiting.reader
        reads = []
        if config.requantize:
            reads.append(self._prefetch_parameters(m, waiting, lanes))
        if config.lookup:
            reads.append(self._prefetch_table(m, waiting, lanes, stages[lanes[0].to_index]))
        if not reads:
            return Const(0)
        wanted, asks, moves_on, arrives = (Cat(values).any() for values in zip(*reads, strict=True))
        m.d.comb += [reader.ahead.eq(wanted), reader.asks.eq(asks), reader.moves_on.eq(moves_on)]
        return arrives

    def _prefetch_parameters(self, m: Module, waiting: "_Waiting", lanes: list[Any]) -> "_Prefetch":
        """Load REQUANTIZE parameters into ``lanes`` when the next micro-op names others, and the
        factor of MULTIPLY_ADD at its first micro-op.
        """
        item, comes, reader = waiting.hazards.o.payload, waiting.hazards.i.ready, waiting.reader
        columns = self._config.lane_columns
        wanted, known, hit = Signal(), Signal(), Signal()
        index = Signal(self._config.acc.index_width)
        step = Signal(range(isa.REQUANTIZE_PARAMETERS))
        # The last one is read; the micro-op waits another cycle for one without a copy.
        ends_now, ends = Signal(), Signal()
        arriving = Signal(isa.REQUANTIZE_PARAMETERS)
        adds: Value = Const(0, 1)
        comes_to_add: Value = Const(0, 1)
        if self._config.multiply_add:
            adds = item.context.operation == AluOp.MULTIPLY_ADD
            comes_to_add = self._arriving_is(AluOp.MULTIPLY_ADD)
        is_last = adds | (step == isa.REQUANTIZE_PARAMETERS - 1)
        # Determined when the micro-op arrives, since the result has a high fan-out.
        with m.If(comes):
            m.d.sync += [
                wanted.eq(self._arriving_is(AluOp.REQUANTIZE) | comes_to_add),
                hit.eq(known & ((index == self.i.payload.indices.src) | comes_to_add)),
            ]
        # Older REQUANTIZEs use the bias first and the bounds last, as parameters arrive, so none of
        # them gets a parameter of this one. Any older micro-op may write the factor.
        may_read = Mux(adds, waiting.may_read, waiting.works)
        arrives_late = reader.late | adds
        asks = may_read & wanted & ~hit & ~ends
        with m.If(asks & reader.granted):
            m.d.sync += step.eq(Mux(adds, 0, step + 1))
            m.d.comb += ends_now.eq(is_last)
        m.d.sync += ends.eq(ends_now & arrives_late)
        has_ended: Value = ends
        if columns > 1:
            occupied = _occupy_lanes(m, waiting, columns, asks & reader.granted)
            has_ended = ends & ~occupied
            with m.If(ends & occupied):
                m.d.sync += ends.eq(1)
        with m.If(Mux(arrives_late, has_ended, ends_now)):
            m.d.sync += [known.eq(1), hit.eq(1), index.eq(item.indices.src)]
        # Accumulators may change between instructions.
        with m.If(waiting.taken & item.last):
            m.d.sync += [known.eq(0), hit.eq(0)]
        # The lanes keep a factor in their scale registers.
        number = Mux(adds, 0b0110, Const(1) << step)
        arrives, arrived = _delayed(m, asks & reader.granted, number, reader.late)
        with m.If(arrives):
            m.d.comb += arriving.eq(arrived)
        for lane in lanes:
            m.d.comb += lane.parameter.eq(arriving)
        return _Prefetch(wanted & ~hit, asks, asks & ~is_last, arrives)

    def _prefetch_table(
        self, m: Module, waiting: "_Waiting", lanes: list[Any], looking: Any
    ) -> "_Prefetch":
        """Copy the table that the next micro-op names into ``lanes``, and look up its entries in
        stage ``looking``.
        """
        hazards, item, config = waiting.hazards, waiting.hazards.o.payload, self._config
        m.submodules.table_reader = reader = TableReader(config)
        words = TableWords(config)
        m.submodules.table_words = self._groups.member("lanes", words)
        wanted, looks_up = Signal(), Signal()
        with m.If(hazards.i.ready):
            m.d.sync += wanted.eq(self._arriving_is(AluOp.LOOKUP))
        enters = waiting.taken & waiting.works
        m.d.comb += [
            reader.comes.eq(hazards.i.ready),
            reader.next_src.eq(self.i.payload.indices.src),
            reader.wanted.eq(waiting.may_read & wanted),
            reader.granted.eq(waiting.reader.granted),
            reader.src.eq(item.indices.src),
            # With LOOKUP, the second operands of the lanes are the element read, without an
            # immediate.
            words.element.eq(Cat(lane.b for lane in lanes)),
            Cat(words.take, words.taken_place).eq(
                Cat(_delayed(m, reader.take, reader.place, waiting.reader.late))
            ),
            Value.cast(reader.written).eq(Cat(self.written, enters, item.indices.dst)),
            looks_up.eq(looking.write & (looking.context.operation == AluOp.LOOKUP)),
        ]
        for table, lookups in self._tables(m, lanes):
            m.d.comb += [
                table.write.eq(words.write),
                table.place.eq(words.place),
                table.word.eq(words.word),
                table.read.eq(looks_up),
                *lookups,
            ]
        # A short pipeline would look up an entry before the last word is written.
        incomplete = ~reader.known | (0 if lanes[0].to_index else words.take)
        return _Prefetch(
            wanted & incomplete, reader.asks, reader.moves_on, words.take | words.write
        )

    def _tables(self, m: Module, lanes: list[Any]) -> list[tuple[Any, list[Any]]]:
        """Add a table per lane. Returns each with the statements that connect it to its lane.

        A bundle of lanes contains their tables, and has the tables' common ports once.
        """
        if self._has_bundle:
            return [(lanes[0].table, [])]
        tables = []
        for number, lane in enumerate(lanes):
            table = self._groups.member("lanes", Table())
            m.submodules[f"table_{number}"] = table
            tables.append((table, [table.index.eq(lane.index), lane.entry.eq(table.entry)]))
        return tables


class _Waiting(NamedTuple):
    """The micro-op in the stall register of a long pipeline, and its operand reader. ``may_read``:
    the micro-op will execute, and nothing in flight writes the elements needed before its operands.
    ``ready``: the pipeline accepts it.
    """

    hazards: Hazards
    reader: SourceReader
    works: Signal
    may_read: Value
    taken: Signal
    ready: Signal


class _Prefetch(NamedTuple):
    """Elements needed before the operands: whether any is ``wanted``, whether one is requested and
    the reader then advances, and whether data arrive in the lanes.
    """

    wanted: Value
    asks: Value
    moves_on: Value
    arrives: Value


def _occupy_lanes(m: Module, waiting: _Waiting, columns: int, reads: Value) -> Value:
    """Hold the next micro-op, or its parameters, while columns of a micro-op or of a parameter that
    is read (``reads``) have yet to enter the lanes; returns whether any have.
    """
    left = Signal(range(columns))
    occupied = left != 0
    with m.If((waiting.taken & waiting.works) | reads):
        m.d.sync += left.eq(columns - 1)
    with m.Elif(occupied):
        m.d.sync += left.eq(left - 1)
    with m.If(occupied):
        m.d.comb += waiting.ready.eq(0)
        with m.If(waiting.reader.ahead):
            m.d.comb += waiting.reader.waits.eq(1)
    return occupied


def _delayed(m: Module, read: Value, number: Value, late: Signal) -> tuple[Value, Value]:
    """Delay ``read`` and ``number`` until the data arrive: by one cycle or, if ``late``, by two."""
    early, waits, arrives_late = Signal(), Signal(), Signal()
    numbers = [Signal(len(number), name=f"number_{cycles}") for cycles in (1, 2)]
    m.d.sync += [
        # ``late`` may change before the data arrive.
        early.eq(read & ~late),
        waits.eq(read & late),
        arrives_late.eq(waits),
        *(after.eq(before) for before, after in pairwise([number, *numbers])),
    ]
    return early | arrives_late, Mux(arrives_late, numbers[1], numbers[0])


def _prefetch_ports(config: Config) -> dict[str, Any]:
    """Ports for reading ahead."""
    return {
        "busy_ports": In(2),
        "ahead_read": Out(acc_read_port(config, cycles=2)),
        "ahead_read_keeps": Out(2),
    }


def alu_operands(config: Config) -> dict[str, int]:
    """Index width of each operand of an ALU micro-op."""
    return {"dst": config.acc.index_width, "src": config.acc.index_width}
