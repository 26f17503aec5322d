"""Measure the latencies of `hw/timing.py` on the design itself.

    python benchmarks/estimate_constants.py [--write]

Runs a small program in Amaranth's simulator and derives sums of latencies from when its
instructions issue and finish; each sum is the latency of a path from one event to another. Prints
the measured sums beside those of `hw/timing.py`. Where they differ, ``--write`` changes the last
latency of the path. Without it, exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amaranth_vta.hw import timing
from amaranth_vta.hw.config import PRESETS, Config
from amaranth_vta.hw.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Memory, Store
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sim.machine.pysim import PysimDevice
from amaranth_vta.sim.programs.image import ProgramImage
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span

TIMING = Path(timing.__file__)
CONFIG, DRAM = PRESETS["tiny"], "ideal"
INSTRUCTION_WORDS = 2
PROGRAM: list[Instruction] = [
    Load(memory=Memory.INP, x_size=1, push_next=1),
    Gemm(uop_end=1, iter_out=1, iter_in=1, reset=1, pop_prev=1),
    Alu(uop_end=1, iter_out=1, iter_in=1, alu_opcode=AluOp.ADD, use_immediate=1, push_next=1),
    Store(x_size=1, dram_base=64, pop_prev=1),
    Finish(),
]
LOAD, GEMM, ALU, STORE, FINISH = range(len(PROGRAM))


class Recorder(Timeline):
    """Keeps the spans of a run."""

    spans: list[Span]
    cycles: int

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        self.spans, self.cycles = list(spans), cycles


@dataclass(frozen=True)
class Interval:
    """Cycles between two events: ``measured``, and ``before``, the latencies of the path according
    to `hw/timing.py` except for ``last``, the name of the final latency.
    """

    name: str
    measured: int
    before: int
    last: str

    @property
    def expected(self) -> int:
        return self.before + getattr(timing.LATENCIES, self.last)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="change hw/timing.py")
    write = parser.parse_args().write
    print(f"{'path':52}{'measured':>10}{'expected':>10}")
    differ = []
    for path in measure():
        print(f"{path.name:52}{path.measured:>10}{path.expected:>10}")
        if path.measured != path.expected:
            differ.append(path)
            if write:
                change(path.last, path.measured - path.before)
    return 1 if differ and not write else 0


def measure() -> list[Interval]:
    """Measure the paths, in an order in which earlier paths determine all but the last latency."""
    recorder = run()
    known, memory = timing.LATENCIES, memory_timing(DRAM)
    handed = {span.index: span.end - 1 for span in recorder.spans if span.lane == "fetch"}
    units = [span for span in recorder.spans if span.lane != "fetch" and span.waits_for is None]
    issued = {span.index: span.issued for span in units}
    done = {span.index: span.end for span in units}
    request = known.grant_to_memory + memory.latency
    around = 2  # one cycle to read the operands, one to write the results
    return [
        Interval("hand-over to issue", issued[LOAD] - handed[LOAD], 0, "hand_over_to_issue"),
        Interval("done to issue with the token", issued[GEMM] - done[LOAD], 1, "done_to_retire"),
        Interval("issue to issue", issued[ALU] - issued[GEMM], 0, "issue_to_issue"),
        Interval(
            "GEMM, issue to done",
            done[GEMM] - issued[GEMM],
            timing.gemm_latency(CONFIG),
            "issue_to_item",
        ),
        Interval(
            "ALU, from the end of GEMM to done",
            done[ALU] - done[GEMM],
            known.done_to_retire + timing.alu_latency(CONFIG) + around,
            "issue_to_item",
        ),
        Interval(
            "LOAD of one word, issue to done",
            done[LOAD] - issued[LOAD],
            known.issue_to_request + request,
            "word_to_done",
        ),
        Interval(
            "STORE of one word, issue to done",
            done[STORE] - issued[STORE],
            known.issue_to_request + known.announce_to_word + memory.latency - 1,
            "response_to_done",
        ),
        Interval(
            "launch to hand-over of the first instruction",
            handed[LOAD],
            request + INSTRUCTION_WORDS - 1 + known.word_to_fetch,
            "launch_to_fetch",
        ),
        Interval(
            "FINISH, issue to interrupt", recorder.cycles - issued[FINISH], 0, "finish_to_end"
        ),
    ]


def run() -> Recorder:
    recorder = Recorder()
    image = ProgramImage.assemble(CONFIG, np.zeros(4096, np.uint8), 2048, PROGRAM)
    device = PysimDevice(CONFIG, image.dram.size, DRAM, None, recorder)
    device.write(0, image.dram)
    result = device.run(image.insn_addr, image.insn_count)
    assert result.fault is None, result.fault
    return recorder


def change(name: str, value: int) -> None:
    text = TIMING.read_text(encoding="utf-8")
    changed = re.sub(rf"(?m)^(    {name}: int = )\d+$", rf"\g<1>{value}", text)
    TIMING.write_text(changed, encoding="utf-8")
    print(f"  {name} = {value}")


if __name__ == "__main__":
    sys.exit(main())
