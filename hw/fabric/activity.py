"""What the modules show of what they are at, to the counters and to who watches a simulation."""

from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from .structures import INDEX_WIDTH


class ModuleActivity(wiring.Signature):
    """Of load, compute and store. Bit n of what has a bit a unit is unit n's; bit 0 is nobody's.

    ``index``, ``unit``
        of the next instruction to be issued, and who will execute it.
    ``starts``
        high for one cycle for the unit to which that instruction is handed.
    ``ends``
        high for one cycle for a unit that is done with the oldest instruction that it has; for
        nobody, when its instruction retires.
    ``busy``
        the unit has been handed an instruction and is not done with it.
    ``lacks_prev``, ``lacks_next``
        the module has nothing under way, and that instruction lacks a token from that neighbour.
    """

    def __init__(self, units: int = 1) -> None:
        super().__init__(
            {
                "index": Out(INDEX_WIDTH),
                "unit": Out(range(units + 1)),
                "starts": Out(units + 1),
                "ends": Out(units + 1),
                "busy": Out(units + 1),
                "lacks_prev": Out(1),
                "lacks_next": Out(1),
            }
        )


class FetchActivity(wiring.Signature):
    """Of fetch.

    ``index``
        of the next instruction to be handed over.
    ``hands_over``
        it is handed over in this cycle.
    ``blocked``
        it waits for room in its queue.
    ``starved``
        it has not come from memory yet.
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
    """Of all modules; the units of compute are those of `amaranth_vta.hw.compute.Unit`."""

    def __init__(self, compute_units: int) -> None:
        super().__init__(
            {
                "fetch": Out(FetchActivity()),
                "load": Out(ModuleActivity()),
                "compute": Out(ModuleActivity(compute_units)),
                "store": Out(ModuleActivity()),
            }
        )
