"""``vta config``: print a complete configuration as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from amaranth_vta.cli.common.options import ConfigType
from amaranth_vta.hw.config import DEFAULT, PRESETS, Config
from amaranth_vta.hw.microarchitecture import Microarchitecture

_HELP = f"""Print a complete configuration as JSON.

NAME is a preset ({", ".join(PRESETS)}), FILE one in the form of vta_config.json; without either it
is the default, {DEFAULT}. With --set, scratchpads that are not set themselves are scaled to what
fits, and standard error says which. With --microarchitecture, prints instead how that machine is
built: where its queues are stored and which pipeline registers it has.
"""


class Setting(click.ParamType):
    """A configuration key and its value."""

    name = "KEY=VALUE"

    def convert(self, value: object, param: object, ctx: object) -> tuple[str, int]:
        key, equals, number = str(value).partition("=")
        try:
            return key.strip().upper(), int(number, 0)
        except ValueError:
            what = "a whole number" if equals else "KEY=VALUE"
            raise click.UsageError(f"--set {value}: this is not {what}") from None


@click.command(help=_HELP)
@click.argument("machine", metavar="[NAME|FILE]", type=ConfigType(), default=DEFAULT)
@click.option(
    "--set",
    "settings",
    type=Setting(),
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter, such as LOG_BLOCK=3; may be repeated.",
)
@click.option(
    "--microarchitecture",
    is_flag=True,
    help="Print the implementation choices that are derived from the configuration.",
)
def config(machine: Config, settings: tuple[tuple[str, int], ...], microarchitecture: bool) -> None:
    values = dict(settings)
    if len(values) < len(settings):
        raise click.UsageError("--set gives a key two values")
    changed = machine.changed(values) if values else machine
    before, after = machine.to_dict(), changed.to_dict()
    for key in after:
        if key.endswith("_BUFF_SIZE") and key not in values and after[key] != before[key]:
            click.echo(f"{key} is {after[key]} and not {before[key]}, to fit", err=True)
    if microarchitecture:
        click.echo(json.dumps(asdict(Microarchitecture.of(changed)), indent=2))
    else:
        click.echo(changed.to_json())
