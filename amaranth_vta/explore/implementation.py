"""Implements a machine with FPGA tools: area by synthesis, clock by place and route."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.routing import routed
from amaranth_vta.fpga.synthesis import synthesized_area
from amaranth_vta.fpga.tools import tool, version_of
from amaranth_vta.hw.config import Config
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.cache import hash_of, package_version

from .evaluate import remembered


@dataclass(frozen=True)
class Implementation:
    """A task: synthesize the machine of ``config``, as JSON, for the chip of that name; with
    ``routes``, also place and route it. Several ``machines`` share a bus of ``memory_bus`` bits.
    """

    config: str
    machines: int
    memory_bus: int
    chip: str
    routes: bool

    @classmethod
    def of(cls, system: SystemConfig, chip: str, routes: bool) -> Implementation:
        """The task for the machines of ``system``."""
        return cls(system.config.to_json(), system.machines, system.bus_bits, chip, routes)


@dataclass(frozen=True)
class Implemented:
    """LUTs, flip-flops, multipliers and block RAMs of 36 kbit after synthesis; ``mhz`` is the clock
    after place and route, None if not routed.
    """

    lut: int
    ff: int
    dsp: int
    bram36: float
    mhz: float | None


def implement(task: Implementation, _: bytes) -> Implemented:
    """Implements the machine, or returns the cached result; raises `MissingExtra` without the
    tools, and `ToolchainError` if one of them fails.
    """
    tools = (version_of(tool(name)) for name in ("YOSYS", "NEXTPNR_ECP5"))
    name = hash_of(*map(str, astuple(task)), *package_version(), *tools)
    return Implemented(**remembered(f"{name}-chip.json", lambda: asdict(_implement(task))))


def _implement(task: Implementation) -> Implemented:
    chip = CHIPS[task.chip]
    system = SystemConfig(Config.from_json(task.config), task.machines, task.memory_bus)
    with tempfile.TemporaryDirectory() as folder:
        netlist = Path(folder, "netlist.json") if task.routes else None
        area = synthesized_area(system, chip.family, netlist, chip.dsp)
        values: dict[str, Any] = asdict(area)
        return Implemented(**values, mhz=routed(netlist, chip).result.fmax_mhz if netlist else None)
