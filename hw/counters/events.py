"""Events that load, compute, store and the memory ports count, by the names of `COUNTERS`."""

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from amaranth_vta.hw.queues.levels import next_count
from amaranth_vta.hw.timing import BURSTS_IN_FLIGHT

# Per counter, its increment in this cycle.
Events = dict[str, Value]


def unit_events(name: str, activity: Any, unit: Any) -> Events:
    """Instructions that issue to a unit of a module with this `ModuleActivity`, and cycles in which
    the unit is busy.
    """
    return {
        f"{name}_instructions": activity.starts.bit_select(unit, 1),
        f"{name}_busy": activity.busy.bit_select(unit, 1),
    }


def transfer_events(name: str, status: Any, beat: Any, moved: Any) -> Events:
    """Elements that a module with this `ModuleStatus` moves, and cycles in which accesses are in
    flight and no ``beat`` is transferred.
    """
    transfers = beat.valid & beat.ready
    return {
        f"{name}_waits_for_memory": status.accessing & ~transfers,
        **{f"{memory}_elements": Value.cast(moved[memory]) for memory, _ in moved.shape()},
    }


def burst_events(m: Module, name: str, request: Any, ends: Value, held: Value) -> Events:
    """Bursts on a memory port, and the sum of their latencies: the number in flight, per cycle.

    ``held``: the machine is in reset and no burst is in flight.
    """
    under_way = Signal(range(BURSTS_IN_FLIGHT + 1), name=f"{name}s_under_way")
    begins = request.valid & request.ready
    m.d.sync += under_way.eq(Mux(held, 0, next_count(under_way, begins, ends)))
    return {f"{name}_bursts": begins, f"{name}_latency": under_way}
