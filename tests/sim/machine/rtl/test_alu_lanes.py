"""ALU lanes simulated as loops return the results of the lanes that synthesis gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.datapath.looped_lanes import LoopedLanes
from amaranth_vta.hw.datapath.requantize import RequantizingLane
from amaranth_vta.hw.datapath.table import TABLE_PORTS, Table
from amaranth_vta.hw.isa import AluOp
from amaranth_vta.sim.machine.elaborate import SIMPLIFIED, component_verilog
from tests.support.differences import differences

CONFIG = replace(PRESETS["tiny-extended"], lookup=1, multiply_add=1, round_twice=1)
INSTRUCTIONS = 20_000


class LanesOfBothKinds(wiring.Component):
    """Lanes of ``config`` in both forms, with the same inputs; ``differs`` if results do."""

    def __init__(self, config: Config) -> None:
        self._config = config
        width = config.acc.element_bits
        super().__init__(
            {
                "enable": In(1),
                "operation": In(AluOp),
                "parameters": In(4),
                "a": In(width),
                "b": In(width),
                **{f"table_{name}": port for name, port in TABLE_PORTS.items()},
                "differs": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.looped = looped = LoopedLanes(self._config)
        m.d.comb += [Value.cast(looped.a).eq(self.a), Value.cast(looped.b).eq(self.b)]
        results = []
        for number, ports in enumerate(looped.lanes):
            m.submodules[f"lane_{number}"] = lane = RequantizingLane(True, True, True)
            m.submodules[f"table_{number}"] = table = Table()
            m.d.comb += [
                lane.a.eq(ports.a),
                lane.b.eq(ports.b),
                table.index.eq(lane.index),
                lane.entry.eq(table.entry),
            ]
            for each in (lane, ports) if number == 0 else (lane,):
                m.d.comb += [
                    each.enable.eq(self.enable),
                    each.operation.eq(self.operation),
                    each.parameter.eq(self.parameters),
                ]
            for each in (table, ports.table) if number == 0 else (table,):
                m.d.comb += [
                    getattr(each, name).eq(getattr(self, f"table_{name}")) for name in TABLE_PORTS
                ]
            results.append(lane.result)
        m.d.comb += self.differs.eq(Cat(results) != Value.cast(looped.result))
        return m


def test_lanes_in_loops_return_the_results_of_the_design() -> None:
    verilog = component_verilog(LanesOfBothKinds(CONFIG), "vta", SIMPLIFIED)
    loops = LoopedLanes.LOOPS.read_text(encoding="utf-8")
    harness = Path(__file__).with_name("alu_lanes.cpp")
    found = differences(verilog + loops, harness, INSTRUCTIONS)
    assert [operation.name for operation in AluOp if found >> operation & 1] == []
