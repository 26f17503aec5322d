"""A breakdown of the cycles of runs, as a text table: `cycles_table`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from amaranth_vta.sw.runtime.counters import Spent, summed

from .text_table import text_table

if TYPE_CHECKING:
    from amaranth_vta.sim.estimate.contract import MemoryContract

# Counters shown as shares of the cycles: compute's activities, then the modules that overlap with
# them.
_SHARES = {
    "gemm_busy": "GEMM",
    "alu_busy": "ALU",
    "compute_load_busy": "UOP,\nACC",
    "compute_waits_for_load": "waits\nload",
    "compute_waits_for_store": "waits\nstore",
    "load_busy": "load",
    "store_busy": "store",
}
_NOTE = (
    "Shares of the cycles: GEMM, ALU and compute's own loads (UOP, ACC) are busy; compute waits "
    "for a token of load or store; load and store are busy. Overlap: of load's busy cycles, those "
    "in which GEMM is busy too."
)


# Printed for a machine without counters.
UNKNOWN = (
    "Where the cycles went is not known: the machine has no counters (COUNTERS = 0). "
    "`--device estimate` estimates it."
)
# Printed below estimated cycles.
ESTIMATED = "The cycles are estimated, not counted on the design."


def bounded(contract: MemoryContract, width: int | None = 80) -> str:
    """The line below upper bounds on cycles."""
    return fill(
        f"The cycles are upper bounds for every memory that keeps the contract {contract}.",
        width or 80,
        break_on_hyphens=False,
    )


def cycles_table(
    spent: Sequence[Spent], per: str, width: int | None = 80, estimated: bool = False
) -> str:
    """One row per item, and a total row if there are several: cycles per run, and their shares.

    ``per`` names the unit of the cycles; ``estimated`` cycles are marked. Returns `UNKNOWN` for a
    machine without counters.
    """
    if not all(item.is_known for item in spent):
        return fill(UNKNOWN, width or 80)
    heads = ("", "cycles", *_SHARES.values(), "overlap")
    total = _row(summed(spent)) if len(spent) > 1 else None
    table = text_table(heads, [_row(item) for item in spent], total, width=width)
    head = f"Where the cycles went, {per}{', estimated' if estimated else ''}"
    return f"{head}\n{table}\n{fill(_NOTE, width or 80)}"


def _row(item: Spent) -> list[str]:
    shares = [item.share(counter) for counter in _SHARES]
    return [
        item.name,
        f"{item.cycles / item.runs:,.0f}",
        *(f"{share:.0%}" if share else "" for share in shares),
        "" if item.overlap is None else f"{item.overlap:.0%}",
    ]
