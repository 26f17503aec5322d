"""ResNet-18 as a whole: ``python benchmarks/resnet18.py`` (about a minute).

Weights are random, so that what it says is of no use; each layer does what one of a trained network
would, and the result is compared with ONNX Runtime's. ``--model FILE`` writes the network, for
``vta run``.
"""

from __future__ import annotations

import argparse
import sys

import onnx

from amaranth_vta.bench.networks import resnet18
from amaranth_vta.hw.config import DEFAULT
from amaranth_vta.session import Session


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="write the network to this file, and run nothing")
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--device", default="rtl")
    parser.add_argument("--dram", default="ddr")
    chosen = parser.parse_args()
    network = resnet18()
    model, images = network.model(), network.images(1)
    if chosen.model:
        onnx.save(model, chosen.model)
        return 0
    with Session(model, chosen.config, chosen.device, chosen.dram) as session:
        report = session.check({"x": images})
        print(session.plan_table())
        host = {layer.operator for layer in session.layers if layer.placed_on == "host"}
        cycles, macs, peak = session.cycles, session.macs, session.config.macs_per_cycle
    print(f"\n{macs:,} MACs on the machine; on the host {', '.join(sorted(host))}")
    if cycles:
        print(f"{cycles:,} cycles, {macs / cycles / peak:.1%} of {peak} MACs per cycle")
    print(f"{report.mismatches:,} of {report.elements:,} results differ from ONNX Runtime's")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
