"""``vta classify``: run a network on a board that needs no host."""

from __future__ import annotations

import click

from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sim.progress import building

from .input_files import read_inputs


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--inputs",
    "inputs_path",
    type=click.Path(),
    metavar="X.npz",
    required=True,
    help="An .npz with an array of images for each input of the graph.",
)
@click.option("--images", type=click.IntRange(min=1), metavar="N", help="Only the first N images.")
def classify(file: str, inputs_path: str, images: int | None) -> None:
    """Run the compiled network FILE on a board with a processor.

    The board is at $VTA_PORT, with a bitstream of `vta build --network` for the same machine; with
    VTA_PORT=simulated:BOARD it is simulated from reset. Its processor gets firmware with the
    network, receives each image over the serial line, and answers with label and scores. Prints the
    label of each image, and the cycles from its last byte to the answer.
    """
    from amaranth_vta.firmware.connection import open_classifier
    from amaranth_vta.sw.runtime.network.network_file import load_network

    with explain_missing_extras():
        network = load_network(file)
        given = read_inputs(inputs_path)
        missing = [name for name in network.inputs if name not in given]
        if missing:
            raise click.ClickException(f"--inputs {inputs_path} has no array {missing[0]}")
        batches = {name: (info.shape or (1,))[0] for name, info in network.inputs.items()}
        count = min(len(given[name]) // batch for name, batch in batches.items())
        if images is not None:
            count = min(count, images)
        with (
            building("the simulated board", None) as told,
            open_classifier(network, told) as classifier,
        ):
            for at in range(count):
                inputs = {
                    name: given[name][at * batch : (at + 1) * batch]
                    for name, batch in batches.items()
                }
                answer = classifier.run(inputs)
                click.echo(
                    f"{at}: label {answer.label}, {answer.cycles:,} cycles, "
                    f"{answer.machine_cycles:,} of them on the machine"
                )
