"""Speed of the machine in Amaranth's simulator, with Amaranth's own engine and the levelized one.

    python benchmarks/pysim_speed.py [--config tiny] [--programs 4]

Runs random programs on both engines alternately; both must take the same cycles and leave the same
memory. Seconds and cycles per second are processor time.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from amaranth.sim import Simulator

from amaranth_vta.hw.config import Config
from amaranth_vta.sim.amaranth_internals.simulator import simulator
from amaranth_vta.sim.machine.pysim import MakeSimulator, PysimDevice
from amaranth_vta.sim.programs.random_programs import legal_program

ENGINES: dict[str, MakeSimulator] = {"amaranth": Simulator, "levelized": simulator}
MEMORY_BYTES = 1 << 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--programs", type=int, default=4)
    arguments = parser.parse_args()
    config = Config.load(arguments.config)
    devices = {name: elaborated(name, make, config) for name, make in ENGINES.items()}
    spent, cycles = dict.fromkeys(ENGINES, 0.0), 0
    for seed in range(arguments.programs):
        image = legal_program(config, seed)
        left = []
        for name, device in devices.items():
            device.write(0, image.dram)
            started = time.process_time()
            result = device.run(image.insn_addr, image.insn_count)
            spent[name] += time.process_time() - started
            assert result.fault is None, result.fault
            left.append((result.cycles or 0, device.read(0, image.dram.size)))
        assert left[0][0] == left[1][0]
        assert np.array_equal(left[0][1], left[1][1])
        cycles += left[0][0]
    for name, seconds in spent.items():
        print(f"{name:<10}{cycles / seconds:8,.0f} cycles per second")
    print(f"ratio     {spent['amaranth'] / spent['levelized']:8.2f}")


def elaborated(name: str, make: MakeSimulator, config: Config) -> PysimDevice:
    """A device on the engine of that name; prints how long it takes to make it."""
    started = time.process_time()
    device = PysimDevice(config, MEMORY_BYTES, make_simulator=make)
    print(f"{name:<10}{time.process_time() - started:8.2f} seconds to elaborate the machine")
    return device


if __name__ == "__main__":
    main()
