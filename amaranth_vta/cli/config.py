"""``vta config``: print a complete configuration as JSON."""

from __future__ import annotations

import click

from amaranth_vta.hw.config import DEFAULT, PRESETS, Config

from .options import ConfigType

_HELP = f"""Print a complete configuration as JSON.

NAME is a preset ({", ".join(PRESETS)}), FILE one in the form of vta_config.json; without either it
is the default, {DEFAULT}.
"""


@click.command(help=_HELP)
@click.argument("machine", metavar="[NAME|FILE]", type=ConfigType(), default=DEFAULT)
def config(machine: Config) -> None:
    click.echo(machine.to_json())
