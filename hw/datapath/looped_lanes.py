"""The lanes of an ALU with REQUANTIZE, and their tables, as loops for simulation."""

from pathlib import Path
from typing import Any, NamedTuple

from amaranth.hdl import ClockSignal, Instance, Module, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp

from .requantize import RequantizingLane
from .table import TABLE_PORTS


class LoopedLanes(wiring.Component):
    """A `RequantizingLane` per scalar of an accumulator element, each with a `Table`, as loops in
    the module `LOOPS`: for simulation.

    Timing: as in `RequantizingLane`. All lanes share ``enable``, ``operation``, ``parameter`` and
    the inputs of their tables except for the index.
    """

    LOOPS = Path(__file__).with_name("alu_lanes.sv")

    def __init__(self, config: Config) -> None:
        self._config = config
        scalars = data.ArrayLayout(signed(config.acc_width), config.batch * config.block_out)
        super().__init__(
            {
                "enable": In(1),
                "operation": In(AluOp),
                "parameter": In(isa.REQUANTIZE_PARAMETERS),
                "a": In(scalars),
                "b": In(scalars),
                "result": Out(scalars),
                "table": In(wiring.Signature(TABLE_PORTS)),
            }
        )

    @property
    def lanes(self) -> list["LoopedLane"]:
        """The ports of each lane."""
        return [
            LoopedLane(self.enable, self.operation, self.parameter, self.table, *scalars)
            for scalars in zip(self.a, self.b, self.result, strict=True)
        ]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        m.submodules.loops = Instance(
            "alu_lanes",
            p_LANES=config.batch * config.block_out,
            p_LOOKS_UP=config.lookup,
            p_ADDS=config.multiply_add,
            p_TWICE=config.round_twice,
            i_clk=ClockSignal(),
            i_enable=self.enable,
            i_operation=self.operation,
            i_parameters=self.parameter,
            i_a=Value.cast(self.a),
            i_b=Value.cast(self.b),
            **{f"i_table_{name}": getattr(self.table, name) for name in TABLE_PORTS},
            o_result=Value.cast(self.result),
        )
        return m


class LoopedLane(NamedTuple):
    """Ports of one lane of `LoopedLanes`, and the common inputs of all tables."""

    enable: Any
    operation: Any
    parameter: Any
    table: Any
    a: Any
    b: Any
    result: Any

    @property
    def to_index(self) -> int:
        return RequantizingLane.to_index
