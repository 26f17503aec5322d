"""ALU lanes that several columns share: `SharedLanes`."""

from itertools import pairwise
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring

from amaranth_vta.hw.config import Config

from .looped_lanes import LaneBundle, LanePorts
from .requantize import RequantizingLane
from .table import Table


class SharedLanes(wiring.Component):
    """A `RequantizingLane`, with a `Table`, for every ``lane_columns`` neighbouring scalars of an
    accumulator element, which it computes one after the other.

    Timing: operands of all scalars are sampled together, and all results are valid together,
    `alu_latency` cycles later. After an operation or a parameter, the next one may follow after
    ``lane_columns`` cycles.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(LaneBundle(config))

    @property
    def lanes(self) -> list[LanePorts]:
        """The ports of each scalar."""
        return LanePorts.of(self)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, columns = self._config, self._config.lane_columns
        begins = Signal()
        m.d.comb += begins.eq(self.enable | self.parameter.any())
        # Bit n: the lanes compute column n + 1, for which control is kept.
        follows = Signal(columns - 1)
        m.d.sync += follows.eq(follows << 1 | begins)
        control = {}
        for name in ("enable", "operation", "parameter"):
            port = getattr(self, name)
            kept = Signal.like(Value.cast(port), name=f"kept_{name}")
            with m.If(begins):
                m.d.sync += kept.eq(Value.cast(port))
            control[name] = Mux(begins, Value.cast(port), Mux(follows.any(), kept, 0))
        reads = [self.table.read, *(Signal(name=f"reads_{n}") for n in range(1, columns))]
        for one, other in pairwise(reads):
            m.d.sync += other.eq(one)
        for number in range(config.alu_lanes):
            lane = RequantizingLane(
                bool(config.lookup), bool(config.multiply_add), bool(config.round_twice), columns
            )
            m.submodules[f"lane_{number}"] = lane
            scalars = range(number * columns, (number + 1) * columns)
            for name, value in control.items():
                m.d.comb += Value.cast(getattr(lane, name)).eq(value)
            for name in ("a", "b"):
                operands = [getattr(self, name)[scalar] for scalar in scalars]
                operand = _in_turn(m, begins, operands, f"{name}_{number}")
                m.d.comb += getattr(lane, name).eq(operand)
            results = [lane.result]
            for column in reversed(range(1, columns)):
                results.append(Signal.like(lane.result, name=f"result_{number}_{column}"))
            for one, other in pairwise(results):
                m.d.sync += other.eq(one)
            m.d.comb += [
                self.result[scalar].eq(result)
                for scalar, result in zip(scalars, reversed(results), strict=True)
            ]
            if config.lookup:
                m.submodules[f"table_{number}"] = table = Table()
                m.d.comb += [
                    table.write.eq(self.table.write),
                    table.place.eq(self.table.place),
                    table.word.eq(self.table.word),
                    table.read.eq(Cat(reads).any()),
                    table.index.eq(lane.index),
                    lane.entry.eq(table.entry),
                ]
        return m


def _in_turn(m: Module, begins: Value, operands: list[Value], name: str) -> Value:
    """The first operand in a cycle in which an operation ``begins``, and its others in the
    following cycles.
    """
    following = [
        Signal.like(operand, name=f"{name}_{column}", reset_less=True)
        for column, operand in enumerate(operands[1:], 1)
    ]
    for register, operand, after in zip(
        following, operands[1:], [*following[1:], following[-1]], strict=True
    ):
        m.d.sync += register.eq(Mux(begins, operand, after))
    return Mux(begins, operands[0], following[0])
