"""Where whole networks lose cycles, by cause: one row per network, as in docs/performance.md.

    python benchmarks/lost_cycles.py [--networks NAME ...] [--dram ideal|ddr]

By the estimate, in one launch as `vta bench` runs them. The causes add up to the cycles: MACs of
the network; products with the zeros that fill tiles up and with the identity matrix, by which GEMM
moves values; cycles in which GEMM has an instruction and multiplies nothing; and, of the cycles
without an instruction of GEMM, those in which compute loads micro-ops or parameters, those of the
ALU alone, and those in which it waits for load or for store. The rest are latencies between
instructions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span

SHOWN = ("resnet18", "resnet50", "mobilenetv2", "yolo", "digits")


@dataclass
class Lost:
    """Cycles of a network: those of its MACs, and the others by cause."""

    macs: int = 0
    zeros: int = 0
    stalls: int = 0
    loads: int = 0
    alu: int = 0
    waits_load: int = 0
    waits_store: int = 0
    rest: int = 0

    @property
    def cycles(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


HEADS = (
    *("network", "cycles", "MACs", "zeros, moves", "GEMM stalls", "UOP, ACC", "ALU alone"),
    *("waits for load", "waits for store", "rest"),
)


class _Idle(Timeline):
    """Counts, of the cycles in which GEMM has no instruction, what compute does instead."""

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0
        self.idle = [0, 0, 0, 0, 0]

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        doing = np.full(cycles, len(self.idle) - 1, np.int8)
        order = {"compute loads": 0, "alu": 1, "load": 2, "store": 3, "gemm": -1}
        found = [(order[kind], span) for span in spans if (kind := _kind(span)) in order]
        # Where several are active, the first in the order counts.
        for number, span in sorted(found, key=lambda item: -item[0]):
            doing[span.begin : span.end] = number
        self.busy += int((doing == -1).sum())
        for number in range(len(self.idle)):
            self.idle[number] += int((doing == number).sum())


def _kind(span: Span) -> str:
    """The lane of compute that is active, or the module that compute waits for."""
    computes = span.lane in ("compute loads", "gemm", "alu", "compute")
    if span.waits_for is not None:
        return span.waits_for if computes else ""
    return span.lane if computes else ""


def lost(name: str, dram: str) -> Lost:
    network, timeline = generate(name), _Idle()
    with Session(
        network.model, DEFAULT, "estimate", dram, timeline=timeline, timing_only=True
    ) as session:
        session.run(network.inputs)
        counters, peak = session.report()["counters"], session.config.macs_per_cycle
        useful = round(session.macs / peak)
        found = Lost(
            useful,
            counters["gemm_uops"] - useful,
            timeline.busy - counters["gemm_uops"],
            *timeline.idle,
        )
        assert found.cycles == session.cycles
    return found


def table(names: Iterable[str] = SHOWN, dram: str = "ddr") -> list[str]:
    """The lines of the table, in Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", "|---|" + "--:|" * (len(HEADS) - 1)]
    for name in names:
        found = lost(name, dram)
        counts = (found.cycles, *(getattr(found, item.name) for item in fields(found)))
        lines.append(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=SHOWN)
    parser.add_argument("--dram", choices=("ideal", "ddr"), default="ddr")
    arguments = parser.parse_args()
    print("\n".join(table(arguments.networks, arguments.dram)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
