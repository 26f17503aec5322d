"""``vta config``: a complete configuration as JSON."""

from __future__ import annotations

import click

from amaranth_vta.hw.config import DEFAULT, Config

from .options import ConfigType


@click.command()
@click.argument("machine", metavar="[NAME|FILE]", type=ConfigType(), default=DEFAULT)
def config(machine: Config) -> None:
    """Print a configuration, complete, as JSON.

    NAME is a preset (tiny, batch2, int4, pynq, block32, tiny-extended, pynq-extended), FILE one in
    the form of vta_config.json; without either it is the default, pynq-extended.
    """
    click.echo(machine.to_json())
