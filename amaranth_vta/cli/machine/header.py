"""``vta header``: write registers and instructions as a C header."""

from __future__ import annotations

import click

from amaranth_vta.cli.common.options import config_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import Config


@click.command()
@config_option
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    default="-",
    help="The file to write; standard output if not given.",
)
def header(config: Config, output: str) -> None:
    """Write a C header for drivers of the machine.

    It has the offsets of all registers, the numbers of all opcodes, memories and causes, and the
    position of each field of an instruction in this configuration.
    """
    from amaranth_vta.reference.header import header as text_of

    with Outputs() as outputs:
        outputs.reserve("-o", output)
        text = text_of(config)
        outputs.save("-o", lambda file: file.write(text.encode()))
