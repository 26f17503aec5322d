"""Where the cycles of runs went, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from amaranth_vta.sw.runtime.counters import Spent, summed

if TYPE_CHECKING:
    from rich.table import Table

# What compute is at, part by part, then what goes on beside it: counters and their headings.
COMPUTE = {
    "gemm_busy": "GEMM",
    "alu_busy": "ALU",
    "compute_load_busy": "UOP, ACC",
    "compute_waits_for_load": "for load",
    "compute_waits_for_store": "for store",
}
BESIDE = {"load_busy": "load", "store_busy": "store"}
# Of a console that is a file.
_WIDTH = 120
# What is said of a run with --skip.
SKIPPED = "{} did nothing but its tokens (--skip): the results are wrong and were not compared"
NOTE = (
    "Shares of the cycles in which GEMM, ALU and compute's own loads are busy, or compute waits "
    "for a token of load or store; then those of load and store, and how much of load's GEMM is "
    "busy beside."
)


def cycles_table(spent: Sequence[Spent]) -> Table:
    """A row an item, and one for all if there are several; a run's cycles, and shares of them."""
    from rich import box
    from rich.table import Table

    table = Table(
        title="Where the cycles went", title_justify="left", caption=NOTE, caption_justify="left"
    )
    table.box = box.SIMPLE_HEAD
    table.add_column("")
    for heading in ("cycles", *COMPUTE.values(), *BESIDE.values(), "beside"):
        table.add_column(heading, justify="right")
    for item in spent:
        table.add_row(*_row(item))
    if len(spent) > 1:
        table.add_section()
        table.add_row(*_row(summed(spent)))
    return table


def show_cycles(spent: Sequence[Spent]) -> None:
    """Prints the table, if there is anything to say, as wide as it is where nobody watches."""
    from rich.console import Console

    if spent:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _WIDTH
        console.print(cycles_table(spent))


def _row(item: Spent) -> list[str]:
    shares = [item.share(counter) for counter in (*COMPUTE, *BESIDE)]
    beside = "" if item.overlap is None else f"{item.overlap:.0%}"
    return [
        item.name,
        f"{item.cycles / item.runs:,.0f}",
        *(f"{share:.0%}" if share else "" for share in shares),
        beside,
    ]
