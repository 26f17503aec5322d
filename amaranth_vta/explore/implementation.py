"""Implements a machine with FPGA tools: area by synthesis, clock by place and route."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from amaranth_vta.fpga.chips import CHIPS
from amaranth_vta.fpga.routing import routed
from amaranth_vta.fpga.synthesis import synthesized_area
from amaranth_vta.fpga.tools import tool, version_of
from amaranth_vta.hw.config import Config
from amaranth_vta.sim.cache import hash_of, package_version

from .evaluate import remembered


@dataclass(frozen=True)
class Implementation:
    """A task: synthesize the machine of ``config``, as JSON, for the chip of that name; with
    ``routes``, also place and route it.
    """

    config: str
    chip: str
    routes: bool


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
    name = hash_of(task.config, task.chip, str(task.routes), *package_version(), *tools)
    return Implemented(**remembered(f"{name}-chip.json", lambda: asdict(_implement(task))))


def _implement(task: Implementation) -> Implemented:
    chip = CHIPS[task.chip]
    with tempfile.TemporaryDirectory() as folder:
        netlist = Path(folder, "netlist.json") if task.routes else None
        area = synthesized_area(Config.from_json(task.config), chip.family, netlist, chip.dsp)
        values: dict[str, Any] = asdict(area)
        return Implemented(**values, mhz=routed(netlist, chip).result.fmax_mhz if netlist else None)
