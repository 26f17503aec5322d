"""``vta verilog``: write the machine as Verilog."""

from __future__ import annotations

import click

from amaranth_vta.cli.common.options import config_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import DEFAULT_ATTRIBUTES, BusAttributes, Config


@click.command()
@config_option
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="The file to write; standard output if neither this nor --split is given.",
)
@click.option(
    "--split",
    type=click.Path(),
    metavar="DIR",
    help="Write a folder with a file for each module, and vta.f, which lists them.",
)
@click.option(
    "--prot",
    type=click.IntRange(0, 7),
    default=DEFAULT_ATTRIBUTES.prot,
    show_default=True,
    help="AxPROT of the memory bus: 2 is non-secure data, 0 secure data.",
)
@click.option(
    "--cache",
    type=click.IntRange(0, 15),
    default=DEFAULT_ATTRIBUTES.cache,
    show_default=True,
    help="AxCACHE of the memory bus: 3 is bufferable and modifiable, 15 for a coherent port.",
)
def verilog(config: Config, output: str | None, split: str | None, prot: int, cache: int) -> None:
    """Write the machine as Verilog, with everything it needs.

    Its top module `vta` has an AXI4 master, an AXI4-Lite slave for its registers, and an
    interrupt. The same configuration gives the same file, to the byte.
    """
    with Outputs() as outputs:
        outputs.reserve("-o", output or (None if split else "-"))
        outputs.reserve_folder("--split", split, replaced="vta.f")
        from amaranth_vta.sim.machine import elaborate

        text = elaborate.verilog(config, attributes=BusAttributes(prot, cache))
        outputs.save("-o", lambda file: file.write(text.encode()))
        if split is not None:
            files = elaborate.split_verilog(text)
            outputs.save_folder("--split", {name: part.encode() for name, part in files.items()})
