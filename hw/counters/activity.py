"""Activity of the modules, for counters and simulation timelines."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from amaranth_vta.hw.interfaces import INDEX_WIDTH


class ModuleActivity(wiring.Signature):
    """Activity of load, compute or store. In per-unit fields bit n is unit n; bit 0 means no unit
    (FINISH).

    ``index``, ``unit``
        of the next instruction to issue.
    ``starts``
        per unit, high for one cycle when that instruction issues to it.
    ``begins``
        per unit, high for one cycle when it accepts its next instruction: at issue, or later where
        a command queue precedes the unit.
    ``ends``
        per unit, high for one cycle when it completes its oldest instruction; bit 0 when the
        instruction retires.
    ``busy``
        per unit: it has accepted an instruction and not completed it.
    ``lacks_prev``, ``lacks_next``
        no instruction is in flight, and the next one lacks a token from that neighbour.
    """

    def __init__(self, units: int = 1) -> None:
        super().__init__(
            {
                "index": Out(INDEX_WIDTH),
                "unit": Out(range(units + 1)),
                "starts": Out(units + 1),
                "begins": Out(units + 1),
                "ends": Out(units + 1),
                "busy": Out(units + 1),
                "lacks_prev": Out(1),
                "lacks_next": Out(1),
            }
        )


class FetchActivity(wiring.Signature):
    """Activity of fetch.

    ``index``
        of the next instruction to be dispatched.
    ``hands_over``
        that instruction is dispatched in this cycle.
    ``blocked``
        it waits for room in its queue.
    ``starved``
        it has not arrived from memory yet.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "index": Out(INDEX_WIDTH),
                "hands_over": Out(1),
                "blocked": Out(1),
                "starved": Out(1),
            }
        )


class Activity(wiring.Signature):
    """Activity of all modules; units of compute as in `amaranth_vta.hw.compute.Unit`."""

    def __init__(self, compute_units: int) -> None:
        super().__init__(
            {
                "fetch": Out(FetchActivity()),
                "load": Out(ModuleActivity()),
                "compute": Out(ModuleActivity(compute_units)),
                "store": Out(ModuleActivity()),
            }
        )
