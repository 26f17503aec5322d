"""``vta compare``: compare two runs layer by layer."""

from __future__ import annotations

import click

from amaranth_vta.cli.common.options import json_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.cli.common.problems import DONE


@click.command()
@click.argument("first", metavar="A.json", type=click.Path())
@click.argument("second", metavar="B.json", type=click.Path())
@click.option(
    "--html",
    "html_path",
    type=click.Path(),
    metavar="FILE",
    help="Write an HTML page with the whole breakdown of the cycles.",
)
@json_option
def compare(first: str, second: str, html_path: str | None, json_path: str | None) -> int:
    """Compare two runs layer by layer, and say what changed most.

    A.json and B.json are what --json of `vta run` or `vta bench` wrote, on a device that counts
    cycles. The runs may differ in configuration, in memory, or in the version of a network or
    schedule. Layers are matched by name and operator. Totals count equal work alone; the share of
    the host is printed above the table.
    """
    from amaranth_vta.report.changes import changes_json, changes_page, changes_table
    from amaranth_vta.report.measured import load_measured

    measured = load_measured(first), load_measured(second)
    with Outputs() as outputs:
        outputs.reserve("--html", html_path)
        outputs.reserve("--json", json_path)
        outputs.say(changes_table(*measured, outputs.text_width))
        page = changes_page(*measured).encode(errors="replace")
        outputs.save("--html", lambda file: file.write(page))
        outputs.save_json("--json", changes_json(*measured))
    return DONE
