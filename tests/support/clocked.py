"""`Clocked` adds the clock that a simulator needs to components without registers."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import connect, flipped


class Clocked(wiring.Component):
    """A component with the same ports, and an unused register."""

    def __init__(self, component: Any) -> None:
        self._component = component
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.component = self._component
        connect(m, flipped(self), self._component)
        toggles = Signal()
        m.d.sync += toggles.eq(~toggles)
        return m
