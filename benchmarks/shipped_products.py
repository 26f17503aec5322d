"""Run ResNet-18 on the RTL with the multipliers that synthesis gets.

    python benchmarks/shipped_products.py [--network NAME] [--config NAME]

`--device rtl` simulates GEMM's dot products and the lanes of the ALU as loops, and clocks parts of
the machine only while they are active. This script runs a whole network on the exported design,
compares the results with ONNX Runtime and the cycles with `--device rtl`, and exits with 1 if
either differs. ResNet-18 takes some minutes.
"""

from __future__ import annotations

import argparse
import sys

from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session
from amaranth_vta.session.compilation import compile
from amaranth_vta.sim.machine.rtl.engine import RtlDevice

DRAM = "ddr"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", choices=tuple(NETWORKS), default="resnet18")
    parser.add_argument("--config", choices=tuple(PRESETS), default=DEFAULT)
    arguments = parser.parse_args()
    config, network = PRESETS[arguments.config], generate(arguments.network)
    compiled = compile(network.sized, config).program
    size = compiled.program.placed_bytes(compiled.launched("network"))
    cycles, mismatches = {}, 0
    for grouped in (True, False):
        device = RtlDevice(config, size, DRAM, grouped=grouped)
        with Session(network.sized, config, device) as session:
            report = session.check(network.inputs)
            cycles[grouped] = session.cycles
        mismatches += report.mismatches
        products = "loops" if grouped else "shipped multipliers"
        print(
            f"{arguments.network}, {products}: {cycles[grouped]:,} cycles; {report.mismatches} of "
            f"{report.elements:,} results differ from ONNX Runtime"
        )
    return int(mismatches > 0 or cycles[True] != cycles[False])


if __name__ == "__main__":
    sys.exit(main())
