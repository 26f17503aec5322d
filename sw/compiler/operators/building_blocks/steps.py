"""Element-wise steps behind a requantization, on results in accumulators: tables and lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth_vta.hw.isa import REQUANTIZE_PARAMETERS
from amaranth_vta.sw.compiler import te
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.te.expr import Expr
from amaranth_vta.sw.compiler.te.tensor import Tensor

# Returns constant number n at an index of the total.
Constant = Callable[..., Expr]
# Factor of a line's operand: a bias is a multiple of 1/4096 of a step, and sums have 25 bits.
LINE_FACTOR = 1 << 12


@dataclass(frozen=True)
class LookupTable:
    """A LOOKUP in a table of this many accumulators (`Config.table_elements`), an argument
    (`te.table_tiles`).
    """

    elements: int

    # Accumulators for constants per tile of output channels, and live at a time per result.
    constants = 0
    accumulators = 1
    # ALU micro-ops per vector of results.
    operations = 1

    @property
    def shared(self) -> int:
        """Accumulators for constants that all channels share."""
        return self.elements

    def without_parameters(self) -> LookupTable:
        return self


@dataclass(frozen=True)
class PerChannelLine:
    """A straight line between bounds, different for each channel: a multiplication by ``factor``,
    ±`LINE_FACTOR`, then a REQUANTIZE, whose parameters follow those of the requantization.
    """

    factor: int = LINE_FACTOR

    constants = REQUANTIZE_PARAMETERS
    accumulators = 1
    operations = 2
    shared = 0

    def without_parameters(self) -> PerChannelLine:
        return self

    def stages(self, value: Tensor, constant: Constant) -> list[Tensor]:
        """The stages from ``value`` to the result; ``constant`` returns its parameters."""
        scaled = te.compute(value.shape, lambda *i: value(*i) * self.factor, f"{value.name}_scaled")
        return [scaled, requantized(scaled, constant, f"{value.name}_line")]


def requantized(total: Tensor, constant: Constant, name: str) -> Tensor:
    """The stage ``name`` that requantizes ``total`` with parameters that ``constant`` returns."""
    numbers = range(REQUANTIZE_PARAMETERS)
    return te.compute(
        total.shape,
        lambda *i: te.requantize(total(*i), *(constant(number, *i) for number in numbers)),
        name,
    )


def shared_constants(elements: int, name: str, env: Environment) -> tuple[Tensor, Tensor]:
    """The argument ``name``, ``elements`` tiles shared by all channels, and its buffer."""
    given = te.placeholder((elements, env.BATCH, env.BLOCK_OUT), name, env.acc_dtype)
    return given, te.compute(given.shape, lambda *i: given(*i), f"{name}_buf")


def looked_up(value: Tensor, table: Tensor, stage: str = "entries") -> Tensor:
    """The ``stage`` that looks up ``value`` in ``table``, given as its buffer."""

    def entry(*i: Expr) -> Expr:
        return te.lookup(value(*i), *(table(n, *i[-2:]) for n in range(table.shape[0])))

    return te.compute(value.shape, entry, stage)
