"""Speed of the functional model: ``python benchmarks/functional_speed.py`` (about a minute).

Runs ResNet-18 on the compiled model, with each host instruction set that it was compiled for, and
on ONNX Runtime with one thread, alternately: processor times, the minimum of several rounds. Then
measures each preset with a program like a 3×3 convolution with four input blocks.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from amaranth_vta.hw import isa
from amaranth_vta.hw.config import DEFAULT, PRESETS, Config
from amaranth_vta.networks import generate
from amaranth_vta.session import Session
from amaranth_vta.sim.model.device import FunctionalDevice
from amaranth_vta.sim.model.machine import Outcome
from amaranth_vta.sim.model.native.model import NativeModel, Vectors, available_vectors
from amaranth_vta.sw.runtime.network.onnx_runtime import default_session

PRODUCTS = 36
ROUNDS = 20
# Byte addresses of micro-ops, results and program, and the size of memory; operands begin at 0.
UOPS, RESULTS, PROGRAM, MEMORY = 1 << 20, 2 << 20, 3 << 20, 4 << 20
# Bytes of memory of the machines that run ResNet-18.
NETWORK_MEMORY = 1 << 26


class Timed(NativeModel):
    """Adds up the processor time of its runs."""

    seconds = 0.0

    def run(self, insn_addr: int, insn_count: int, time_limit: float | None) -> Outcome:
        started = time.process_time()
        outcome = super().run(insn_addr, insn_count, time_limit)
        self.seconds += time.process_time() - started
        return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of ResNet-18 (default 5)")
    parser.add_argument("--clear", action="store_true", help="also on the clear model: seconds")
    chosen = parser.parse_args()
    measure_resnet18(chosen.rounds, chosen.clear)
    print("\npreset           MACs/micro-op   GMAC/s")
    for name, config in PRESETS.items():
        print(f"{name:<16} {config.macs_per_cycle:13,} {preset_speed(config) / 1e9:8.1f}")


def measure_resnet18(rounds: int, clear: bool) -> None:
    network = generate("resnet18")
    model, inputs = network.model, network.inputs
    reference = default_session(model.SerializeToString())
    best: dict[str, float] = {}

    def note(name: str, seconds: float) -> None:
        best[name] = min(best.get(name, math.inf), seconds)

    config = PRESETS[DEFAULT]
    timed: list[tuple[Vectors, Timed, Session]] = []
    for vectors in available_vectors():
        device = FunctionalDevice(config, NETWORK_MEMORY)
        device.model = machine = Timed(config, device.memory, vectors)
        timed.append((vectors, machine, Session(model, config, device)))
    for _ in range(rounds + 1):  # the first round warms up
        note("ONNX Runtime, one thread", seconds_of(lambda: reference.run(None, inputs)))
        for vectors, machine, session in timed:
            machine.seconds = 0.0
            whole = seconds_of(partial(session.run, inputs))
            note(f"device, {vectors.name}", machine.seconds)
        note(f"session.run, {vectors.name}", whole)
    macs = session.macs / (rounds + 1)
    if clear:
        session = Session(model, config, FunctionalDevice(config, NETWORK_MEMORY, clear=True))
        note("session.run, clear model", seconds_of(lambda: session.run(inputs)))
    print(f"ResNet-18, {macs / 1e9:.2f} GMAC             ms   GMAC/s   x ONNX Runtime")
    own = best["ONNX Runtime, one thread"]
    for name, seconds in best.items():
        print(f"{name:<28} {seconds * 1e3:5.1f} {macs / seconds / 1e9:8.1f} {seconds / own:10.2f}")


def seconds_of(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def preset_speed(config: Config, vectors: Vectors | None = None) -> float:
    """MACs per second of processor time of `like_a_convolution`."""
    memory = np.random.default_rng(0).integers(0, 256, MEMORY, np.uint8)
    encode, encode_uop = isa.instruction_set(config).encode, isa.instruction_set(config).encode_uop
    uops = b"".join(encode_uop(isa.Uop(0, at, at)).to_bytes(4, "little") for at in range(PRODUCTS))
    program = b"".join(encode(item).to_bytes(16, "little") for item in like_a_convolution(config))
    for address, data in ((UOPS, uops), (PROGRAM, program)):
        memory[address : address + len(data)] = np.frombuffer(data, np.uint8)
    model = Timed(config, memory, vectors)
    speeds = []
    for _ in range(ROUNDS):
        model.seconds = 0.0
        outcome = model.run(PROGRAM, len(program) // isa.INSTRUCTION_BYTES, None)
        assert outcome.fault is None, outcome.fault
        speeds.append(outcome.counters["gemm_uops"] * config.macs_per_cycle / model.seconds)
    return max(speeds)


def like_a_convolution(config: Config, rounds: int = 50) -> list[isa.Instruction]:
    """Rounds of loads, GEMM, three ALU instructions and a store, one after the other."""
    pixels = min(config.acc.depth, config.inp.depth - PRODUCTS, 256) // 8 * 8
    loops = {"uop_end": 1, "iter_out": pixels // 8, "iter_in": 8, "dst_factor_out": 8}
    loops |= {"dst_factor_in": 1, "src_factor_out": 8, "src_factor_in": 1}
    immediate = {"use_immediate": 1, "immediate": 8, **loops}
    one_round = [
        isa.Load(memory=isa.Memory.INP, x_size=pixels + PRODUCTS, pop_next=1),
        isa.Load(memory=isa.Memory.WGT, x_size=PRODUCTS, push_next=1),
        isa.Gemm(**loops, reset=1, pop_prev=1, pop_next=1),
        isa.Gemm(**loops | {"uop_end": PRODUCTS}, push_prev=1),
        *(
            isa.Alu(alu_opcode=operation, **immediate)
            for operation in (isa.AluOp.SHR, isa.AluOp.MAX)
        ),
        isa.Alu(alu_opcode=isa.AluOp.MIN, **immediate, push_next=1),
        isa.Store(
            dram_base=RESULTS // config.out.element_bytes, x_size=pixels, pop_prev=1, push_prev=1
        ),
    ]
    return [
        isa.Load(memory=isa.Memory.UOP, dram_base=UOPS // 4, x_size=PRODUCTS, push_prev=1),
        isa.Store(x_size=0, push_prev=1),
        *one_round * rounds,
        isa.Finish(),
    ]


if __name__ == "__main__":
    main()
