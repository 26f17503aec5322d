"""``vta tune``: search for better schedules than the compiler's."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import (
    DramType,
    config_option,
    dim_option,
    images_option,
    jobs_option,
    json_option,
    open_workers,
    rounding_option,
    scheduler_option,
)
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.hw.config import Config
from amaranth_vta.report.text_table import counted

if TYPE_CHECKING:
    from amaranth_vta.explore.tuning import Tried
    from amaranth_vta.session import CheckReport
    from amaranth_vta.sw.compiler.tuner.records import Records


@click.command()
@click.argument("model", type=click.Path(), metavar="MODEL")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="The file for --tuned. If it exists, records are merged and the better of two is kept.  "
    "[default: MODEL.tuned.json]",
)
@config_option
@images_option
@rounding_option
@dim_option
@click.option(
    "--dram",
    type=DramType(),
    metavar="ideal|ddr",
    default="ddr",
    show_default=True,
    help="The memory model for which schedules are tuned.",
)
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    metavar="N",
    default=24,
    show_default=True,
    help="Number of schedules per layer to build and estimate.",
)
@click.option(
    "--device",
    type=click.Choice(("estimate", "rtl")),
    default="estimate",
    show_default=True,
    help="The device on which the tuned network is compared with the compiler's choice and with "
    "ONNX Runtime.",
)
@jobs_option
@scheduler_option
@json_option
def tune(
    model: str,
    output: str | None,
    config: Config,
    images: int | None,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    dram: str,
    candidates: int,
    device: str,
    jobs: int | None,
    scheduler: str | None,
    json_path: str | None,
) -> int:
    """Search for faster schedules of the layers of MODEL.

    MODEL is a file of ONNX or TensorFlow Lite, or the name of a network of `vta bench`.

    Each layer's most promising schedules are built and their cycles estimated; what the compiler
    refuses is counted and never runs. Then the network runs with the best, and is compared with the
    compiler's own choice and with ONNX Runtime. FILE has a record per layer that takes fewer
    cycles, for `vta compile --tuned FILE` and `vta run --tuned FILE`; if the network as a whole
    takes no fewer, nothing is written.
    """
    from amaranth_vta.explore.tuning import records_of, workloads_of

    path = output or f"{Path(model).with_suffix('')}.tuned.json"
    source = _source(model, dict(dim))
    known = _known(path)
    with Outputs() as outputs:
        outputs.reserve("--output", path)
        outputs.reserve("--json", json_path)
        workloads = workloads_of(source, config, images, allow_rounding)
        if not workloads:
            raise click.ClickException(f"no layer of {model} runs on this machine")
        found = _tune(workloads, config, dram, candidates, jobs, scheduler, outputs)
        records = records_of(found, workloads, config, dram)
        compiling = {"images": images, "allow_rounding": allow_rounding}
        default, _ = _run(source, config, compiling, dram, device, None)
        tuned, checked = _run(source, config, compiling, dram, device, records)
        before, after = default["cycles"], tuned["cycles"]
        better = after < before
        if better:
            for record in records:
                known.add(record)
            outputs.save("--output", lambda file: file.write(known.to_json().encode()))
        bound = tuned["bound_cycles"] if better else default["bound_cycles"]
        report = {**_report(found, before, after, better), "bound_cycles": bound}
        layers = [_layer(workloads[number], tried) for number, tried in sorted(found.items())]
        outputs.save_json("--json", {**report, "layers": layers})
        outputs.say(_conclusion(found, before, after, path if better else ""))
        outputs.say(
            f"bound of array and bus, layer after layer: {bound:,} cycles, "
            f"{bound / min(before, after):.1%} of that"
        )
    if checked.mismatches:
        outputs.say(
            f"ONNX Runtime: {checked.mismatches:,} output elements differ from the network in "
            "canonical form"
        )
    return WRONG_RESULT if checked.mismatches else DONE


def _source(model: str, sizes: dict[str, int]) -> bytes:
    """The bytes of a model file or of a generated network, with ``sizes`` of open dimensions."""
    from amaranth_vta.networks import NETWORKS, generate
    from amaranth_vta.sw.compiler.graph.load.input_shapes import with_dimensions
    from amaranth_vta.sw.compiler.graph.load.onnx_model import read_model

    is_name = model in NETWORKS and not Path(model).exists()
    if is_name and not sizes:
        return generate(model).sized.SerializeToString(deterministic=True)
    found = generate(model).model if is_name else read_model(model)
    return with_dimensions(found, sizes).SerializeToString(deterministic=True)


def _known(path: str) -> Records:
    from amaranth_vta.sw.compiler.tuner.records import Records

    return Records.load(path) if Path(path).exists() else Records()


def _tune(
    workloads: list[Any],
    config: Config,
    dram: str,
    candidates: int,
    jobs: int | None,
    scheduler: str | None,
    outputs: Outputs,
) -> dict[int, Tried]:
    from amaranth_vta.explore.tuning import tune as tuned_layers

    found: dict[int, Tried] = {}
    with open_workers(jobs, scheduler) as workers:
        for number, tried in tuned_layers(workloads, config, dram, candidates, workers):
            name = type(workloads[number]).__name__
            if isinstance(tried, str):
                outputs.say(f"{name}: {tried}")
                continue
            found[number] = tried
            outputs.say(
                f"{name:<18}{tried.default_cycles:>11,} -> {tried.cycles:>11,}  "
                f"{tried.cycles / tried.default_cycles:.3f}  of {tried.tried}"
                + (f", {tried.refused} refused" if tried.refused else "")
            )
    return found


def _run(
    source: bytes,
    config: Config,
    compiling: dict[str, Any],
    dram: str,
    device: str,
    records: Records | None,
) -> tuple[dict[str, Any], CheckReport]:
    """The report of one run, and the comparison of its results with ONNX Runtime."""
    from amaranth_vta.session import Session, random_inputs

    with Session(source, config, device, dram, tuned=records, **compiling) as session:
        checked = session.check(random_inputs(session))
        return session.report(), checked


def _report(found: dict[int, Tried], before: int, after: int, better: bool) -> dict[str, Any]:
    return {
        "cycles": after if better else before,
        "default_cycles": before,
        "tried": sum(tried.tried for tried in found.values()),
        "refused": sum(tried.refused for tried in found.values()),
        "workloads": len(found),
        "improved": sum(tried.cycles < tried.default_cycles for tried in found.values()),
    }


def _layer(workload: Any, tried: Tried) -> dict[str, Any]:
    """The tuning result of a workload for JSON, without its knobs, which are in the records."""
    from amaranth_vta.sw.compiler.tuner.records import workload_name

    values = asdict(tried)
    del values["knobs"]
    return {"workload": workload_name(workload), **values}


def _conclusion(found: dict[int, Tried], before: int, after: int, path: str) -> str:
    tried = sum(item.tried for item in found.values())
    refused = sum(item.refused for item in found.values())
    of_all = f"{counted(tried, 'schedule')} of {counted(len(found), 'workload')}"
    text = f"{of_all}, {refused:,} refused; "
    if path:
        share = 1 - after / before
        return f"{text}the network takes {after:,} cycles, {share:.2%} less than {before:,}: {path}"
    return f"{text}none makes the network faster than {before:,} cycles; nothing was written"
