"""``vta export``: write a compiled network as C."""

from __future__ import annotations

import click

from amaranth_vta.cli.common.outputs import Outputs


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "-o", "--output", type=click.Path(), metavar="DIR", required=True, help="The folder to write."
)
@click.option(
    "--name",
    default="network",
    show_default=True,
    help="Prefix of its C identifiers and files, so that several networks link into one program.",
)
def export(file: str, output: str, name: str) -> None:
    """Write the compiled network FILE as C for embedded processors.

    DIR gets NAME.h, which says how to use it, NAME.c with the program, the weights and the
    steps, and a runtime that drives the machine through its registers and a region of memory,
    without allocation and without an operating system. The processor itself runs quantization,
    Softmax, ArgMax and operators that move data; networks that need others there are refused.
    """
    from amaranth_vta.export.network import RUNTIME
    from amaranth_vta.export.network import export as files_of
    from amaranth_vta.export.network_memory import NetworkMemory
    from amaranth_vta.extras import explain_missing_extras
    from amaranth_vta.sw.runtime.network.network_file import load_network

    with Outputs() as outputs, explain_missing_extras():
        outputs.reserve_folder("-o", output, RUNTIME[0])
        network = load_network(file)
        files = files_of(network, name)
        outputs.save_folder("-o", files)
        size = NetworkMemory(network).size
        outputs.say(f"{output}: {', '.join(sorted(files))}; {size:,} bytes of the machine's memory")
