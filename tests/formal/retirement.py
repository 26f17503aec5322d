"""A module retires its instructions in order, and does nothing after its first faulty
instruction."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.issue import in_order

from .proving import Proof

_CAUSES = (isa.Cause.BUS_ERROR, isa.Cause.INDEX_OUT_OF_RANGE)
# Instructions per program, and in flight (scaled down from 16).
_PROGRAM, _IN_FLIGHT = 6, 3


# Model state of an issued or rejected instruction.
_INSTRUCTION = data.StructLayout(
    {"unit": 2, "cause": 3, "push_prev": 1, "push_next": 1, "done": 1, "failed": 1}
)


class RetirementProperty(wiring.Component):
    """Compute with two units, checked against a table of the instructions that it has accepted.

    Instructions with any flags go to any unit or none, or are refused for any cause. Each unit
    finishes its instructions in order at any time, and may fail once. Tokens, and room for them,
    arrive in any cycle.

    An instruction starts with all its tokens, but never after a refused instruction or a fault. It
    retires in the first cycle in which all earlier instructions have retired, its unit is done, and
    there is room for its tokens, which it pushes in that cycle and in no other. The reported fault
    is that of the first instruction that was refused or failed, and stays.
    """

    def __init__(self, module: Any) -> None:
        self._order = module.InOrder(PRESETS["tiny"], isa.Module.COMPUTE, _CAUSES)
        super().__init__(
            {
                "valid": In(1),
                "flags": In(4),
                "unit": In(2),
                "refusal": In(3),  # illegal, out of range, out of bounds
                "may_start": In(1),
                "unit_ready": In(1),
                "available": In(2),
                "full": In(2),
                "done": In(2),
                "error": In(2),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.order = order = self._order
        table = [Signal(_INSTRUCTION, name=f"instruction_{n}") for n in range(_PROGRAM)]
        taken, retired = Signal(range(_PROGRAM + 1)), Signal(range(_PROGRAM + 1))
        self._drive(m, taken)
        self._run_units(m, table, taken)

        issue_now = order.insn.valid & order.insn.ready
        cause = Signal(3)
        m.d.comb += cause.eq(
            Mux(
                self.refusal[0],
                isa.Cause.ILLEGAL_INSTRUCTION,
                Mux(
                    self.refusal[1],
                    isa.Cause.INDEX_OUT_OF_RANGE,
                    Mux(self.refusal[2], isa.Cause.BUS_ERROR, 0),
                ),
            )
        )
        for number, item in enumerate(table):
            with m.If(issue_now & (taken == number)):
                m.d.sync += [
                    item.unit.eq(self.unit),
                    item.cause.eq(cause),
                    item.push_prev.eq(self.flags[2]),
                    item.push_next.eq(self.flags[3]),
                ]
        m.d.sync += [
            taken.eq(taken + issue_now),
            retired.eq(retired + order.status.retire),
        ]
        refused = Cat((item.cause != 0) & (taken > n) for n, item in enumerate(table)).any()
        takes = Cat(order.from_load.take, order.from_store.take)
        m.d.comb += [
            Assert(~issue_now | (~refused & ~order.fault.valid)),
            Assert(order.start == (issue_now & (cause == 0))),
            Assert(~order.start | (self.may_start & self.unit_ready)),
            Assert((takes & ~self.available) == 0),
            Assert(takes == Mux(issue_now & ~self.refusal[0], self.flags[:2], 0)),
        ]
        self._check_retirement(m, table, taken, retired)
        return m

    def _drive(self, m: Module, taken: Signal) -> None:
        order = self._order
        offered = Cat(self.flags, self.unit, self.refusal)
        waits, before = Signal(), Signal(len(offered))
        m.d.sync += [waits.eq(order.insn.valid & ~order.insn.ready), before.eq(offered)]
        m.d.comb += [
            order.insn.valid.eq(self.valid & (taken != _PROGRAM)),
            order.insn.payload.entry.bits.eq(self.flags << 3),
            order.insn.payload.entry.index.eq(taken),
            order.unit.eq(self.unit),
            Assume(self.unit <= len(_CAUSES)),
            Cat(order.illegal, order.out_of_range, order.out_of_bounds).eq(self.refusal),
            order.may_start.eq(self.may_start),
            order.unit_ready.eq(self.unit_ready),
            Cat(order.from_load.available, order.from_store.available).eq(self.available),
            Cat(order.to_load.full, order.to_store.full).eq(self.full),
            order.done.eq(self.done),
            order.error.eq(self.error),
            order.drained.eq(1),
            Assume(~waits | (self.valid & (offered == before))),
        ]

    def _run_units(self, m: Module, table: list[Any], taken: Signal) -> None:
        """A unit finishes its oldest unfinished instruction, unless the unit has failed."""
        for unit in range(len(_CAUSES)):
            mine = [
                (item.unit == unit + 1) & (item.cause == 0) & (taken > number)
                for number, item in enumerate(table)
            ]
            failed = Cat(is_mine & item.failed for is_mine, item in zip(mine, table, strict=True))
            waiting = Signal(_PROGRAM, name=f"waiting_{unit}")
            m.d.comb += [
                waiting.eq(
                    Cat(
                        is_mine & ~item.done & ~item.failed
                        for is_mine, item in zip(mine, table, strict=True)
                    )
                ),
                Assume(~self.done[unit] | (waiting.any() & ~failed.any())),
                Assume(~self.error[unit] | self.done[unit]),
            ]
            first = waiting & ~(waiting - 1)[:_PROGRAM]
            for number, item in enumerate(table):
                with m.If(self.done[unit] & first[number]):
                    m.d.sync += [
                        item.done.eq(~self.error[unit]),
                        item.failed.eq(self.error[unit]),
                    ]

    def _check_retirement(
        self, m: Module, table: list[Any], taken: Signal, retired: Signal
    ) -> None:
        order = self._order
        oldest, present = Signal(_INSTRUCTION), Signal()
        done, faulty, full = Signal(), Signal(), Signal()
        # Whether the oldest instruction finishes in this cycle.
        done_now = Signal()
        gives = Cat(order.to_load.give, order.to_store.give)
        pushes = Cat(oldest.push_prev, oldest.push_next)
        m.d.comb += [
            oldest.eq(Array([Value.cast(item) for item in (*table, table[0])])[retired]),
            present.eq(retired != taken),
            faulty.eq((oldest.cause != 0) | oldest.failed),
            full.eq((pushes & self.full).any()),
        ]
        for unit in range(len(_CAUSES)):
            with m.If((oldest.unit == unit + 1) & self.done[unit] & ~self.error[unit]):
                m.d.comb += done_now.eq(1)
        m.d.comb += [
            done.eq((oldest.unit == 0) | oldest.done | done_now),
            Assert(order.status.retire == (present & done & ~faulty & ~full)),
            Assert(gives == Mux(order.status.retire, pushes, 0)),
        ]
        fault = order.fault
        expected = Mux(oldest.cause != 0, oldest.cause, Array([0, *_CAUSES, 0])[oldest.unit])
        was_faulty = Signal()
        m.d.sync += was_faulty.eq(present & faulty)
        m.d.comb += [
            Assert(fault.valid == was_faulty),
            Assert(~fault.valid | ((fault.index == retired) & (fault.cause == expected))),
        ]
        # Cover: instruction 2 finishes before instruction 1, and instruction 3 fails.
        overtaken = Signal()
        with m.If(present & ~oldest.done & (retired == 1) & table[2].done & (taken > 2)):
            m.d.sync += overtaken.eq(1)
        m.d.comb += Cover(overtaken & (retired == 3) & table[3].failed & fault.valid)


PROOFS = (
    Proof(
        name="retirement",
        modules=(in_order,),
        specify=RetirementProperty,
        mode="bmc",
        depth=10,
        bugs=(
            ("refused.eq(cause != 0)", "refused.eq(0)"),
            ("                refused.eq(1),\n", ""),
            ("done & ~full & ~self.fault.valid", "done & ~self.fault.valid"),
            ("change = count, succeeds, mine", "change = count, self.done[number], mine"),
            ("with m.If(error & ~some):", "with m.If(error):"),
            ("self.fault.index.eq(oldest.index)", "self.fault.index.eq(self.head.entry.index)"),
            ("(illegal | (tokens & (cannot_start", "(illegal | (1 & (cannot_start"),
            ("retire & oldest[f", "in_flight.o.valid & done & oldest[f"),
        ),
        smaller=(
            (
                "INSTRUCTIONS_IN_FLIGHT,\n            registered",
                f"{_IN_FLIGHT},\n            registered",
            ),
        ),
    ),
)
