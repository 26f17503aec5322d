"""``vta run``: run a quantized network on the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import (
    bucket_option,
    command_line,
    config_option,
    device_options,
    dim_option,
    images_option,
    json_option,
    launch_option,
    machines_option,
    memory_bus_option,
    require_machines,
    rounding_option,
    split_option,
    tuned_option,
    unchecked,
    waves_option,
    wrong_results,
)
from amaranth_vta.cli.common.outputs import WAVES, Outputs, reserve_trace, save_trace, save_waves
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import Config
from amaranth_vta.report.energy_table import energy_table
from amaranth_vta.report.host_summary import share_on_machine
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES

from .comparison_text import comparison_lines
from .explain import explanation
from .input_files import LABELS, read_inputs, read_labels

if TYPE_CHECKING:
    import onnx

    from amaranth_vta.session import CheckReport, Session
    from amaranth_vta.sim.trace.perfetto import Timeline
    from amaranth_vta.sw.compiler.graph.load.onnx_model import Source

Arrays = dict[str, Any]

# Share of the MACs on the machine from which a model without constant scales needs no --allow-host.
_ENOUGH = 0.9


@click.command()
@click.argument("model", type=click.Path(), metavar="MODEL|FILE")
@config_option
@device_options()
@machines_option
@split_option(None, "By default layers are divided if the inputs fit a single run.")
@memory_bus_option
@images_option
@tuned_option
@rounding_option
@dim_option
@bucket_option
@launch_option
@click.option(
    "--inputs",
    "inputs_path",
    type=click.Path(),
    metavar="FILE",
    help="An .npz with an array for each input of the graph; random inputs if not given.",
)
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(),
    metavar="FILE",
    help="Write an .npz with an array for each output of the graph, or, if it is a sequence, for "
    "each of its elements, NAME[0] and so on.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare with ONNX Runtime: exit code 1 if an element differs from the network in "
    "canonical form, or if results are further from the file than docs/networks.md allows.",
)
@click.option(
    "--labels",
    "labels_path",
    type=click.Path(),
    metavar="FILE",
    help="Print top-1 and top-5 accuracy: an .npy or .npz, or text with an integer per line, one "
    "per image. An array `labels` in --inputs does the same.",
)
@click.option(
    "--float",
    "float_path",
    type=click.Path(),
    metavar="FLOAT.onnx",
    help="Also print the accuracy of the float model, and how often both agree.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print how each operator was compiled, with its loop nest, and list each on a line of "
    "the table.",
)
@click.option(
    "--allow-host",
    is_flag=True,
    help="Accept a float model, which runs on the host, and a model that is quantized dynamically "
    "or only in its weights, of which the machine runs less than 90 % of the MACs.",
)
@waves_option
@click.option(
    "--report",
    "report_path",
    type=click.Path(),
    metavar="DIR",
    help="Write a page with tables, a chart of where the cycles went, and all numbers.",
)
@click.option(
    "--energy",
    type=click.Choice(list(TECHNOLOGIES)),
    help="Print the estimated energy of each layer and of each part of the machine in this "
    "technology, also in --json and --report.",
)
@json_option
def run(
    model: str,
    config: Config,
    options: RunOptions,
    machines: int,
    split: bool | None,
    memory_bus: int,
    trace: str | None,
    images: int | None,
    tuned: str | None,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    bucket: tuple[tuple[str, int], ...],
    launch: str | None,
    inputs_path: str | None,
    outputs_path: str | None,
    check: bool,
    labels_path: str | None,
    float_path: str | None,
    explain: bool,
    allow_host: bool,
    waves: str | None,
    report_path: str | None,
    energy: str | None,
    json_path: str | None,
) -> int:
    """Run the quantized network of MODEL or a compiled FILE.

    MODEL is a file of ONNX or TensorFlow Lite; `vta compile` writes a FILE. Prints a table of the
    network's layers: where each ran, its MACs, its cycles, and its utilization; on a device with a
    clock a second table says where the cycles went. Operators that the machine cannot run run on
    the host, by ONNX Runtime.
    """
    from amaranth_vta.session import random_inputs
    from amaranth_vta.session.report import PAGE

    options = replace(options, machines=machines, memory_bus=memory_bus)
    _refuse_contradictions(
        model, images, tuned, allow_rounding, dim, bucket, split, check, explain, options
    )
    if labels_path is not None or float_path is not None:
        _refuse_accuracy(labels_path, inputs_path, options)
    if options.timing_only and outputs_path is not None:
        raise click.UsageError("--outputs writes results, and --timing-only computes none")
    if bucket and inputs_path is None:
        raise click.UsageError("--bucket pads the arrays of --inputs: give both")
    with Outputs() as outputs:
        outputs.reserve("--outputs", outputs_path)
        outputs.reserve("--json", json_path)
        outputs.reserve_folder("--report", report_path, PAGE)
        timeline = _timeline(outputs, trace, options, report_path)
        options = replace(options, waves=outputs.reserve(WAVES, waves), timeline=timeline)
        given = read_inputs(inputs_path) if inputs_path is not None else None
        labels = read_labels(labels_path) if labels_path is not None else None
        launch = launch or ("network" if report_path is None else "layer")
        compiling: dict[str, Any] = {"images": images, "tuned": tuned, "split": split}
        compiling |= {"allow_rounding": allow_rounding, "buckets": dict(bucket)}
        with _open(model, config, compiling, options, launch, dict(dim), given) as session:
            if not allow_host:
                refuse_host_alone(session, model)
            inputs = random_inputs(session) if given is None else given
            if LABELS in inputs and LABELS not in session.inputs:
                among = inputs.pop(LABELS)
                labels = among if labels is None else labels

            def judge(results: Arrays) -> None:
                if options.has_results and (labels is not None or float_path is not None):
                    session.accuracy(inputs, results, labels, float_path)

            checked = _run(session, inputs, check, judge, outputs, waves, trace, timeline, energy)
        if report_path is not None:
            _save_report(outputs, session, model, options, trace, report_path, checked, energy)
    if explain:
        for paragraph in explanation(session):
            outputs.say(f"{paragraph}\n")
    _show(outputs, session, explain, energy)
    if session.note:
        outputs.say(session.note)
    if not options.has_results:
        outputs.say(unchecked(options))
    if given is None:
        outputs.say("Inputs were random; use --inputs for your own.")
    if session.label_accuracy is not None:
        outputs.say(str(session.label_accuracy))
    if checked is not None:
        for line in comparison_lines(checked, explain):
            outputs.say(line)
    return DONE if checked is None or checked.ok else WRONG_RESULT


def _refuse_contradictions(
    model: str,
    images: int | None,
    tuned: str | None,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    bucket: tuple[tuple[str, int], ...],
    split: bool | None,
    check: bool,
    explain: bool,
    options: RunOptions,
) -> None:
    from amaranth_vta.sw.runtime.archive import is_archive

    if check and options.skip is not None:
        raise click.UsageError("--check compares results, which are wrong with --skip")
    if check and options.timing_only:
        raise click.UsageError("--check compares results, and --timing-only computes none")
    require_machines(options, split)
    if not is_archive(model):
        return
    if check or explain:
        option = "--check" if check else "--explain"
        raise click.UsageError(f"{option} needs the network's ONNX file; {model} is compiled")
    rounding = allow_rounding or None
    for option, value in (
        ("--images", images),
        ("--tuned", tuned),
        ("--allow-rounding", rounding),
        ("--dim", dim or None),
        ("--bucket", bucket or None),
        ("--split", split or None),
    ):
        if value is not None:
            raise click.UsageError(f"{option} is for `vta compile`; {model} is compiled")


def _refuse_accuracy(labels: str | None, inputs: str | None, options: RunOptions) -> None:
    option = "--float" if labels is None else "--labels"
    if not options.has_results:
        raise click.UsageError(
            f"{option} needs correct results, which {wrong_results(options)} does not compute"
        )
    if labels is not None and inputs is None:
        raise click.UsageError("--labels needs --inputs, the labelled images")


def refuse_host_alone(session: Session, model: str) -> None:
    """Raises `ClickException` for a model without constant scales of which the machine runs few
    MACs, or none.
    """
    reason = session.unquantized
    if reason and (share := share_on_machine(session.layers) or 0.0) < _ENOUGH:
        runs = f"{share:.1%} of its MACs run" if session.has_layers else "nothing of it runs"
        raise click.ClickException(
            f"{model} {reason}: {runs} on the machine. `vta quantize "
            "FLOAT.onnx -o INT8.onnx` makes one that does; --allow-host "
            "runs this one with the rest on the host"
        )


def _timeline(
    outputs: Outputs, trace: str | None, options: RunOptions, report_path: str | None
) -> Timeline | None:
    """The timeline that records the run, for --trace, or for a report from a device with a clock;
    None if neither is asked for.
    """
    from amaranth_vta.sim.trace.perfetto import Timeline

    timeline = reserve_trace(outputs, trace)
    if timeline is None and report_path is not None and options.name != "functional":
        timeline = Timeline()
    return timeline


def _open(
    model: str,
    config: Config,
    compiling: dict[str, Any],
    options: RunOptions,
    launch: str,
    sizes: dict[str, int],
    inputs: Arrays | None,
) -> Session:
    """The session of a model, or of a compiled network.

    Open dimensions of a model get the ``sizes`` of --dim, or else the sizes of the ``inputs``.
    Raises `ClickException` if both contradict each other.
    """
    from amaranth_vta.session import Session
    from amaranth_vta.sw.runtime.archive import is_archive

    if is_archive(model):
        # Tables are of one network; a decoder's is the one for single tokens.
        return Session.load(model, asked_for(config), options, blocks=False, launch=launch)
    source: Source = model
    if inputs is not None:
        with explain_missing_extras():
            from amaranth_vta.sw.compiler.graph.load.input_shapes import sizes_of
            from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model
        source = read_model(model)
        found = sizes_of(source, {name: array.shape for name, array in inputs.items()})
        for name, size in sizes.items():
            if found.get(name, size) != size:
                raise click.ClickException(
                    f"--dim {name}={size}, but the inputs have {name}={found[name]}"
                )
        sizes = found | sizes
        if compiling["split"] is None and options.machines > 1:
            images = compiling["images"] or config.batch
            compiling["split"] = _is_one_run(source, inputs, images)
    return Session(source, config, options, launch=launch, dimensions=sizes, **compiling)


def _is_one_run(model: onnx.ModelProto, inputs: Arrays, images: int) -> bool:
    """Whether ``inputs`` fit one run, of ``images`` if the batch size of the model is open."""
    from amaranth_vta.sw.compiler.graph.load.input_shapes import inputs_of, is_open

    return all(
        len(inputs[item.name]) <= (images if is_open(dims[0]) else dims[0].dim_value)
        for item in inputs_of(model)
        if (dims := item.type.tensor_type.shape.dim)
        and item.name in inputs
        and inputs[item.name].ndim
    )


def _run(
    session: Session,
    inputs: Arrays,
    check: bool,
    judge: Callable[[Arrays], None],
    outputs: Outputs,
    waves: str | None,
    trace: str | None,
    timeline: Timeline | None,
    energy: str | None,
) -> CheckReport | None:
    """Runs or checks the network, judges the results and saves the output files; after a fault only
    the waves, the timeline and the JSON.
    """
    from amaranth_vta.session.sequences import flattened
    from amaranth_vta.sw.runtime.array_file import write_arrays
    from amaranth_vta.sw.runtime.runtime import RuntimeFault

    checked: CheckReport | None = None
    try:
        if check:
            checked = session.check(inputs)
            results = checked.outputs
        else:
            results = session.run(inputs)
        judge(results)
    except RuntimeFault:
        outputs.save_json("--json", session.report(energy))
        raise
    finally:
        session.close()  # completes the waves
        save_waves(outputs, waves)
        save_trace(outputs, trace, timeline)
    outputs.save("--outputs", lambda file: write_arrays(file, flattened(results)))
    outputs.save_json("--json", session.report(energy))
    return checked


def _save_report(
    outputs: Outputs,
    session: Session,
    model: str,
    options: RunOptions,
    trace: str | None,
    folder: str,
    checked: CheckReport | None,
    energy: str | None,
) -> None:
    from datetime import UTC, datetime

    import amaranth_vta
    from amaranth_vta.session.report import Provenance, report_files

    # The report links to the timeline of --trace instead of its own.
    linked = None if trace is None else os.path.relpath(trace, folder)
    title = f"{Path(model).stem} on {options.name}"
    provenance = Provenance(
        command=command_line(),
        version=amaranth_vta.__version__,
        date=datetime.now(UTC),
        comparison="" if checked is None else "; ".join(comparison_lines(checked, explain=False)),
        is_wrong=checked is not None and not checked.ok,
    )
    files = report_files(session, title, options.dram, provenance, options.timeline, linked, energy)
    outputs.save_folder("--report", files)


def _show(outputs: Outputs, session: Session, explain: bool, energy: str | None) -> None:
    outputs.say(session.plan_table(outputs.text_width, explain))
    cycles = session.cycles_table(outputs.text_width)
    if cycles:
        outputs.say(f"\n{cycles}")
    if energy is not None:
        outputs.say(f"\n{energy_table(session.energy(energy), outputs.text_width)}")


def asked_for(config: Config) -> Config | None:
    """``config`` if the user gave the option; None for its default."""
    source = click.get_current_context().get_parameter_source("config")
    return None if source is click.core.ParameterSource.DEFAULT else config
