"""The GEMM core: products of tiles and their accumulation."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.clock_groups import ONE_CLOCK, ClockGroups
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.microarchitecture import Microarchitecture
from amaranth_vta.hw.scratchpad import ReadPortSignature, WritePortSignature, geometry
from amaranth_vta.hw.timing import early_end

from .dot_products import (
    DotProducts,
    LoopedDotProducts,
    SingleDotProducts,
    tile_layout,
)
from .sequencer import IndexedUop


class GemmContext(data.StructLayout):
    """Fields of a GEMM instruction other than its loops."""

    def __init__(self, config: Config) -> None:
        tapped = {"tapped": 1} if config.depthwise else {}
        super().__init__({"reset": 1, "overwrite": 1, **tapped})


class GemmUnit(wiring.Component):
    """Executes micro-ops: ``acc[dst] += inp[src] . wgt[wgt]``, without the addition when
    overwriting, or ``acc[dst] = 0`` on reset. A micro-op of DEPTHWISE reads several inputs from
    ``src`` on.

    Timing: one micro-op per cycle for any accumulators. An item accepted in cycle t reads its tiles
    in t, its accumulator one cycle before the dot products are ready, and writes one cycle after
    that. The accumulators' read port forwards data written in the cycle of the read and in the
    next, so later micro-ops see the value.

    Ports
    -----
    i : micro-ops from the sequencer
    inp, wgt : read ports of the scratchpads
    acc_read, acc_write : ports of the accumulators, for whole elements
    acc_read_clear : with ``acc_read``: 0 is read, for overwriting
    denied : the other unit uses the bank of ``dst``: the item is not accepted
    busy_banks : per half of the accumulators, whether a write to it is in flight
    busy_ports : (with OVERLAP) per half of the accumulators, whether it is read in this cycle
    done : high for one cycle when an instruction's last write has been made, or `early_end` cycles
        earlier
    error : with ``done``: an index of a micro-op exceeded the depth; that micro-op and all later
        ones write nothing
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
        self.operands = gemm_operands(config)
        super().__init__(
            {
                "i": In(stream.Signature(IndexedUop(self.operands, GemmContext(config)))),
                "inp": Out(inp_read_port(config)),
                "wgt": Out(ReadPortSignature(config.wgt.element_bits, config.wgt.depth, 1)),
                "acc_read": Out(acc_read_port(config, cycles=2)),
                "acc_read_clear": Out(1),
                "acc_write": Out(acc_write_port(config)),
                "denied": In(1),
                "busy_banks": Out(2),
                **({"busy_ports": Out(2)} if config.overlap else {}),
                "done": Out(1),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        dot_products = self._dot_products()
        m.submodules.dot_products = self._groups.member("products", dot_products)

        stopped = Signal()
        item = self.i.payload
        would_work, works, taken, failed = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            failed.eq(item.error),
            would_work.eq(item.enable & ~failed & ~stopped),
            # The range check of indices runs in parallel.
            self.i.ready.eq(~item.enable | stopped | ~self.denied),
            taken.eq(self.i.valid & self.i.ready),
            works.eq(taken & would_work),
            self.inp.enable.eq(works & ~item.context.reset),
            self.inp.index.eq(item.indices.src),
            self.wgt.enable.eq(self.inp.enable),
            self.wgt.index.eq(item.indices.wgt),
            Value.cast(dot_products.inp).eq(self.inp.data[0]),
            Value.cast(dot_products.wgt).eq(self.wgt.data[0]),
        ]
        if self._config.depthwise:
            further = [self.inp.data[tap] for tap in range(1, self._config.taps)]
            tapped, most = Signal(), self._config.inp.depth - self._config.taps
            m.d.sync += tapped.eq(item.context.tapped)
            # The last input exceeds the depth although the first one does not.
            with m.If(item.enable & item.context.tapped & (item.indices.src > most)):
                m.d.comb += failed.eq(1)
            m.d.comb += [
                Value.cast(dot_products.further).eq(Cat(further)),
                dot_products.tapped.eq(tapped),
            ]
        with m.If(taken & failed):
            m.d.sync += stopped.eq(1)

        stage = GemmStage(self._config.acc.index_width)
        entering = Signal(stage)
        m.d.comb += [
            entering.write.eq(works),
            entering.reset.eq(item.context.reset),
            entering.adds.eq(~item.context.reset & ~item.context.overwrite),
            entering.dst.eq(item.indices.dst),
            entering.done.eq(taken & (item.last | failed) & ~stopped),
            entering.error.eq(failed),
        ]
        # One cycle for the scratchpads, then those of the dot products.
        behind = range(1 + dot_products.latency + 1)
        stages = [entering, *(Signal(stage, name=f"stage_{n}") for n in behind)]
        for one, other in pairwise(stages):
            m.d.sync += other.eq(one)
        reading, summed, writing = stages[dot_products.latency - 1 : dot_products.latency + 2]
        ending = stages[-1 - early_end(self._config)]

        m.d.comb += [
            dot_products.clear.eq(summed.reset),
            self.acc_read.enable.eq(reading.write),
            self.acc_read.index.eq(reading.dst),
            self.acc_read_clear.eq(~reading.adds),
            self.acc_write.enable.eq(writing.write),
            self.acc_write.lanes.eq(~0),
            self.acc_write.index.eq(writing.dst),
            self.done.eq(ending.done),
            self.error.eq(ending.error),
        ]
        # Registered: of all stages before the last but one.
        m.d.sync += self.busy_banks.eq(busy_banks(stages[:-2]))
        if self._config.overlap:
            m.d.comb += self.busy_ports.eq(Mux(reading.adds, busy_banks([reading]), 0))
        multiplying = stages[1 : 1 + dot_products.latency]
        self._groups.activate(m, "products", Cat(stage.write for stage in multiplying).any())
        tile = tile_layout(self._config.acc)
        kept, written = (data.View(tile, port.data[0]) for port in (self.acc_read, self.acc_write))
        for b in range(self._config.batch):
            for j in range(self._config.block_out):
                # The lowest bits, 1 and the carry, add up to a carry into the sum.
                carry, total = dot_products.carries[b][j], dot_products.sums[b][j]
                one, other = Cat(carry, total), Cat(1, kept[b][j])
                m.d.comb += written[b][j].eq((one.as_signed() + other.as_signed())[1:])
        return m

    def _dot_products(self) -> DotProducts:
        if self._groups.separate:
            kind: type[DotProducts] = LoopedDotProducts
        elif self._choices.products_per_multiplier == 1:
            kind = SingleDotProducts
        else:
            kind = DotProducts
        return kind(self._config, self._choices)


class GemmStage(data.StructLayout):
    """Control that accompanies a micro-op through the pipeline."""

    def __init__(self, index_width: int) -> None:
        super().__init__(
            {"write": 1, "reset": 1, "adds": 1, "dst": index_width, "done": 1, "error": 1}
        )


def busy_banks(stages: list[Any]) -> Value:
    """Per half of the accumulators: whether one of ``stages`` writes to it."""
    return Cat(
        Cat(stage.write & (stage.dst[-1] == bank) for stage in stages).any() for bank in range(2)
    )


def inp_read_port(config: Config) -> ReadPortSignature:
    """Port through which GEMM reads its inputs."""
    return ReadPortSignature(config.inp.element_bits, config.inp.depth, config.taps)


def acc_read_port(config: Config, cycles: int = 1) -> ReadPortSignature:
    """Port through which a unit reads one accumulator element per cycle."""
    return ReadPortSignature(config.acc.element_bits, config.acc.depth, 1, cycles)


def acc_write_port(config: Config) -> WritePortSignature:
    """Port through which a unit writes one accumulator element per cycle."""
    lanes = geometry(config, isa.Memory.ACC).lanes
    return WritePortSignature(config.acc.element_bits, config.acc.depth, 1, lanes)


def gemm_operands(config: Config) -> dict[str, int]:
    """Index width of each operand of a GEMM micro-op."""
    return {
        "dst": config.acc.index_width,
        "src": config.inp.index_width,
        "wgt": config.wgt.index_width,
    }
