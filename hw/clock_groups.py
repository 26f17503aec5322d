"""Clock groups: parts of the machine whose registers hold their values while the part is inactive.

The hardware has one clock. A simulator may clock a group separately, only in cycles in which it is
active: faster, with the same cycle counts and data. A group's clock ticks with the machine's clock
or not at all.
"""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

# The lanes of the ALU; the dot products; the DMA of load, of compute and of store.
GROUPS = ("lanes", "products", "load_dma", "compute_dma", "store_dma")


class GroupClocks(wiring.Signature):
    """The clock of each group, and ``NAME_active``: the group must tick at the next edge."""

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(1) for name in GROUPS},
                **{f"{name}_active": Out(1) for name in GROUPS},
            }
        )


class ClockGroups:
    """Clock groups of one machine: clocked ``separate``, or with everything else."""

    def __init__(self, separate: bool = False) -> None:
        self.separate = separate
        self._active = {name: Signal(name=f"{name}_active") for name in GROUPS}

    def member(self, name: str, component: Any) -> Any:
        """Put ``component``, a submodule of its parent, into the group ``name``."""
        return DomainRenamer(name)(component) if self.separate else component

    def activate(self, m: Module, name: str, active: Value) -> None:
        """Define when registers of the group may change; ``m`` is the parent of its members."""
        if self.separate:
            m.d.comb += self._active[name].eq(active)

    @property
    def domains(self) -> tuple[str, ...]:
        """The clock domains of the machine."""
        return ("sync", *GROUPS) if self.separate else ("sync",)

    def connect(self, m: Module, clocks: Any, held: Value) -> None:
        """Create the group clocks in the top module. While the core is ``held`` in reset all of
        them tick, so that all registers are reset.
        """
        for name in GROUPS:
            m.domains += ClockDomain(name, reset_less=True)
            m.d.comb += [
                ClockSignal(name).eq(getattr(clocks, name)),
                getattr(clocks, f"{name}_active").eq(self._active[name] | held),
            ]


ONE_CLOCK = ClockGroups()
