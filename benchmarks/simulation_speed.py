"""Simulation speed of the compiled machine, and the time to build it.

    python benchmarks/simulation_speed.py [--config NAME] [--dram ideal] [--seconds 5] [--build]
        [--network resnet18]

The program keeps load, GEMM, ALU and store busy at the same time; ``--network`` runs a network
instead, once with each build. The simulator clocks groups of registers separately, and only while
they are active; as a reference, a build with one clock for all registers runs alternately with it.
``--build`` first measures a build with a cold cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session
from amaranth_vta.session.compilation import compile
from amaranth_vta.sim.machine.rtl.engine import RtlDevice
from amaranth_vta.sw.runtime.device import RunResult

MEMORY_BYTES = 1 << 22
PROGRAM, UOPS = 0, 1 << 20  # byte addresses


def busy_program(config: Config, rounds: int) -> list[isa.Instruction]:
    """Rounds of load, GEMM, ALU and store in two halves of each scratchpad."""
    half_inp, half_acc = config.inp.depth // 2, config.acc.depth // 2
    vectors = min(half_inp, half_acc, 256)
    program: list[isa.Instruction] = [
        isa.Load(memory=isa.Memory.UOP, dram_base=UOPS // 4, x_size=1),
        isa.Load(memory=isa.Memory.WGT, x_size=1),
    ]
    for number in range(rounds):
        first, half = number < 2, number % 2
        program += [
            isa.Load(
                memory=isa.Memory.INP,
                sram_base=half * half_inp,
                x_size=vectors,
                pop_next=int(not first),
                push_next=1,
            ),
            isa.Gemm(
                uop_end=1,
                iter_out=4,
                iter_in=vectors,
                dst_factor_in=1,
                src_factor_in=1,
                pop_prev=1,
                push_prev=1,
            ),
            isa.Alu(
                uop_end=1,
                iter_out=1,
                iter_in=vectors,
                dst_factor_in=1,
                src_factor_in=1,
                alu_opcode=isa.AluOp.SHR,
                use_immediate=1,
                immediate=1,
                pop_next=int(not first),
                push_next=1,
            ),
            isa.Store(
                sram_base=0,
                dram_base=(MEMORY_BYTES // 2) // config.out.element_bytes,
                x_size=vectors,
                pop_prev=1,
                push_prev=1,
            ),
        ]
    return [*program, isa.Finish()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--dram", default="ideal")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--network", choices=tuple(NETWORKS))
    arguments = parser.parse_args()
    config = Config.load(arguments.config)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.build:
            os.environ["VTA_CACHE"] = folder
        started, before = time.monotonic(), os.times()
        RtlDevice(config, MEMORY_BYTES, arguments.dram)
        seconds, after = time.monotonic() - started, os.times()
        spent = sum(after[:4]) - sum(before[:4])
        state = "" if arguments.build else " (cached)"
        print(f"build     {seconds:8.1f} s, {spent:.1f} s of processor time{state}")
        if arguments.network:
            speeds = network_cycles_per_second(config, arguments.dram, arguments.network)
        else:
            speeds = cycles_per_second(config, arguments.dram, arguments.seconds)
    grouped, together = speeds
    print(f"grouped   {grouped / 1e3:8.0f} k cycles per second of processor time")
    print(f"together  {together / 1e3:8.0f} k, all registers with one clock")
    print(f"ratio     {grouped / together:8.2f}")


def simulated_cycles_per_second(config: Config, dram: str, seconds: float) -> float:
    """Simulation speed of the busy program, per second of processor time, which other processes
    hardly affect.
    """
    return cycles_per_second(config, dram, seconds, (True,))[0]


def cycles_per_second(
    config: Config, dram: str, seconds: float, variants: tuple[bool, ...] = (True, False)
) -> list[float]:
    """Cycles per second of the busy program with and without register groups, run alternately.

    Each of the ``variants`` runs for ``seconds`` of processor time; all must take the same cycles
    and leave the same memory.
    """
    devices = [_ready(config, dram, grouped) for grouped in variants]
    cycles, spent = [0] * len(devices), [0.0] * len(devices)
    while min(spent) < seconds:
        for number, (device, count) in enumerate(devices):
            started = time.process_time()
            result = device.run(PROGRAM, count)
            spent[number] += time.process_time() - started
            assert result.fault is None, result.fault
            cycles[number] += result.cycles or 0
        assert len(set(cycles)) == 1, cycles
    first, *others = (device.read(0, MEMORY_BYTES) for device, _ in devices)
    assert all(np.array_equal(first, other) for other in others)
    return [count / time_spent for count, time_spent in zip(cycles, spent, strict=True)]


class TimedDevice(RtlDevice):
    """Accumulates the cycles of all runs, and their processor time in seconds."""

    cycles = 0
    spent = 0.0

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        started = time.process_time()
        result = super().run(insn_addr, insn_count, time_limit, watched)
        self.spent += time.process_time() - started
        self.cycles += result.cycles or 0
        return result


def network_cycles_per_second(config: Config, dram: str, name: str) -> list[float]:
    """Cycles per second of the network ``name`` with and without register groups, which must take
    the same cycles and have no wrong results.
    """
    network = generate(name)
    compiled = compile(network.sized, config).program
    size = compiled.program.placed_bytes(compiled.launched("network"))
    devices = [TimedDevice(config, size, dram, grouped=grouped) for grouped in (True, False)]
    for device in devices:
        with Session(network.sized, config, device) as session:
            assert not session.check(network.inputs).mismatches
    assert devices[0].cycles == devices[1].cycles
    return [device.cycles / device.spent for device in devices]


def _ready(config: Config, dram: str, grouped: bool) -> tuple[RtlDevice, int]:
    """A device with the busy program in its memory, and the length of that."""
    device = RtlDevice(config, MEMORY_BYTES, dram, grouped=grouped)
    program = busy_program(config, rounds=50)
    encode = isa.instruction_set(config).encode
    device.write(UOPS // 2, np.random.default_rng(0).integers(0, 256, 1 << 19, np.uint8))
    device.write(UOPS, bytes(4))
    device.write(PROGRAM, b"".join(encode(item).to_bytes(16, "little") for item in program))
    return device, len(program)


if __name__ == "__main__":
    main()
