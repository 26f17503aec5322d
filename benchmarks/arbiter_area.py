"""Fit the arbiter's part of the area of several machines to synthesis results.

    python benchmarks/arbiter_area.py [--fit]

Synthesizes systems whose machines are black boxes, keeps the counts in
``bitstreams/arbiter_samples.json``, and fits LUTs and flip-flops by least squares of relative
errors, as ``area_model.py`` does; ``--fit`` only repeats the fit. Writes
``amaranth_vta/fpga/arbiter_model.json`` and prints the errors; exits with 1 if block RAMs, which
follow from the structure of the design, are not exact. Needs the extra ``fpga``; takes a quarter of
an hour.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from area_model import fit, predicted
from pages import REPOSITORY

from amaranth_vta.fpga.area import FAMILIES, FITTED, Area
from amaranth_vta.fpga.synthesis import area_of, commands, merged_modules
from amaranth_vta.fpga.system_area import ARBITER_MODEL, arbiter_area, arbiter_features
from amaranth_vta.fpga.tools import Call, run, tool
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.system.parameters import SystemConfig
from amaranth_vta.sim.machine.elaborate import system_verilog

SAMPLES = REPOSITORY / "bitstreams" / "arbiter_samples.json"
# LOG_BUS_WIDTH of the machines, their number, and the width of the shared bus.
SYSTEMS = (
    *((6, 2, 64), (6, 2, 128), (6, 2, 256), (6, 4, 64), (6, 4, 128), (6, 4, 256), (6, 8, 128)),
    *((6, 8, 512), (7, 2, 128), (7, 2, 256), (7, 4, 512), (8, 2, 512)),
)
_MACHINE = "module vta_machine"


def system_of(log_bus: int, machines: int, bits: int) -> SystemConfig:
    return SystemConfig(replace(PRESETS["tiny"], log_bus_width=log_bus), machines, bits)


def synthesized_arbiter(system: SystemConfig, family: str) -> Area:
    """The area of a system without its machines."""
    text = system_verilog(system)
    others, machine = text[: text.index(_MACHINE)], text[text.index(f"{_MACHINE}(") :]
    head = machine[: machine.index(";") + 1]
    ports = re.findall(r"^ *(?:input|output)\b.*", machine[: machine.index("endmodule")], re.M)
    black_box = "\n".join(["(* blackbox *)", head, *ports, "endmodule\n"])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vta.v").write_text(merged_modules(others) + black_box, encoding="utf-8")
        script = f"read_verilog vta.v; {commands(family)}; tee -q -o area.json stat -json"
        run(Call(tool("YOSYS"), ("-q", "-p", script)), Path(folder))
        design = json.loads(Path(folder, "area.json").read_text(encoding="utf-8"))["design"]
    return area_of(design["num_cells_by_type"], family)


def synthesize() -> list[dict[str, Any]]:
    samples = []
    for family in FAMILIES:
        for log_bus, machines, bits in SYSTEMS:
            area = synthesized_arbiter(system_of(log_bus, machines, bits), family)
            keys = {"family": family, "log_bus_width": log_bus, "machines": machines}
            samples.append({**keys, "bus_bits": bits, **asdict(area)})
            print(samples[-1], flush=True)
    return samples


def fitted(samples: list[dict[str, Any]], family: str) -> dict[str, Any]:
    """The model of a family."""
    own = [sample for sample in samples if sample["family"] == family]
    rows = [
        arbiter_features(system_of(item["log_bus_width"], item["machines"], item["bus_bits"]))
        for item in own
    ]
    model: dict[str, Any] = {"samples": len(own)}
    for column in FITTED:
        counts = np.array([float(sample[column]) for sample in own])
        weights, errors, without = fit(rows, counts, {}), [], []
        for number, row in enumerate(rows):
            rest = fit(rows[:number] + rows[number + 1 :], np.delete(counts, number), {})
            errors.append(abs(predicted(weights, row) / counts[number] - 1))
            without.append(abs(predicted(rest, row) / counts[number] - 1))
        model[column] = {
            "weights": weights,
            "mean_error": round(float(np.mean(errors)), 4),
            "worst_error": round(float(np.max(errors)), 4),
            "mean_error_of_others": round(float(np.mean(without)), 4),
        }
        print(f"{family} {column}: mean error {np.mean(errors):.1%}, worst {np.max(errors):.1%}; "
              f"of systems that are not fitted to, mean {np.mean(without):.1%}")  # fmt: skip
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="only fit the known samples")
    if not parser.parse_args().fit:
        SAMPLES.write_text(json.dumps(synthesize(), indent=1) + "\n", encoding="utf-8")
    samples = json.loads(SAMPLES.read_text(encoding="utf-8"))
    model = {family: fitted(samples, family) for family in FAMILIES}
    ARBITER_MODEL.write_text(json.dumps(model, indent=2) + "\n", encoding="utf-8")
    for item in samples:
        system = system_of(item["log_bus_width"], item["machines"], item["bus_bits"])
        found = arbiter_area(system, item["family"]).bram36
        if found != item["bram36"]:
            sys.exit(f"not exact: {item} has {found} block RAMs in the model")


if __name__ == "__main__":
    main()
