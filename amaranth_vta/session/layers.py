"""Measurements of the operators and launches of a network on a runner."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amaranth_vta.report.layer_report import LaunchReport, LayerReport, bound_cycles
from amaranth_vta.sw.runtime.network.network_program import (
    MoveWindows,
    OnHost,
    RunHost,
    RunLayer,
    ToHost,
    ToMachine,
    WriteRows,
)
from amaranth_vta.sw.runtime.network.tiled_tensor import TiledTensor

if TYPE_CHECKING:
    from amaranth_vta.hw.system.parameters import SystemConfig
    from amaranth_vta.sw.runtime.network.runner import Runner, StepTotals


def launch_reports(runner: Runner, dram: str, system: SystemConfig) -> list[LaunchReport]:
    """The launches in order; ``dram`` is the memory model for the bounds, and ``system`` has the
    machines of the runner.
    """
    at_once = runner.runs_at_once
    return [
        LaunchReport(
            name=launched.name,
            layers=len(launched.layers),
            runs=launched.measured.runs,
            cycles=launched.measured.result.cycles if launched.measured.result else None,
            bound_cycles=launched.measured.runs
            * bound_cycles(
                launched.work,
                dram,
                launched.streams,
                launched.machines * at_once,
                system.bus_bytes,
            ),
        )
        for launched in runner.launched
    ]


def layer_reports(runner: Runner, dram: str, system: SystemConfig) -> list[LayerReport]:
    """The operators in execution order, including layout conversions; the arguments are as of
    `launch_reports`.
    """
    at_once, peak = runner.runs_at_once, system.macs_per_cycle
    alone = {launched.first for launched in runner.launched if len(launched.layers) == 1}
    reports: list[LayerReport] = []
    # Tensors stored by the machine and read back by the host.
    stored: set[str] = set()
    for index, (step, spent) in enumerate(zip(runner.steps, runner.measured, strict=True)):
        match step:
            case RunHost():
                reports += [_host_report(item, spent) for item in step.operators]
            case RunLayer():
                bound = None
                if index in alone:
                    machines = step.machines * at_once
                    bound = spent.runs * bound_cycles(
                        step.work, dram, len(step.streams), machines, system.bus_bytes
                    )
                reports.append(_machine_report(step, spent, bound, peak))
            case ToMachine():
                reason = _conversion(step.operand, stored)
                if reason:
                    layout = OnHost(step.operand.tensor, "layout", reason)
                    reports.append(_host_report(layout, spent))
            case WriteRows():
                reason = "the host writes new rows to weight tiles"
                reports.append(_host_report(OnHost(step.rows, "layout", reason), spent))
            case MoveWindows(_, place):
                reason = "the host changes addresses of instructions to those of rows"
                reports.append(_host_report(OnHost(place, "addresses", reason), spent))
            case ToHost():
                stored.add(step.tensor)
    return reports


def _machine_report(
    step: RunLayer, measured: StepTotals, bound: int | None, peak: int
) -> LayerReport:
    """The report of a layer; ``peak`` is the number of MACs per cycle of all machines."""
    cycles = measured.result.cycles if measured.result else None
    macs = step.macs * measured.runs
    return LayerReport(
        name=step.name,
        operator=step.operator,
        placed_on="machine",
        reason="",
        macs_per_run=step.macs,
        macs=macs,
        cycles=cycles,
        bound_cycles=bound,
        utilization=macs / cycles / peak if cycles else None,
        bytes_loaded=step.work.bytes_loaded * measured.runs,
        bytes_stored=step.work.bytes_stored * measured.runs,
        runs=measured.runs,
        counters=measured.result.counters if measured.result else {},
    )


def _host_report(item: OnHost, measured: StepTotals) -> LayerReport:
    return LayerReport(
        name=item.name,
        operator=item.operator,
        placed_on="host",
        reason=item.reason,
        macs_per_run=0,
        macs=0,
        cycles=None,
        bound_cycles=0,
        utilization=None,
        bytes_loaded=0,
        bytes_stored=0,
        runs=measured.runs,
        counters={},
        host_macs=item.macs,
    )


def _conversion(operand: TiledTensor, stored: set[str]) -> str:
    """Why the host converts a tensor for the machine; empty for plain tiling.

    ``stored`` are tensors that the machine produced.
    """
    if operand.packing:
        plain, packed = replace(operand, packing=None).nbytes, operand.nbytes
        difference = f" instead of {plain:,}" if packed != plain else ", as many as without"
        return f"{operand.packing}: it writes {packed:,} bytes{difference}"
    if operand.tensor in stored:
        return "the machine stores tiles of another form than it loads"
    return ""
