"""``vta disasm``: the program of an image as text."""

from __future__ import annotations

import click


@click.command()
@click.argument("image", type=click.Path())
@click.option("--uops", is_flag=True, help="Print the micro-ops of each GEMM and ALU instruction.")
def disasm(image: str, uops: bool) -> None:
    """Print the program of IMAGE.npz, one line per instruction.

    A line gives the instruction's index, the module that runs it, what it does, and the tokens
    that it takes before and gives after. Micro-ops are followed through the loads that bring them,
    as they stand in the image's memory.
    """
    import numpy as np

    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.disassembly import listing

    program = ProgramImage.load(image)

    def read(address: int, size: int) -> np.ndarray:
        data = program.dram[address : address + size]
        # A load beyond the memory faults when it runs; here it only has to be printed.
        return np.pad(data, (0, size - data.size))

    for line in listing(program.config, program.instruction_bits(), read if uops else None):
        click.echo(line)
