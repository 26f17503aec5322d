"""``vta disasm``: print the program of an image."""

from __future__ import annotations

import click


@click.command()
@click.argument("image", type=click.Path())
@click.option("--uops", is_flag=True, help="Print the micro-ops of each GEMM and ALU instruction.")
def disasm(image: str, uops: bool) -> None:
    """Print the program of IMAGE.npz, one line per instruction.

    A line gives the instruction's index, the module that executes it, what it does, and the tokens
    that it pops before (take) and pushes after (give). Micro-ops are those that the program loads
    from the image's memory.
    """
    import numpy as np

    from amaranth_vta.hw import isa
    from amaranth_vta.sim.programs.image import ProgramImage
    from amaranth_vta.sw.disassembly import listing

    program = ProgramImage.load(image)
    first = program.bases.get(isa.Memory.UOP, 0) - program.origin

    def read(address: int, size: int) -> np.ndarray:
        begin, end = np.clip([first + address, first + address + size], 0, program.dram.size)
        data = program.dram[begin:end]
        # A LOAD from outside the memory faults when it runs, but can be printed.
        return np.pad(data, (0, size - data.size))

    for line in listing(program.config, program.instruction_bits(), read if uops else None):
        click.echo(line)
