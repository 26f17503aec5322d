"""Check that tokens order the accesses of every launch, and that claims of independence are true.

    python benchmarks/races.py [--networks NAME ...] [--config NAME]

Runs the final instruction streams of a network, with layers joined, on the readable functional
model with its checks enabled. They find races (accesses of two modules to one element that no token
orders; without races, all legal orders give the same result), instructions wrongly marked
independent, and reads of scratchpad elements that were never written. Activations are random; no
access depends on them. Prints one row per launch, and exits with 1 if anything was found. A large
network takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np

from amaranth_vta.hw.config import DEFAULT, PRESETS
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session.compilation import compile
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sw.runtime.network.network_program import NetworkProgram
from amaranth_vta.sw.runtime.runtime import Runtime

SHOWN = ("resnet18", "resnet50", "mobilenetv2", "yolo", "digits")
# Maximum number of findings printed per kind.
_PRINTED = 4


def found(network: NetworkProgram) -> Iterator[tuple[str, list[str]]]:
    """For each launch, its name and size as text, and its findings."""
    program = network.program
    streams = network.launched("network")
    device = FunctionalDevice(
        program.config,
        program.placed_bytes(streams),
        report_races=True,
        report_false_claims=True,
        report_uninitialized=True,
    )
    placed = program.place(Runtime(device), streams)
    random = np.random.default_rng(0)
    for buffer in program.buffers:
        if buffer.role != "constant":
            placed.buffer(buffer.name).write(random.integers(0, 256, buffer.size, np.uint8))
    joined = {launch.stream: len(launch.ends) for launch in network.launches}
    for stream in streams:
        placed.run_one(stream)
        kinds = (device.races, device.false_claims, device.uninitialized_reads)
        wrong = [str(item) for kind in kinds for item in kind[:_PRINTED]]
        instructions, layers = len(program.streams[stream].words), joined.get(stream, 1)
        yield f"{layers:,} layers, {instructions:,} instructions", wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=SHOWN)
    parser.add_argument("--config", choices=tuple(PRESETS), default=DEFAULT)
    arguments = parser.parse_args()
    bad = False
    for name in arguments.networks:
        for text, wrong in found(compile(generate(name).sized, arguments.config).program):
            print(
                f"{name:12}  {text}: {'; '.join(wrong) or 'no races, no false claims'}", flush=True
            )
            bad |= bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
