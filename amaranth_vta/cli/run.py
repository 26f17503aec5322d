"""``vta run``: a quantized network on the machine."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.hw.config import Config

from .cycles import SKIPPED, show_cycles
from .explain import explanation
from .options import (
    config_option,
    device_option,
    dram_option,
    images_option,
    json_option,
    skip_option,
    trace_option,
)
from .outputs import Outputs
from .problems import DONE, WRONG_RESULT
from .progress import building

if TYPE_CHECKING:
    from amaranth_vta.session import CheckReport, Session

Arrays = dict[str, Any]
# Differences that a comparison lists.
_MOST_FREQUENT = 8


@click.command()
@click.argument("model", type=click.Path(), metavar="MODEL.onnx|FILE")
@config_option
@device_option
@dram_option
@images_option
@click.option(
    "--inputs",
    "inputs_path",
    type=click.Path(),
    metavar="FILE",
    help="An .npz with an array for each input of the graph; random ones if not given.",
)
@click.option(
    "--outputs",
    "outputs_path",
    type=click.Path(),
    metavar="FILE",
    help="Write an .npz with an array for each output of the graph.",
)
@click.option(
    "--check", is_flag=True, help="Compare with ONNX Runtime; a difference is exit code 1."
)
@click.option(
    "--explain", is_flag=True, help="Print what became of each operator, loop nests included."
)
@click.option(
    "--waves", type=click.Path(), metavar="FILE", help="Write all signals of the run as VCD."
)
@click.option(
    "--report",
    "report_path",
    type=click.Path(),
    metavar="DIR",
    help="Write a page with tables and a chart of where the cycles went, and all numbers.",
)
@trace_option
@skip_option
@json_option
def run(
    model: str,
    config: Config,
    device: str,
    dram: str,
    images: int | None,
    inputs_path: str | None,
    outputs_path: str | None,
    check: bool,
    explain: bool,
    waves: str | None,
    report_path: str | None,
    trace_path: str | None,
    skip: str | None,
    json_path: str | None,
) -> int:
    """Run the quantized network of MODEL.onnx, or of a FILE that `vta compile` wrote.

    Prints a table of the network's layers: where each ran, its MACs, its cycles, and what share
    of the machine's MACs a cycle it used; on a device with a clock a second one says where the
    cycles went. What does not fit the machine runs on the host, by ONNX Runtime.
    """
    import numpy as np

    from amaranth_vta.report import PAGE, TIMELINE, report_files
    from amaranth_vta.session import Session
    from amaranth_vta.sim.trace.perfetto import Timeline
    from amaranth_vta.sw.runtime.archive import is_archive
    from amaranth_vta.sw.runtime.runtime import RuntimeFault

    is_compiled = is_archive(model)
    if is_compiled and (check or explain):
        option = "--check" if check else "--explain"
        raise click.UsageError(f"{option} needs the network's ONNX file; {model} is compiled")
    if is_compiled and images is not None:
        raise click.UsageError(f"--images is for `vta compile`; {model} is compiled")
    if check and skip is not None:
        raise click.UsageError("--check compares results, which are wrong with --skip")
    reports_time = report_path is not None and device != "functional"
    timeline = Timeline() if trace_path is not None or reports_time else None
    with Outputs() as outputs:
        outputs.reserve("--outputs", outputs_path)
        outputs.reserve("--json", json_path)
        outputs.reserve("--trace", trace_path)
        outputs.reserve_folder("--report", report_path, PAGE)
        waves_part = outputs.reserve("--waves", waves)
        given = _load_arrays(inputs_path) if inputs_path is not None else None
        with building() as progress:
            options: dict[str, Any] = {
                "device": device,
                "dram": dram,
                "waves": waves_part,
                "timeline": timeline,
                "skip": skip,
                "progress": progress,
            }
            if is_compiled:
                session = Session.load(model, _asked_for(config), **options)
            else:
                session = Session(model, config, images=images, **options)
        checked: CheckReport | None = None
        with session:
            inputs = _random_inputs(session) if given is None else given
            try:
                if check:
                    checked = session.check(inputs)
                    results = checked.outputs
                else:
                    results = session.run(inputs)
            except RuntimeFault:
                outputs.save_json("--json", session.report())
                raise
            finally:
                # The file is complete when the device is closed.
                session.close()
                outputs.save("--waves")
                if timeline is not None:
                    outputs.save("--trace", timeline.write)
        outputs.save("--outputs", lambda file: np.savez(file, allow_pickle=False, **results))
        outputs.save_json("--json", session.report())
        if report_path is not None:
            title = f"{Path(model).stem} on {device}"
            files = report_files(session, title, dram, timeline is not None)
            if timeline is not None:
                files[TIMELINE] = timeline.text()
            outputs.save_folder("--report", files)
    if explain:
        for paragraph in explanation(session):
            click.echo(f"{paragraph}\n")
    click.echo(session.plan_table())
    show_cycles(session.spent)
    if skip is not None:
        click.echo(SKIPPED.format(skip))
    if given is None:
        click.echo("Inputs were random; --inputs gives others.")
    if checked is not None:
        click.echo(_comparison(checked))
        return DONE if checked.ok else WRONG_RESULT
    return DONE


def _comparison(checked: CheckReport) -> str:
    text = f"ONNX Runtime: {checked.mismatches:,} of {checked.elements:,} output elements differ"
    if checked.mismatches:
        frequent = sorted(checked.histogram.items(), key=lambda item: -item[1])[:_MOST_FREQUENT]
        rest = ", …" if len(checked.histogram) > _MOST_FREQUENT else ""
        text += f" (by {', '.join(f'{by:+g}: {count:,}' for by, count in frequent)}{rest})"
    return (
        f"{text}; {checked.differs_from_default:,} differ from the untouched model in a default "
        "session, which is no failure"
    )


def _asked_for(config: Config) -> Config | None:
    """``config`` if the user named one."""
    source = click.get_current_context().get_parameter_source("config")
    return None if source is click.core.ParameterSource.DEFAULT else config


def _random_inputs(session: Session) -> Arrays:
    """One image, the same at each call: all values of an integer type, 0 to 1 of a float."""
    import numpy as np

    random = np.random.default_rng(0)
    inputs = {}
    for name, info in session.inputs.items():
        shape = tuple(1 if size is None else size for size in info.shape)
        if np.issubdtype(info.dtype, np.integer):
            limits = np.iinfo(info.dtype)
            inputs[name] = random.integers(limits.min, limits.max, shape, info.dtype, True)
        else:
            inputs[name] = random.random(shape).astype(info.dtype)
    return inputs


def _load_arrays(path: str) -> Arrays:
    import numpy as np

    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise click.ClickException(f"--inputs {path} is one array and no .npz of arrays")
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"--inputs {path} cannot be read: {reason}") from None
    except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise click.ClickException(f"--inputs {path} is damaged, or no .npz of arrays") from None
