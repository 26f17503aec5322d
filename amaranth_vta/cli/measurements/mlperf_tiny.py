"""The networks of MLPerf Tiny in ``vta bench``: their files, and one table of all."""

from __future__ import annotations

import time
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.cli.common.problems import DONE, WRONG_RESULT
from amaranth_vta.extras import explain_missing_extras
from amaranth_vta.hw.config import Config
from amaranth_vta.networks import MLPERF_TINY, generate_tiny
from amaranth_vta.report.host_summary import share_on_machine
from amaranth_vta.report.systems import system_use
from amaranth_vta.report.text_table import text_table
from amaranth_vta.sim.devices import RunOptions

from .bench_report import differing, summary

if TYPE_CHECKING:
    from amaranth_vta.measurements.networks import MeasuredNetwork

SUITE = "mlperf-tiny"


def measure_tiny(
    name: str, models: str | None, config: Config, options: RunOptions, **whole: Any
) -> MeasuredNetwork:
    """Measure the generated network ``name``, or the published file in the folder ``models``."""
    with explain_missing_extras():
        from amaranth_vta.measurements.networks import measure_model

    source = generate_tiny(name) if models is None else Path(models) / MLPERF_TINY[name].file
    return measure_model(source, None, config, options, **whole)


def bench_suite(
    outputs: Outputs,
    models: str | None,
    clock: float,
    config: Config,
    options: RunOptions,
    **whole: Any,
) -> int:
    """Measure all networks, print a table with times at ``clock`` MHz, and return the exit code."""
    rows, reports, mismatches = [], {}, 0
    for name in MLPERF_TINY:
        started = time.perf_counter()
        network = measure_tiny(name, models, config, options, **whole)
        seconds = time.perf_counter() - started
        rows.append(_row(name, network, clock))
        reports[name] = summary(network.measurements, config, options, seconds, network)
        mismatches += network.whole.mismatches
    heads = ("network", "MACs", "on the\nmachine", "cycles", "of\nbound")
    moved = ("bytes\nloaded", "bytes\nstored")
    outputs.say(
        text_table((*heads, f"ms at\n{clock:g} MHz", *moved), rows, width=outputs.text_width)
    )
    if not network.system.is_single:
        use = system_use(network.system, network.split)
        note = f"{use}: numbers are per image, the bounds are those of all machines together."
        outputs.say(fill(note, outputs.text_width))
    outputs.save_json("--json", {"clock_mhz": clock, "networks": reports})
    if options.has_results and mismatches:
        outputs.say(differing(mismatches, "LiteRT"))
    return WRONG_RESULT if options.has_results and mismatches else DONE


def _row(name: str, network: MeasuredNetwork, clock: float) -> tuple[str, ...]:
    whole = network.whole
    share = share_on_machine(network.layers) or 0.0
    macs = sum(layer.macs_per_run + layer.host_macs for layer in network.layers)
    bound, runs = whole.of_bound, network.runs
    cycles = None if whole.cycles is None else round(whole.cycles / runs)
    return (
        name,
        f"{macs:,}",
        f"{share:.2%}",
        "" if cycles is None else f"{cycles:,}",
        "" if bound is None else f"{bound:.1%}",
        "" if cycles is None else f"{cycles / clock / 1e3:.3f}",
        f"{whole.bytes_loaded // runs:,}",
        f"{whole.bytes_stored // runs:,}",
    )
