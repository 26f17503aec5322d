"""The report of ``vta bench`` as JSON, and its sentence on differences."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.report.host_summary import summary as host_summary
from amaranth_vta.report.systems import system_report
from amaranth_vta.sim.devices import RunOptions

if TYPE_CHECKING:
    from amaranth_vta.measurements.measurement import Measurement
    from amaranth_vta.measurements.networks import MeasuredNetwork


def differing(mismatches: int, reference: str) -> str:
    return f"{mismatches:,} elements differ from those of {reference}"


def summary(
    found: list[Measurement],
    config: Config,
    options: RunOptions,
    wall_seconds: float,
    network: MeasuredNetwork | None,
) -> dict[str, Any]:
    """The JSON of a benchmark: totals, each measurement as a layer, and for a ``network`` its
    launches and a summary of machine and host.
    """
    contract = options.contract
    known = [item.cycles for item in found if item.cycles is not None]
    cycles = sum(known) if known else None
    if network is not None:
        cycles = network.whole.cycles
    system = SystemConfig(config, options.machines, options.memory_bus)
    macs, peak = sum(item.macs for item in found), system.macs_per_cycle
    seconds = sum(item.device_seconds for item in found)
    bounded = found if network is None else network.launches
    return {
        **(system_report(network.system, network.split) if network else {}),
        "cycles": cycles,
        "estimated": any(item.estimated for item in found),
        "memory_contract": contract and str(contract),
        "macs": macs,
        "peak_macs_per_cycle": peak,
        "utilization": macs / cycles / peak if cycles else None,
        "bound_cycles": sum(item.bound_cycles or 0 for item in bounded),
        "wall_seconds": wall_seconds,
        "device_seconds": seconds,
        "simulated_cycles_per_second": cycles / seconds if cycles and seconds else None,
        "mismatches": sum(item.mismatches for item in found) if options.has_results else None,
        "fault": None,
        "skipped": options.skip,
        **(
            {
                "images_per_run": network.images,
                "runs": network.runs,
                "summary": host_summary(network.layers),
                "launches": [asdict(launch) for launch in network.launches],
            }
            if network
            else {}
        ),
        "layers": [
            {
                "name": item.name,
                "operator": item.operator,
                "placed_on": options.name,
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
