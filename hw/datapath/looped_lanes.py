"""The lanes of an ALU with REQUANTIZE, and their tables, as loops for simulation."""

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from amaranth.hdl import ClockSignal, Instance, Module, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.isa import AluOp

from .requantize import RequantizingLane
from .table import TABLE_PORTS


class LaneBundle(wiring.Signature):
    """Ports of the lanes of an accumulator element with REQUANTIZE, and of their tables.

    All scalars share ``enable``, ``operation``, ``parameter`` and the inputs of their tables except
    for the index.
    """

    def __init__(self, config: Config) -> None:
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


class LoopedLanes(wiring.Component):
    """A `RequantizingLane` per scalar of an accumulator element, each with a `Table`, as loops in
    the module `LOOPS`: for simulation.

    Timing: as in `RequantizingLane`. With shared lanes, results are delayed by as many
    cycles as in `SharedLanes`.
    """

    LOOPS = Path(__file__).with_name("alu_lanes.sv")

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(LaneBundle(config))

    @property
    def lanes(self) -> list["LanePorts"]:
        """The ports of each scalar."""
        return LanePorts.of(self)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        results: list[Any] = [Value.cast(self.result)]
        for cycle in range(1, config.lane_columns):
            results.append(Signal(len(results[0]), name=f"result_{cycle}"))
        for one, other in pairwise(results):
            m.d.sync += one.eq(other)
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
            o_result=results[-1],
        )
        return m


class LanePorts(NamedTuple):
    """Ports of one scalar of a `LaneBundle`, and the common inputs of all tables."""

    enable: Any
    operation: Any
    parameter: Any
    table: Any
    a: Any
    b: Any
    result: Any

    @classmethod
    def of(cls, bundle: Any) -> list["LanePorts"]:
        """The ports of each scalar of ``bundle``."""
        return [
            cls(bundle.enable, bundle.operation, bundle.parameter, bundle.table, *scalar)
            for scalar in zip(bundle.a, bundle.b, bundle.result, strict=True)
        ]

    @property
    def to_index(self) -> int:
        return RequantizingLane.to_index
