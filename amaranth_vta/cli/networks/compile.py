"""``vta compile``: compile a quantized network to a file that runs without the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import (
    config_option,
    context_option,
    dim_option,
    images_option,
    memory_bus_option,
    rounding_option,
    tuned_option,
)
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import MOST_MACHINES
from amaranth_vta.report.text_table import counted

if TYPE_CHECKING:
    from amaranth_vta.sw.runtime.network.network_program import NetworkProgram


@click.command(name="compile")
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", required=True, help="The file to write."
)
@config_option
@images_option
@tuned_option
@rounding_option
@dim_option
@context_option
@click.option(
    "--prefill",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Compile a decoder for blocks of N tokens of the prompt too, with the same caches.",
)
@click.option(
    "--machines",
    type=click.IntRange(1, MOST_MACHINES),
    default=1,
    show_default=True,
    help="Divide the layers of each image between several machines.",
)
@memory_bus_option
def compile_model(
    model: str,
    output: str,
    config: Config,
    images: int | None,
    tuned: str | None,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    context: int | None,
    prefill: int,
    machines: int,
    memory_bus: int,
) -> None:
    """Compile the quantized network of MODEL for a machine.

    MODEL is a file of ONNX or TensorFlow Lite.

    The file holds instructions, micro-ops, weights, the host's part as ONNX, and the configuration
    that it is for. `vta run FILE` runs it, or with --context `vta generate FILE`.
    """
    if prefill > 1 and context is None:
        raise click.UsageError("--prefill needs --context, the number of tokens in the caches")
    from amaranth_vta.session.compilation import compile
    from amaranth_vta.sw.runtime.network.network_file import write_network

    with Outputs() as outputs:
        outputs.reserve("--output", output)
        sizes = dict(dim)
        network = compile(
            *(model, config, images, (), tuned, allow_rounding, sizes, context),
            machines=machines,
            prefill=prefill,
            memory_bus=memory_bus,
        ).program
        outputs.save("--output", lambda file: write_network(network, file))
    line = f"{output}: {_sides(network)}"
    if network.block is not None:
        line += f"; in blocks of {network.tokens_per_block} tokens, {_sides(network.block)}"
    click.echo(line)


def _sides(network: NetworkProgram) -> str:
    return (
        f"{counted(network.layer_count, 'layer')} on the machine, "
        f"{counted(network.host_operator_count, 'operator')} on the host"
    )
