"""``vta explore``: search for the best machines for given networks."""

from __future__ import annotations

from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import jobs_option, open_workers, scheduler_option
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.report.text_table import counted

if TYPE_CHECKING:
    from amaranth_vta.explore.exploration import Exploration
    from amaranth_vta.explore.folder import Folder


@click.command()
@click.argument("spec_path", metavar="SPEC.toml", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR",
    required=True,
    help="The folder to write: results.csv, report.html, and the machines of the front as files.",
)
@jobs_option
@scheduler_option
@click.option("--resume", is_flag=True, help="Resume a stopped run of the same SPEC in DIR.")
def explore(
    spec_path: str, output: str, jobs: int | None, scheduler: str | None, resume: bool
) -> int:
    """Search for the machines that suit networks and an FPGA best.

    SPEC.toml names networks (files, or networks of `vta bench`), memories, lists of values by key
    of the configuration, limits, objectives, and how to search. Each combination that is legal and
    within the limits is compiled for, and its cycles are estimated; area is that of
    `vta estimate-area`. DIR/report.html shows how far it is while it runs; at the end it has the
    Pareto front, some of which is simulated, and the commands that run it. A point that is known is
    not computed again, whatever happened to the run before.
    """
    from amaranth_vta.explore.exploration import Exploration, read_networks
    from amaranth_vta.explore.folder import PAGE, Folder
    from amaranth_vta.explore.page import live_page
    from amaranth_vta.explore.spec import load_spec

    spec = load_spec(spec_path)
    exploration = Exploration(spec, read_networks(spec))
    with Folder(output, spec, exploration.digests, resume) as folder:
        folder.write(PAGE, live_page(exploration))
        with open_workers(jobs, scheduler) as workers:

            def progress(found: Exploration) -> None:
                folder.write(PAGE, live_page(found))
                click.echo(_progress(found), err=True)

            exploration.run(folder, workers, progress)
        _conclude(exploration, folder)
    click.echo(_summary(exploration, output, get_terminal_size().columns))
    if not exploration.best:
        return WRONG_RESULT
    wrong = any(row.rtl and row.rtl.mismatches for row in exploration.rows)
    return WRONG_RESULT if wrong else DONE


def _conclude(exploration: Exploration, folder: Folder) -> None:
    """Writes the configurations of the front and the report."""
    from amaranth_vta.explore.folder import PAGE
    from amaranth_vta.explore.page import final_page, machine_name

    machines = enumerate(rows[0].machine.config for rows in exploration.best)
    folder.write_machines({machine_name(rank): config for rank, config in machines if config})
    folder.write(PAGE, final_page(exploration, exploration.costs_of_best(), str(folder.path)))


def _progress(exploration: Exploration) -> str:
    good = sum(row.status == "ok" for row in exploration.rows)
    return (
        f"{counted(len(exploration.rows), 'point')}, {good:,} within the limits, "
        f"{len(exploration.best):,} on the front"
    )


def _summary(exploration: Exploration, output: str, width: int) -> str:
    from amaranth_vta.explore.page import front_table
    from amaranth_vta.report.text_table import text_table

    lines = [f"{output}: {_progress(exploration)}"]
    for (status, reason), count in exploration.counts.most_common():
        if status != "ok":
            lines.append(f"{count:>7,}  {status}: {reason}")
    if exploration.best:
        heads, rows = front_table(exploration)
        lines.append(text_table(heads, rows, texts=1, width=width))
    lines += exploration.notes
    return "\n".join([*lines, f"{Path(output) / 'report.html'} shows all of it"])
