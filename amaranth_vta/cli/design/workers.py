"""Options that select the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from amaranth_vta.explore.workers import Workers

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes on this machine.  [default: one per core]",
)
scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="A Dask scheduler whose workers do the work, such as tcp://big:8786; they need this "
    "package and nothing else.",
)


def open_workers(jobs: int | None, scheduler: str | None) -> Workers:
    """Opens the workers that the two options select."""
    if jobs is not None and scheduler is not None:
        raise click.UsageError("--jobs is for this machine, --scheduler has workers of its own")
    from amaranth_vta.explore.workers import Workers

    return Workers(jobs, scheduler)
