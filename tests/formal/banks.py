"""GEMM and the ALU never use the same bank of the accumulators at the same time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Const, Cover, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import compute, isa
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath import alu, gemm, hazards, sources
from amaranth_vta.hw.timing import has_long_alu

from .lists import List, assume_stable
from .proving import Proof

# More micro-ops than either unit has in flight.
_IN_FLIGHT = 8


class BankProperty(wiring.Component):
    """Both units and their bank arbitration, checked against lists of each unit's pending writes.

    Micro-ops arrive in any cycle, with any operation and indices, errors included; a fault occurs
    in any cycle, and stays. Each unit writes exactly the accepted micro-ops, in order. From the
    cycle in which a unit accepts a micro-op until the cycle in which it writes, the other unit has
    no micro-op in that bank. GEMM waits only for this or a fault, after which neither unit accepts
    working micro-ops.

    The ALU reads a micro-op's destination when it accepts it, and GEMM does not read that bank
    then. When the ALU reads ahead, neither GEMM nor its own destination port reads that bank, and
    it has no pending write to the element in flight; this is asserted for any one ``element``.
    """

    def __init__(self, gemm_module: Any, alu_module: Any, module: Any, config: Config) -> None:
        self._config = config
        self._gemm, self._alu = gemm_module.GemmUnit(config), alu_module.AluUnit(config)
        self._arbitrate_banks = module.arbitrate_banks
        super().__init__(
            {
                "gemm_valid": In(1),
                "gemm_item": In(self._gemm.i.payload.shape()),
                "alu_valid": In(1),
                "alu_item": In(self._alu.i.payload.shape()),
                "failed": In(1),
                "element": In(config.acc.index_width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.gemm, m.submodules.alu = self._gemm, self._alu
        self._arbitrate_banks(m, self._gemm, self._alu, self.failed)
        failed_before = Signal()
        m.d.sync += failed_before.eq(self.failed)
        m.d.comb += Assume(self.failed | ~failed_before)

        in_gemm, gemm_works, gemm_dst = self._follow(m, "gemm", self._gemm, self._gemm.acc_write)
        in_alu, alu_works, alu_dst = self._follow(m, "alu", self._alu, self._alu.write)
        self._compare_reads(m, alu_works, alu_dst)

        gemm_bank = gemm_dst[-1]
        waits = self._gemm.i.valid & ~self._gemm.i.ready
        m.d.comb += [
            Assert((in_gemm & in_alu) == 0),
            Assert(~waits | self.failed | in_alu.bit_select(gemm_bank, 1)),
            Assert(~self.failed | (~gemm_works & ~alu_works)),
        ]
        # Both write in one cycle, and later GEMM enters the bank that the ALU used.
        together, swapped = Signal(2), Signal()
        with m.If(self._gemm.acc_write.enable & self._alu.write.enable):
            m.d.sync += together.eq(in_alu)
        with m.If(gemm_works & together.bit_select(gemm_bank, 1)):
            m.d.sync += swapped.eq(1)
        m.d.comb += Cover(swapped & (in_gemm == 0) & (in_alu == 0))
        return m

    def _compare_reads(self, m: Module, works: Value, index: Value) -> None:
        """Assert the ALU's reads: if it ``works``, the destination ``index``."""
        gemm, dst, ahead = self._gemm.acc_read, self._alu.dst_read, self._alu.ahead_read
        gemm_reads = gemm.enable & ~self._gemm.acc_read_clear
        place = self._config.acc.index_width - 1

        def share_a_bank(one: Any, other: Any) -> Value:
            return one.index[place] == other.index[place]

        # How many micro-ops in flight write to the element.
        writers = Signal(range(_IN_FLIGHT))
        before, is_first = Signal.like(self.element), Signal(init=1)
        enters = works & (index == self.element)
        leaves = self._alu.write.enable & (self._alu.write.index == self.element)
        m.d.sync += [
            writers.eq(writers + enters - leaves),
            before.eq(self.element),
            is_first.eq(0),
        ]
        reads = ahead.enable & (ahead.index == self.element)
        m.d.comb += [
            Assume(is_first | (self.element == before)),
            Assert(~works | (dst.enable & (dst.index == index))),
            Assert(~works | ~gemm_reads | ~share_a_bank(gemm, dst)),
            Assert(~ahead.enable | ~gemm_reads | ~share_a_bank(gemm, ahead)),
            Assert(~ahead.enable | ~dst.enable | ~share_a_bank(dst, ahead)),
            Assert(~reads | ((writers == 0) & ~enters)),
        ]

    def _reads_beyond(self, name: str, item: Any) -> Value:
        """Whether the unit ``name`` reads beyond the depth after its source: further inputs of
        GEMM, or parameters, a table or a factor of the ALU.
        """
        source = item.indices.src
        if name == "gemm":
            config = self._config
            most = config.inp.depth - config.taps
            return item.context.tapped & (source > most) if config.depthwise else Const(0)
        operation = item.context.operation
        elements = {
            isa.AluOp.REQUANTIZE: self._config.requantize and isa.REQUANTIZE_PARAMETERS,
            isa.AluOp.LOOKUP: self._config.lookup and self._config.table_elements,
        }
        beyond = [
            (operation == kind) & (source > self._config.acc.depth - count)
            for kind, count in elements.items()
            if count
        ]
        if self._config.multiply_add:
            above = item.context.immediate[self._config.acc.index_width :]
            beyond.append((operation == isa.AluOp.MULTIPLY_ADD) & above.any())
        return Cat(beyond).any()

    def _follow(self, m: Module, name: str, unit: Any, write: Any) -> tuple[Signal, Signal, Value]:
        """Per bank, whether the unit has a micro-op with a pending write; whether it accepts one
        now, into its pipeline if micro-ops wait in front of that; and the accumulator which that
        one writes.
        """
        given = getattr(self, f"{name}_item")
        item, waits = given, name == "alu" and has_long_alu(self._config)
        if waits:
            item = Signal.like(given)
            with m.If(unit.i.valid & unit.i.ready):
                m.d.sync += item.eq(given)
            # The sequencer and the instruction check guarantee these.
            m.d.comb += [
                Assume(given.enable | ~given.error),
                Assume(
                    (given.context.operation != isa.AluOp.REQUANTIZE) | ~given.context.use_immediate
                ),
            ]
        index = item.indices.dst
        beyond = self._reads_beyond(name, item)
        m.submodules[f"{name}_writes"] = writes = List(len(index), _IN_FLIGHT)
        stopped, taken, wrong, works = (
            Signal(name=f"{name}_{what}") for what in ("stopped", "taken", "wrong", "works")
        )
        inside = Signal(2, name=f"in_{name}")
        m.d.comb += [
            unit.i.valid.eq(getattr(self, f"{name}_valid")),
            Value.cast(unit.i.payload).eq(Value.cast(given)),
            taken.eq(unit.takes if waits else unit.i.valid & unit.i.ready),
            wrong.eq(item.error | (item.enable & beyond)),
            works.eq(taken & item.enable & ~wrong & ~stopped),
            writes.put.eq(works),
            writes.item.eq(index),
            writes.take.eq(write.enable),
            Assert(writes.count < _IN_FLIGHT),
            Assert(~write.enable | ((writes.count != 0) & (write.index == writes.items[0]))),
            inside.eq(
                Cat(
                    Cat(
                        works & (index[-1] == bank),
                        *(
                            (writes.count > place) & (writes.items[place][-1] == bank)
                            for place in range(_IN_FLIGHT)
                        ),
                    ).any()
                    for bank in range(2)
                )
            ),
        ]
        with m.If(taken & wrong):
            m.d.sync += stopped.eq(1)
        assume_stable(m, unit.i, name)
        return inside, works, index


