"""``vta estimate-area``: estimate FPGA resources of a machine without synthesis."""

from __future__ import annotations

from dataclasses import asdict

import click

from amaranth_vta.cli.common.options import (
    ConfigType,
    json_option,
    machines_option,
    memory_bus_option,
)
from amaranth_vta.cli.common.outputs import Outputs
from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.hw.system.parameters import SystemConfig


@click.command(name="estimate-area")
@click.argument("machine", metavar="[CONFIG]", type=ConfigType(), default=DEFAULT)
@machines_option
@memory_bus_option
@json_option
def estimate_area(machine: Config, machines: int, memory_bus: int, json_path: str | None) -> None:
    """Estimate the FPGA resources of CONFIG, a preset or a file.

    With --machines, they include all machines and their arbiter.

    LUTs and flip-flops come from a model fitted to synthesis by Yosys, whose error is printed;
    multipliers and block RAMs follow from the structure of the design and are exact. xc7 is the
    7-series of Xilinx, with LUTs of six inputs, ecp5 the ECP5 of Lattice, with LUTs of four. Where
    an ECP5 has too few multipliers, products of GEMM are made of LUTs.
    """
    from amaranth_vta.fpga.area import FAMILIES, FITTED, fitted_model
    from amaranth_vta.fpga.chips import CHIPS
    from amaranth_vta.fpga.system_area import fitted_arbiter, system_area
    from amaranth_vta.report.text_table import text_table

    system = SystemConfig(machine, machines, memory_bus)
    areas = {family: system_area(system, family) for family in FAMILIES}
    rows, lacking = [], []
    for family, area in areas.items():
        fits = {
            chip.name: there
            for chip in CHIPS.values()
            if chip.family == family and chip.share(there := chip.area_of(system)) <= 1
        }
        lacking += [
            f"{name}: {area.dsp - there.dsp} products in LUTs, since the chip has too few "
            f"multipliers; "
            f"{there.lut:,} LUTs in all"
            for name, there in fits.items()
            if there.dsp < area.dsp
        ]
        numbers = (f"{area.lut:,}", f"{area.ff:,}", f"{area.dsp:,}", f"{area.bram36:,g}")
        rows.append((family, ", ".join(fits) or "none", *numbers))
    with Outputs() as outputs:
        outputs.reserve("--json", json_path)
        heads = ("family", "fits", "LUT", "FF", "DSP", "BRAM36")
        outputs.say(text_table(heads, rows, texts=2, width=outputs.text_width))
        for line in lacking:
            outputs.say(line)
        models_of = {"machines": fitted_model()}
        if not system.is_single:
            models_of["arbiters"] = fitted_arbiter()
        for what, models in models_of.items():
            for family, model in models.items():
                errors = ", ".join(
                    f"{column.upper()} {model[column]['mean_error_of_others']:.1%}"
                    for column in FITTED
                )
                outputs.say(
                    f"{family}: mean error on {what} left out of the fit, of {model['samples']}: "
                    f"{errors}"
                )
        outputs.save_json("--json", {family: asdict(area) for family, area in areas.items()})
