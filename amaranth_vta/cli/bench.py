"""``vta bench``: how near the machine comes to what its configuration allows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.sim.devices import DEVICES
from amaranth_vta.sw.runtime.counters import Spent

from .cycles import SKIPPED, show_cycles
from .options import ConfigType, DramType, json_option, skip_option, trace_option
from .outputs import Outputs
from .problems import DONE, WRONG_RESULT
from .progress import building

if TYPE_CHECKING:
    from amaranth_vta.bench.measurement import Measurement

# As in bench.rates, which is loaded when it is needed.
_RATES = ("gemm", "alu", "load", "store")
_LAYERS = "resnet18-layers"


@click.command()
@click.argument("name", type=click.Choice((*_RATES, _LAYERS)))
@click.option(
    "--config",
    type=ConfigType(),
    default=DEFAULT,
    show_default=True,
    help="The machine: a preset, or a file in the form of vta_config.json.",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="rtl",
    show_default=True,
    help="What runs it; the functional model has no cycles, and only compares results.",
)
@click.option(
    "--dram",
    type=DramType(),
    default="ddr",
    show_default=True,
    help="How the memory answers; what a rate is measured against depends on it.",
)
@click.option(
    "--schedules",
    type=click.Choice(("default", "by-hand")),
    default="default",
    show_default=True,
    help="Of resnet18-layers: those that the compiler chooses, or those found by hand.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Print which schedules the compiler considers for resnet18-layers, and run nothing.",
)
@trace_option
@skip_option
@json_option
def bench(
    name: str,
    config: Config,
    device: str,
    dram: str,
    schedules: str,
    explain: bool,
    trace_path: str | None,
    skip: str | None,
    json_path: str | None,
) -> int:
    """Measure NAME and print it beside what no machine of the configuration can beat.

    gemm, alu, load and store are rates in the steady state; resnet18-layers are the convolutions
    of ResNet-18, from launch to done. All results are compared with the functional model; a
    difference is exit code 1.
    """
    from amaranth_vta.bench.layers import explanations, measure_layers
    from amaranth_vta.bench.rates import measure_rates
    from amaranth_vta.bench.resnet18 import rows
    from amaranth_vta.sim.trace.perfetto import Timeline

    by_hand = schedules == "by-hand"
    if name == _LAYERS and not rows(config):
        raise click.UsageError("the layers are in tiles of 16 channels, for pynq-extended")
    if name != _LAYERS and (explain or by_hand):
        raise click.UsageError(f"--schedules and --explain are for {_LAYERS}")
    if explain:
        for layer, table in explanations(config):
            click.echo(f"{layer}\n{table}\n")
        return DONE
    started = time.perf_counter()
    found: list[Measurement] = []
    timeline = None if trace_path is None else Timeline()
    with Outputs() as outputs:
        outputs.reserve("--trace", trace_path)
        outputs.reserve("--json", json_path)
        click.echo(_line("", "MACs", "cycles", "bound", "of bound", "target"))
        with building() as progress:
            if name == _LAYERS:
                measurements = measure_layers(
                    config, device, dram, progress, timeline, skip, by_hand
                )
            else:
                measurements = measure_rates(name, config, device, dram, progress, timeline, skip)
            for item in measurements:
                found.append(item)
                click.echo(_row(item))
        if timeline is not None:
            outputs.save("--trace", timeline.write)
        report = summary(found, config, device, time.perf_counter() - started, skip)
        outputs.save_json("--json", report)
    show_cycles(
        [
            Spent(f"{item.operator} {item.name}", item.counters)
            for item in found
            if item.cycles is not None
        ]
    )
    if skip is not None:
        click.echo(SKIPPED.format(skip))
        return DONE
    mismatches = sum(item.mismatches for item in found)
    if mismatches:
        click.echo(f"{mismatches:,} elements differ from those of the functional model")
    return WRONG_RESULT if mismatches else DONE


def _line(name: str, *columns: str) -> str:
    return f"{name:46}" + "".join(f"{column:>13}" for column in columns)


def _row(item: Measurement) -> str:
    share = item.of_bound
    return _line(
        f"{item.operator} {item.name}",
        f"{item.macs:,}" if item.macs else "",
        "" if item.cycles is None else f"{item.cycles:,}",
        f"{item.bound_cycles:,.0f}",
        "" if share is None else f"{share:.1%}",
        f"{item.target:.0%}" + ("" if item.is_reached else " !"),
    )


def summary(
    found: list[Measurement],
    config: Config,
    device: str,
    wall_seconds: float,
    skip: str | None = None,
) -> dict[str, Any]:
    """The JSON of a benchmark: the sums, and each measurement as a layer."""
    known = [item.cycles for item in found if item.cycles is not None]
    cycles = sum(known) if known else None
    macs, peak = sum(item.macs for item in found), config.macs_per_cycle
    seconds = sum(item.device_seconds for item in found)
    return {
        "cycles": cycles,
        "macs": macs,
        "peak_macs_per_cycle": peak,
        "utilization": macs / cycles / peak if cycles else None,
        "bound_cycles": sum(item.bound_cycles for item in found),
        "wall_seconds": wall_seconds,
        "device_seconds": seconds,
        "simulated_cycles_per_second": cycles / seconds if cycles and seconds else None,
        "mismatches": sum(item.mismatches for item in found) if skip is None else None,
        "fault": None,
        "skipped": skip,
        "layers": [
            {
                "name": item.name,
                "operator": item.operator,
                "placed_on": device,
                "macs": item.macs,
                "cycles": item.cycles,
                "bound_cycles": item.bound_cycles,
                "of_bound": item.of_bound,
                "target": item.target,
                "utilization": item.macs / item.cycles / peak if item.cycles else None,
                "bytes_loaded": item.bytes_loaded,
                "bytes_stored": item.bytes_stored,
                "counters": item.counters,
            }
            for item in found
        ],
    }
