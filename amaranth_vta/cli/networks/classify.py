"""``vta classify``: run a network on a board that needs no host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import waves_option
from amaranth_vta.cli.common.outputs import WAVES, Outputs, save_waves
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.sim.progress import building

from .input_files import read_inputs

if TYPE_CHECKING:
    from amaranth_vta.sw.runtime.network.network_program import NetworkProgram


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
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(),
    metavar="FILE",
    help="Write an .npz with an array for each output of the graph.",
)
@waves_option
def classify(
    file: str,
    inputs_path: str,
    images: int | None,
    outputs_path: str | None,
    waves: str | None,
) -> None:
    """Run the compiled network FILE on a board with a processor.

    The board is at $VTA_PORT, with a bitstream of `vta build --network` for the same machine; with
    VTA_PORT=simulated:BOARD it is simulated from reset. Its processor gets firmware with the
    network, receives each image over the serial line, and answers with label and scores. Prints the
    label of the first image of each batch, and the cycles from the last byte to the answer. Waves
    are those of a simulated board, from reset on.
    """
    import numpy as np

    from amaranth_vta.firmware.connection import open_classifier
    from amaranth_vta.sw.runtime.array_file import write_arrays
    from amaranth_vta.sw.runtime.network.network_file import load_network

    with explain_missing_extras(), Outputs() as outputs:
        outputs.reserve("--outputs", outputs_path)
        part = outputs.reserve(WAVES, waves)
        network = load_network(file)
        given = read_inputs(inputs_path)
        runs, batches = _runs(network, given, inputs_path, images)
        answers = []
        with (
            building("the simulated board", None) as told,
            open_classifier(network, told, part) as classifier,
        ):
            for run in range(runs):
                inputs = {
                    name: given[name][run * batch : (run + 1) * batch]
                    for name, batch in batches.items()
                }
                answers.append(answer := classifier.run(inputs))
                outputs.say(
                    f"{run * max(batches.values())}: label {answer.label}, "
                    f"{answer.cycles:,} cycles, {answer.machine_cycles:,} of them on the machine"
                )
        results = {
            name: np.concatenate([answer.outputs[name] for answer in answers])
            for name in network.outputs
        }
        outputs.save("--outputs", lambda file: write_arrays(file, results))
        save_waves(outputs, waves)


def _runs(
    network: NetworkProgram, given: Mapping[str, Any], path: str, images: int | None
) -> tuple[int, dict[str, int]]:
    """The number of runs for the first ``images`` of the arrays ``given`` by the file ``path``, and
    the images of each input per run. The last run may exceed ``images`` to complete its batch.
    """
    batches = {}
    for name, info in network.inputs.items():
        if name not in given:
            raise click.ClickException(f"--inputs {path} has no array {name}")
        if not given[name].ndim or not info.shape:
            raise click.ClickException(f"--inputs {path}: {name} is a number, not images")
        batches[name] = info.shape[0]
        if len(given[name]) < batches[name]:
            raise click.ClickException(
                f"--inputs {path}: {name} has {len(given[name])} images, and a run takes "
                f"{batches[name]}"
            )
    runs = min(len(given[name]) // batch for name, batch in batches.items())
    return min(runs, -(-(images or sys.maxsize) // max(batches.values()))), batches
