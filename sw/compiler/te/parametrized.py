"""Operations with parameters: requantization and table lookup."""

from __future__ import annotations

from typing import ClassVar

from .expr import Expr


class Parametrized(Expr):
    """An operation whose second operand is its parameters, in consecutive accumulators."""

    __slots__ = ("parameters", "value")
    name: ClassVar[str]

    def __init__(self, value: Expr, *parameters: Expr) -> None:
        self.value, self.parameters = value, parameters
        self.dtype = value.dtype

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, (self.value, *self.parameters)))})"


class Requantize(Parametrized):
    """``value`` plus a bias, scaled, rounded, plus a zero point and clipped; defined by
    `amaranth_vta.sw.compiler.te.requantization.requantized`.
    """

    __slots__ = ()
    name = "requantize"


class Lookup(Parametrized):
    """The table entry for the low byte of ``value``; defined by
    `amaranth_vta.sw.compiler.te.tables.looked_up`. The parameters are the tiles of the table, each
    at the index of the value within its tile.
    """

    __slots__ = ()
    name = "lookup"
