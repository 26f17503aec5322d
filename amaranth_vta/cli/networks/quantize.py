"""``vta quantize``: quantize a float model, and report its accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from amaranth_vta.cli.common.options import dim_option
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.cli.common.progress import progress_bar
from amaranth_vta.extras import explain_missing_extras

if TYPE_CHECKING:
    from collections.abc import Callable

    from amaranth_vta.quantize.accuracy import Accuracy
    from amaranth_vta.quantize.quantizer import Options, QuantizedModel

# Below the first value a tensor gets a warning; below the second it is mostly noise.
_POOR_DECIBELS, _NOISE_DECIBELS = 10, 0
# Maximum number of tensors that a warning names.
_MAX_NAMED = 5
# Number of layers shown, least accurate first.
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
    "folder of .npz and .npy files. They set the dimensions that the model leaves open. The "
    "default is random inputs, which suit only a first try.",
)
@dim_option
@click.option("--per-tensor", is_flag=True, help="One scale for all channels of a weight.")
@click.option(
    "--weights",
    type=click.Choice(["int8", "int4"]),
    default="int8",
    show_default=True,
    help="The weights of matrix products and convolutions. int4 halves what a machine with "
    "WGT_4BIT loads, and costs accuracy.",
)
@click.option(
    "--power-of-two",
    is_flag=True,
    help="Scales that are powers of two, per tensor and without zero points, for machines without "
    "REQUANTIZE.",
)
@click.option(
    "--integer-only",
    is_flag=True,
    help="Write Softmax, normalizations and rotary position embeddings as graphs of integer "
    "operators, which the machine runs, and activations without zero points.",
)
@click.option(
    "--percentile",
    type=click.FloatRange(50, 100),
    metavar="P",
    help="The percentage of an activation's values that its range covers; all if not given.",
)
@click.option(
    "--in-float",
    multiple=True,
    metavar="NAME",
    help="Leave an operator in float, by its name or that of its result; may be repeated. The host "
    "runs it.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Write INT8.onnx even if a tensor is mostly noise (below 0 dB).",
)
def quantize(
    model: str,
    output: str,
    calibrate: str | None,
    dim: tuple[tuple[str, int], ...],
    per_tensor: bool,
    weights: str,
    power_of_two: bool,
    integer_only: bool,
    percentile: float | None,
    in_float: tuple[str, ...],
    force: bool,
) -> int:
    """Quantize FLOAT.onnx to int8, with scales from typical inputs.

    Prints the signal-to-noise ratio, against the float model, of the outputs and of the layers that
    lose most, and warns of those below 10 dB. If one is below 0 dB nothing is written and the exit
    code is 1.
    """
    with explain_missing_extras():
        from amaranth_vta.quantize.accuracy import accuracy
        from amaranth_vta.quantize.open_branches import open_branches
        from amaranth_vta.quantize.quantizer import Options
        from amaranth_vta.quantize.quantizer import quantize as quantized
        from amaranth_vta.quantize.samples import samples_from
        from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions, with_sizes
        from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
        from amaranth_vta.sw.compiler.graph.load.opsets import conversion
        from amaranth_vta.sw.compiler.graph.load.quantization import FLOAT_MODEL, why_unquantized

    as_int4 = weights == "int4"
    if as_int4 and power_of_two:
        raise click.UsageError("--weights int4 and --power-of-two exclude each other")
    if integer_only and power_of_two:
        raise click.UsageError("--integer-only and --power-of-two exclude each other")
    options = Options(
        not per_tensor,
        power_of_two,
        percentile,
        in_float=in_float,
        int4_weights=as_int4,
        symmetric_activations=integer_only,
        integer_only=integer_only,
    )
    with Outputs() as outputs:
        outputs.reserve("--output", output)
        read = read_model(model)
        if why_unquantized(read) != FLOAT_MODEL:
            raise click.ClickException(f"{model} is quantized already; give the float model")
        read = with_dimensions(read, dict(dim))
        samples = samples_from(calibrate, read)
        read = with_sizes(read, {name: item.shape for name, item in samples[0].items()})
        with ExitStack() as stack:
            made = quantized(read, samples, options, _progress(stack, "calibrating", len(samples)))
            found = accuracy(made, samples, _progress(stack, "measuring", len(samples)))
        noise = [item for item in found if item.has_signal and item.decibels < _NOISE_DECIBELS]
        if not noise or force:
            outputs.save("--output", lambda file: file.write(made.model.SerializeToString()))
        if note := conversion(read):
            outputs.say(note)
        if calibrate is None:
            outputs.say(
                "Calibrated with random inputs, which suits only a first try; --calibrate takes "
                "typical ones."
            )
        outputs.say(_table(found, outputs.text_width))
        warnings = _warnings(found, made, calibrate is None, options)
        for warning in filter(None, (open_branches(made.model), *warnings)):
            click.echo(f"vta: warning: {warning}", err=True)
        if noise and not force:
            click.echo(
                f"vta: {output} was not written, as {noise[0].name} is mostly noise; --force "
                "writes it",
                err=True,
            )
            return WRONG_RESULT
        config = " --config pynq" if power_of_two else ""
        outputs.say(f"Next: vta run {output}{config} --check")
    return DONE


def _progress(stack: ExitStack, what: str, total: int) -> Callable[[int], None]:
    update = progress_bar(stack, what, total)
    return lambda done: update(completed=done)


def _warnings(
    found: list[Accuracy], made: QuantizedModel, is_random: bool, options: Options
) -> Iterator[str]:
    """Warnings about tensors of poor accuracy, in the order of the graph, with remedies, and about
    functions that stay in float.
    """
    poor = [item for item in found if item.has_signal and item.decibels < _POOR_DECIBELS]
    if poor:
        helps = [
            *(["typical inputs (--calibrate)"] if is_random else []),
            *(["scales of any value (no --power-of-two)"] if options.power_of_two else []),
            *([] if options.per_channel else ["a scale per channel (no --per-tensor)"]),
            *(["weights of 8 bits (no --weights int4)"] if options.int4_weights else []),
            "a range without outliers (--percentile 99.9)"
            if options.percentile is None
            else f"a wider range (--percentile above {options.percentile:g}, or none)",
            f"the first of these and its inputs in float (--in-float {poor[0].name})",
        ]
        names = [f"{item.name} ({item.operator}, {item.decibels:.1f} dB)" for item in poor]
        yield (
            f"below {_POOR_DECIBELS} dB, in the order of the graph: {_few(names)}. What can help: "
            f"{', '.join(helps[:-1])}, or {helps[-1]}"
        )
    if made.zero:
        yield (
            f"zero in all samples, so that the scale is a guess: {_few(made.zero)}. Add samples in "
            f"which it is not zero"
        )
    if made.in_float:
        yield (
            f"in float, so that the host computes them: {_few(made.in_float)}. The documentation "
            "on exporting names the forms that --integer-only replaces"
        )


def _few(names: list[str]) -> str:
    rest = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")


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
