"""``vta quantize``: quantize a float model, and show how accurate the result is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.outputs import Outputs
from amaranth_vta.extras import explain_missing_extras

if TYPE_CHECKING:
    from amaranth_vta.quantize.accuracy import Accuracy

# The number of layers whose accuracy is shown: those that lose most.
_MAX_LAYERS = 10


@click.command()
@click.argument("model", type=click.Path(), metavar="FLOAT.onnx")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="INT8.onnx",
    required=True,
    help="The file to write.",
)
@click.option(
    "--calibrate",
    type=click.Path(),
    metavar="X.npz|DIR",
    help="Typical inputs: an .npz with an array of many samples for each input of the graph, or a "
    "folder of .npz and .npy files. Sizes that the model leaves open become theirs. If not given "
    "they are random, which suits only a first try.",
)
@click.option("--per-tensor", is_flag=True, help="One scale for all channels of a weight.")
@click.option(
    "--power-of-two",
    is_flag=True,
    help="Scales that are powers of two, per tensor and without zero points, for machines without "
    "REQUANTIZE.",
)
@click.option(
    "--percentile",
    type=click.FloatRange(50, 100),
    metavar="P",
    help="The percentage of an activation's values that its range covers; all if not given.",
)
def quantize(
    model: str,
    output: str,
    calibrate: str | None,
    per_tensor: bool,
    power_of_two: bool,
    percentile: float | None,
) -> None:
    """Quantize FLOAT.onnx to int8, with scales from typical inputs.

    Prints the signal-to-noise ratio, against the float model, of the outputs and of the layers that
    lose most.
    """
    with explain_missing_extras():
        from amaranth_vta.quantize.accuracy import accuracy
        from amaranth_vta.quantize.quantizer import Options, prepare
        from amaranth_vta.quantize.quantizer import quantize as quantized
        from amaranth_vta.quantize.samples import samples_from
        from amaranth_vta.sw.compiler.graph.load.input_shapes import with_sizes
        from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
        from amaranth_vta.sw.compiler.graph.load.opsets import conversion
        from amaranth_vta.sw.compiler.graph.load.quantized_forms import FLOAT, unquantized

    with Outputs() as outputs:
        outputs.reserve("--output", output)
        read = read_model(model)
        if unquantized(read) != FLOAT:
            raise click.ClickException(f"{model} is quantized already; give the float model")
        samples = samples_from(calibrate, read)
        read = with_sizes(read, {name: item.shape for name, item in samples[0].items()})
        made = quantized(read, samples, Options(not per_tensor, power_of_two, percentile))
        found = accuracy(prepare(read), made, samples)
        outputs.save("--output", lambda file: file.write(made.SerializeToString()))
        if note := conversion(read):
            outputs.say(note)
        if calibrate is None:
            outputs.say(
                "Calibrated with random inputs, which suits only a first try; --calibrate takes "
                "typical ones."
            )
        outputs.say(_table(found, outputs.text_width))
        config = " --config pynq" if power_of_two else ""
        outputs.say(f"Next: vta run {output}{config} --check")


def _table(found: list[Accuracy], width: int | None) -> str:
    from amaranth_vta.report.text_table import text_table

    ends = [item for item in found if item.is_output]
    inner = sorted((item for item in found if not item.is_output), key=lambda item: item.decibels)
    rows = [
        (item.name, item.operator, f"{item.decibels:.1f} dB")
        for item in [*ends, *inner[:_MAX_LAYERS]]
    ]
    head = f"Signal to noise of the outputs ({len(ends)}), and of the layers that lose most"
    heads = ("tensor", "operator", "signal to noise")
    return f"{head}\n{text_table(heads, rows, texts=2, width=width)}"
