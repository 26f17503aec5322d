"""Runs of networks in simulators whose Verilog writes what it observes to a file."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import chdir
from pathlib import Path

import numpy as np
import onnx

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.host import SimulatedDevice
from amaranth_vta.sim.machine.rtl.build import HARNESS, PINS, Harness, design_library, is_optimized
from amaranth_vta.sim.machine.rtl.engine import CompiledMachine
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram

# The file in the current folder to which the Verilog writes.
WRITTEN = "written.txt"
_SHOWN = ("digits", "bert-tiny", "mobilenetv2")
_DIGITS = Path(__file__).parents[1] / "examples" / "digits"
_MEMORY_BYTES = 1 << 28


def options() -> tuple[list[str], Config, str]:
    """The networks, machine and memory of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", nargs="+", default=_SHOWN, choices=tuple(NETWORKS))
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--dram", default="ddr")
    given = parser.parse_args()
    return list(given.networks), Config.load(given.config), given.dram


def simulator(verilog: str, config: Config, flags: tuple[str, ...] = ()) -> Path:
    """The library of the simulator of ``verilog``; ``flags`` are Verilator's."""
    return design_library(verilog, Harness(HARNESS, PINS), flags, is_optimized(config))


def simulated(name: str, config: Config, library: Path, dram: str) -> tuple[str, NetworkProgram]:
    """Simulate a run of a network; returns the text of the file `WRITTEN`, and the compiled
    network. ``digits`` is the trained network of the examples with its first image.
    """
    model: onnx.ModelProto | str = str(_DIGITS / "digits.onnx")
    if name == "digits":
        inputs = {"image": np.load(_DIGITS / "images.npz")["image"][:1]}
    else:
        network = generate(name)
        model, inputs = network.sized, network.inputs
    device = SimulatedDevice(config, _MEMORY_BYTES)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        machine = CompiledMachine(library, device.memory, memory_timing(dram))
        device.attach(machine)
        with Session(model, config, device) as session:
            session.run(inputs)
        machine.close()
        return Path(WRITTEN).read_text(encoding="utf-8"), session.program
