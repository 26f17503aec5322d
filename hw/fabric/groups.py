"""Parts of the machine whose registers keep their values while the part is not active.

In the design all registers have one clock. A simulator may clock a group separately, only in the
cycles in which it is active: it counts the same cycles and writes the same data, in less time. The
clock of a group ticks with the machine's or not at all.
"""

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

# The lanes of the ALU; the dot products; the DMA of load, of compute and of store.
GROUPS = ("lanes", "products", "load_dma", "compute_dma", "store_dma")


class GroupClocks(wiring.Signature):
    """The clock of each group, and ``NAME_active``: it has to tick at the next edge."""

    def __init__(self) -> None:
        super().__init__(
            {
                **{name: In(1) for name in GROUPS},
                **{f"{name}_active": Out(1) for name in GROUPS},
            }
        )


class ClockGroups:
    """How the groups of one machine are clocked: ``apart``, or with everything else."""

    def __init__(self, apart: bool = False) -> None:
        self.apart = apart
        self._active = {name: Signal(name=f"{name}_active") for name in GROUPS}

    def member(self, name: str, component: Any) -> Any:
        """``component``, as a submodule of its parent, in the group ``name``."""
        return DomainRenamer(name)(component) if self.apart else component

    def activate(self, m: Module, name: str, active: Value) -> None:
        """Says when the registers of the group may change; ``m`` is the parent of its members."""
        if self.apart:
            m.d.comb += self._active[name].eq(active)

    @property
    def domains(self) -> tuple[str, ...]:
        """The clock domains of the machine."""
        return ("sync", *GROUPS) if self.apart else ("sync",)

    def connect(self, m: Module, clocks: Any, held: Value) -> None:
        """Makes the clocks of the groups, in the top module. While the core is ``held`` in reset
        all of them tick, so that all registers are reset."""
        for name in GROUPS:
            m.domains += ClockDomain(name, reset_less=True)
            m.d.comb += [
                ClockSignal(name).eq(getattr(clocks, name)),
                getattr(clocks, f"{name}_active").eq(self._active[name] | held),
            ]


TOGETHER = ClockGroups()
