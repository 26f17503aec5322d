"""``vta bench``: benchmarks, with cycles compared to their lower bounds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.cli.common.options import (
    config_option,
    device_options,
    dim_option,
    json_option,
    launch_option,
    machines_option,
    memory_bus_option,
    require_machines,
    rounding_option,
    split_option,
    unchecked,
)
from amaranth_vta.cli.common.outputs import Outputs, reserve_trace, save_trace
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import Config
from amaranth_vta.networks import MLPERF_TINY, NETWORKS, generate, generate_tiny
from amaranth_vta.report.cycles_table import bounded, cycles_table
from amaranth_vta.report.host_summary import share_on_machine
from amaranth_vta.report.layer_table import OVERLAP, host_lines, overlap
from amaranth_vta.report.text_table import cut, text_table
from amaranth_vta.sim.devices import RunOptions
from amaranth_vta.sw.runtime.counters import Spent

from .bench_report import differing, summary
from .mlperf_tiny import SUITE, bench_suite, measure_tiny

if TYPE_CHECKING:
    from amaranth_vta.measurements.measurement import Measurement
    from amaranth_vta.measurements.networks import MeasuredNetwork

# As in measurements.rates, which is imported lazily.
_RATES = ("gemm", "alu", "load", "store")
_LAYERS = "resnet18-layers"


def _list_networks(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    heads = ("network", "what it is", "input", "form", "types", "scale per")
    rows = [
        (name, network.what, str(network.size), *network.form.columns)
        for name, network in NETWORKS.items()
    ]
    rows += [
        (name, tiny.what, tiny.shape, "TFLite", "S8S8", tiny.scales)
        for name, tiny in MLPERF_TINY.items()
    ]
    with Outputs() as outputs:
        outputs.say(text_table(heads, rows, texts=6, width=outputs.text_width))
    context.exit(DONE)


@click.command()
@click.argument(
    "name", type=click.Choice((*_RATES, _LAYERS, *NETWORKS, SUITE, *MLPERF_TINY)), metavar="NAME"
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_networks,
    help="Print the networks and how each is quantized, without running anything.",
)
@click.option(
    "--save",
    "save_path",
    type=click.Path(),
    metavar="FILE",
    help="Write the network for `vta run`, without running anything: an ONNX file, or a TensorFlow "
    "Lite file for a network of MLPerf Tiny.",
)
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="For mlperf-tiny and its networks: run the published files, which are in DIR.",
)
@click.option(
    "--clock",
    type=click.FloatRange(min=0, min_open=True),
    default=100,
    show_default=True,
    metavar="MHZ",
    help="For mlperf-tiny: the clock for which times are printed.",
)
@config_option
@device_options("rtl", "ddr")
@machines_option
@split_option(False, "By default each machine runs an image.")
@memory_bus_option
@click.option(
    "--schedules",
    type=click.Choice(("default", "by-hand")),
    default="default",
    show_default=True,
    help="For resnet18-layers: schedules chosen by the compiler, or written by hand.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print the schedules that the compiler considers for resnet18-layers, without running.",
)
@rounding_option
@dim_option
@launch_option
@json_option
def bench(
    name: str,
    save_path: str | None,
    models: str | None,
    clock: float,
    config: Config,
    options: RunOptions,
    machines: int,
    split: bool,
    memory_bus: int,
    trace: str | None,
    schedules: str,
    explain: bool,
    allow_rounding: bool,
    dim: tuple[tuple[str, int], ...],
    launch: str | None,
    json_path: str | None,
) -> int:
    """Measure NAME and print it with the bound of the machine.

    The bound is a number of cycles that no machine of the configuration can beat. gemm, alu, load
    and store are rates in the steady state. resnet18-layers are the convolutions of ResNet-18, one
    launch each. The results of these are compared with the functional model. mlperf-tiny are five
    networks, in one table. All other names, which --list prints, are whole networks with random
    weights. Results of networks are compared with ONNX Runtime, or with LiteRT for TensorFlow Lite
    files. A difference is exit code 1. Several machines run networks only; bound and peak then
    count all machines.
    """
    from amaranth_vta.measurements.layers import explanations
    from amaranth_vta.measurements.resnet18 import has_knobs

    if name != _LAYERS and (explain or schedules != "default"):
        raise click.UsageError(f"--schedules and --explain are for {_LAYERS}")
    is_tiny = name == SUITE or name in MLPERF_TINY
    several = machines > 1 or bool(memory_bus) or split
    for option, given in (
        ("--launch", launch),
        ("--allow-rounding", allow_rounding),
        ("--machines", several),
    ):
        if name not in NETWORKS and not is_tiny and given:
            raise click.UsageError(f"{option} is for networks")
    if dim and name not in NETWORKS:
        raise click.UsageError("--dim is for networks in ONNX")
    if models is not None and not is_tiny:
        raise click.UsageError(f"--models is for {SUITE} and its networks")
    if trace is not None and name == SUITE:
        raise click.UsageError(f"--trace is for one network, and {SUITE} has five")
    if schedules == "by-hand" and not has_knobs(config):
        raise click.UsageError("schedules written by hand exist only for pynq-extended")
    options = replace(options, machines=machines, memory_bus=memory_bus)
    require_machines(options, split)
    if save_path is not None:
        return _save(name, save_path)
    if explain:
        for layer, table in explanations(config):
            click.echo(f"{layer}\n{table}\n")
        return DONE
    started = time.perf_counter()
    found: list[Measurement] = []
    networks: list[MeasuredNetwork] = []
    with Outputs() as outputs:
        outputs.reserve("--json", json_path)
        timeline = reserve_trace(outputs, trace)
        options = replace(options, timeline=timeline)
        whole: dict[str, Any] = {
            "launch": launch or "network",
            "allow_rounding": allow_rounding,
            "split": split,
        }
        if dim:
            whole["dimensions"] = dict(dim)
        if name == SUITE:
            return bench_suite(outputs, models, clock, config, options, **whole)
        width = outputs.text_width
        outputs.say(_line(width, "", *_COLUMNS))
        by_hand = schedules == "by-hand"
        for item in _measure(name, models, config, options, by_hand, whole, networks):
            found.append(item)
            outputs.say(_row(width, item))
        network = networks[0] if networks else None
        if network is not None:
            outputs.say(_row(width, network.whole))
            if overlap(network.layers):
                outputs.say(fill(OVERLAP, width))
            if note := network.system_note:
                outputs.say(fill(note, width))
        save_trace(outputs, trace, timeline)
        seconds = time.perf_counter() - started
        outputs.save_json("--json", summary(found, config, options, seconds, network))
    return _conclude(outputs, found, options, network, "LiteRT" if is_tiny else "ONNX Runtime")


def _save(name: str, path: str) -> int:
    if name not in NETWORKS and name not in MLPERF_TINY:
        raise click.UsageError(f"--save is for networks, and {name} is not one")
    with Outputs() as outputs:
        outputs.reserve("--save", path)
        is_tiny = name in MLPERF_TINY
        data = generate_tiny(name) if is_tiny else generate(name).model.SerializeToString()
        outputs.save("--save", lambda file: file.write(data))
    return DONE


def _measure(
    name: str,
    models: str | None,
    config: Config,
    options: RunOptions,
    by_hand: bool,
    whole: dict[str, Any],
    networks: list[MeasuredNetwork],
) -> Iterator[Measurement]:
    """The measurements of the benchmark ``name``. A network is measured with the options ``whole``
    of `Session`, as a file in the folder ``models`` or generated, and appended to ``networks``.
    """
    from amaranth_vta.measurements.layers import measure_layers
    from amaranth_vta.measurements.rates import measure_rates

    if name == _LAYERS:
        return measure_layers(config, options, by_hand)
    if name in NETWORKS or name in MLPERF_TINY:
        with explain_missing_extras():
            from amaranth_vta.measurements.networks import measure_network

        if name in MLPERF_TINY:
            network = measure_tiny(name, models, config, options, **whole)
        else:
            network = measure_network(name, config, options, **whole)
        networks.append(network)
        return iter(network.measurements)
    return measure_rates(name, config, options)


def _conclude(
    outputs: Outputs,
    found: list[Measurement],
    options: RunOptions,
    network: MeasuredNetwork | None,
    reference: str,
) -> int:
    """Prints a breakdown of the cycles, which layers of a ``network`` run on the host, and whether
    results are those of the ``reference``; returns the exit code.
    """
    spent = [
        Spent(f"{item.operator} {item.name}", item.counters)
        for item in found
        if item.cycles is not None
    ]
    layers = []
    if network is not None:
        spent, layers = network.spent, network.layers
    if (contract := options.contract) is not None:
        outputs.say(f"\n{bounded(contract, outputs.text_width)}")
    elif spent:
        estimated = any(item.estimated for item in found)
        table = cycles_table(spent, "per measurement", outputs.text_width, estimated)
        outputs.say(f"\n{table}")
    if (share := share_on_machine(layers)) is not None:
        macs = sum(layer.macs_per_run + layer.host_macs for layer in layers)
        outputs.say(f"\n{share:.2%} of {macs:,} MACs on the machine")
        outputs.say("\n".join(host_lines(layers, outputs.text_width)))
    if not options.has_results:
        outputs.say(unchecked(options))
        return DONE
    mismatches = sum(item.mismatches for item in found)
    if mismatches:
        if network is None:
            outputs.say(f"{mismatches:,} bytes differ from those of the functional model")
        else:
            outputs.say(differing(mismatches, reference))
    return WRONG_RESULT if mismatches else DONE


# Rows are printed as soon as they are measured, so columns have fixed widths.
_COLUMNS = {"MACs": 13, "cycles": 11, "bound": 11, "of bound": 10, "target": 9}
_WIDEST_NAME = 46


def _line(width: int, name: str, *cells: str) -> str:
    numbers = "".join(cell.rjust(size) for cell, size in zip(cells, _COLUMNS.values(), strict=True))
    room = min(_WIDEST_NAME, width - len(numbers))
    return cut(name, room).ljust(room) + numbers


def _row(width: int, item: Measurement) -> str:
    share = item.of_bound
    return _line(
        width,
        f"{item.operator} {item.name}",
        f"{item.macs:,}" if item.macs else "",
        "" if item.cycles is None else f"{item.cycles:,}",
        "" if item.bound_cycles is None else f"{item.bound_cycles:,}",
        "" if share is None else f"{share:.1%}",
        "" if item.target is None else f"{item.target:.0%}" + ("" if item.is_reached else " !"),
    )
