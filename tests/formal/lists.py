"""Helpers for assertions: a reference list, and the stability rule of streams."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Assert, Assume, Module, ShapeLike, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out


class List(wiring.Component):
    """A FIFO for assertions, with the oldest item at index 0.

    Popping an empty list or pushing into a full one is a bug of the assertions; users that compare
    ``count`` assert that neither happens.

    Ports
    -----
    put, item : append ``item``
    take : remove the oldest item
    items, count : contents; ``items`` beyond ``count`` are undefined
    """

    def __init__(self, shape: ShapeLike, depth: int) -> None:
        self._depth = depth
        super().__init__(
            {
                "put": In(1),
                "item": In(shape),
                "take": In(1),
                "items": Out(data.ArrayLayout(shape, depth)),
                "count": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        after_take = Signal.like(self.count)
        m.d.comb += after_take.eq(self.count - self.take)
        m.d.sync += self.count.eq(after_take + self.put)
        with m.If(self.take):
            for place in range(self._depth - 1):
                m.d.sync += Value.cast(self.items[place]).eq(Value.cast(self.items[place + 1]))
        with m.If(self.put):
            m.d.sync += Value.cast(self.items[after_take]).eq(Value.cast(self.item))
        return m


def assume_stable(m: Module, stream: Any, name: str) -> None:
    """Assume that an input ``stream`` is stable until accepted."""
    m.d.comb += Assume(_is_stable(m, stream, name))


def assert_stable(m: Module, stream: Any, name: str) -> None:
    """Assert that an output ``stream`` is stable until accepted."""
    m.d.comb += Assert(_is_stable(m, stream, name))


def _is_stable(m: Module, stream: Any, name: str) -> Value:
    waits, payload = Signal(name=f"{name}_waits"), Value.cast(stream.payload)
    before = Signal(len(payload), name=f"{name}_before")
    m.d.sync += [waits.eq(stream.valid & ~stream.ready), before.eq(payload)]
    return ~waits | (stream.valid & (payload == before))
