"""``vta verilog``: write the machine as Verilog."""

from __future__ import annotations

import re
from pathlib import Path

import click

from amaranth_vta.cli.common.options import config_option, machines_option, memory_bus_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.bus.attributes import DEFAULT_ATTRIBUTES, BusAttributes
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig


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
@click.option(
    "--prefix",
    default="",
    metavar="NAME",
    help="Put NAME before the names of all modules and of the top module's ports, for designs with "
    "several machines.",
)
@machines_option
@memory_bus_option
@click.option(
    "--waivers",
    type=click.Path(),
    metavar="FILE",
    help="Write a Verilator configuration with the warnings of -Wall that do not apply, and why; "
    "--split writes it as vta.vlt.",
)
def verilog(
    config: Config,
    output: str | None,
    split: str | None,
    prot: int,
    cache: int,
    prefix: str,
    machines: int,
    memory_bus: int,
    waivers: str | None,
) -> None:
    """Write one or several machines as Verilog, self-contained.

    Its top module `vta` has an AXI4 master, an AXI4-Lite slave for its registers, and an
    interrupt. The same configuration gives the same file, to the byte.
    """
    if prefix and not re.fullmatch(r"[A-Za-z_]\w*", prefix, re.ASCII):
        raise click.ClickException(
            f"--prefix {prefix!r} is not the beginning of a Verilog name: use letters, digits and _"
        )
    system = SystemConfig(config, machines, memory_bus)
    with Outputs() as outputs:
        outputs.reserve("-o", output or (None if split else "-"))
        outputs.reserve_folder("--split", split, replaced="vta.f")
        outputs.reserve("--waivers", waivers)
        from amaranth_vta.sim.machine import elaborate

        text = elaborate.system_verilog(system, BusAttributes(prot, cache), prefix=prefix)
        outputs.save("-o", lambda file: file.write(text.encode()))
        pattern = f"*{Path(output).name}" if output and output != "-" else "*"
        outputs.save("--waivers", lambda file: file.write(elaborate.waivers(pattern).encode()))
        if split is not None:
            files = elaborate.split_verilog(text)
            outputs.save_folder("--split", {name: part.encode() for name, part in files.items()})
