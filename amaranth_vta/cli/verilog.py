"""``vta verilog``: the machine as Verilog."""

from __future__ import annotations

import click

from amaranth_vta.hw.config import Config

from .options import config_option
from .outputs import Outputs


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
def verilog(config: Config, output: str) -> None:
    """Write the machine as one Verilog file, with everything it needs.

    Its top module `vta` has an AXI4 master, an AXI4-Lite slave for its registers, and an
    interrupt. The same configuration gives the same file, to the byte.
    """
    with Outputs() as outputs:
        outputs.reserve("-o", output)
        from amaranth_vta.sim.machine import elaborate

        text = elaborate.verilog(config)
        outputs.save("-o", lambda file: file.write(text.encode()))
