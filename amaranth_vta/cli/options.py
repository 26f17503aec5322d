"""Options that several commands have."""

from __future__ import annotations

from typing import Any

import click

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.sim.devices import DEVICES, PARTS
from amaranth_vta.sim.machine.dram import DramError, memory_timing


class ConfigType(click.ParamType):
    """The name of a preset, or a file with the JSON of a configuration."""

    name = "NAME|FILE"

    def convert(self, value: Any, param: Any, ctx: Any) -> Config:
        return value if isinstance(value, Config) else Config.load(value)


class DramType(click.ParamType):
    """How the simulated memory answers: ``ideal``, ``ddr`` or ``random:SEED``."""

    name = "ideal|ddr|random:SEED"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        try:
            memory_timing(value)
        except DramError as error:
            self.fail(str(error), param, ctx)
        return str(value)


config_option = click.option(
    "--config",
    type=ConfigType(),
    default=DEFAULT,
    show_default=True,
    help="The machine: a preset, or a file in the form of vta_config.json.",
)
device_option = click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="functional",
    show_default=True,
    help="What runs it: the fast model, the design in Verilator, or the design in Python.",
)
dram_option = click.option(
    "--dram",
    type=DramType(),
    default="ideal",
    show_default=True,
    help="How the memory answers. The functional model has no clock, so it makes no difference.",
)
trace_option = click.option(
    "--trace",
    "trace_path",
    type=click.Path(),
    metavar="FILE",
    help="Write a timeline of the modules, as JSON that ui.perfetto.dev opens.",
)
skip_option = click.option(
    "--skip",
    type=click.Choice(PARTS),
    help="Let a part of the machine do nothing but its tokens, to see what it costs; results are "
    "wrong then.",
)
images_option = click.option(
    "--images",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many images one run takes, of a model that leaves their number open: weights are "
    "loaded once for all of them.  [default: BATCH]",
)
json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(),
    metavar="FILE",
    help="Write what was measured as JSON, also after a fault.",
)