_BUGS = (
    ("alu.busy_banks.bit_select(gemm_bank, 1) | failed", "failed"),
    ("gemm.busy_banks.bit_select(alu_bank, 1)\n", "0\n"),
    ("            | (gemm.i.valid & (gemm_bank == alu_bank))\n", ""),
    ("gemm_bank, 1) | failed", "gemm_bank, 1)"),
    ("busy_banks(stages[:-2])", "busy_banks(stages[:-3])"),
    ("[entering, *stages[:-1]]", "[entering, *stages[:-2]]"),
    ("stage.dst[-1] == bank", "stage.dst[-2] == bank"),
    ("alu.busy_ports.eq(gemm.busy_ports)", "alu.busy_ports.eq(0)"),
    ("busy_banks([reading])", "busy_banks([summed])"),
    ("~self.ahead & ~self.waits & is_free", "~self.ahead & ~self.waits"),
    ("                & is_free\n", ""),
    ("                & (item.indices.dst[-1] != coming.indices.src[-1])\n", ""),
    ("reader.waits.eq(hazards.source_waits)", "reader.waits.eq(hazards.waits)"),
    ("                & ~self.coming_waits\n", ""),
)
PROOFS = tuple(
    Proof(
        name=f"banks of the accumulators, {what}",
        modules=(gemm, hazards, sources, alu, compute),
        specify=lambda *modules, config=config: BankProperty(modules[0], *modules[-2:], config),
        mode="bmc",
        depth=depth,
        bugs=bugs,
    )
    for what, config, depth, bugs in (
        ("simple lanes", replace(PRESETS["tiny"], overlap=1), 16, _BUGS),
        (
            "REQUANTIZE, LOOKUP and MULTIPLY_ADD",
            PRESETS["tiny-extended"],
            16,
            (
                *_BUGS,
                ("self.asks & ~self.waits & (~self.late | is_free)", "self.asks & ~self.waits"),
                ("self.asks & ~self.waits", "self.asks"),
                ("srcs_next.eq(Cat(Const(0, 1), hits[1:-1]))", "srcs_next.eq(0)"),
            ),
        ),
        (
            "lanes that two columns share",
            replace(PRESETS["tiny-extended"], log_lane_columns=1),
            18,
            (
                ("busy_banks(stages[:-2])", "busy_banks(stages[:-3])"),
                ("alu.busy_ports.eq(gemm.busy_ports)", "alu.busy_ports.eq(0)"),
                ("reader.waits.eq(hazards.source_waits)", "reader.waits.eq(hazards.waits)"),
            ),
        ),
    )
)
