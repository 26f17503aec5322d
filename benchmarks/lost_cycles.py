"""Where whole networks lose cycles, by cause: one row per network, as in docs/performance.md.

    python benchmarks/lost_cycles.py [--networks NAME ...] [--dram ideal|ddr] [--layers]
        [--dim NAME=SIZE ...]

Uses the estimate, with the network in one launch as in `vta bench`. The columns add up to all
cycles: MACs of the network; multiplications by padding zeros of partial tiles and by the identity
matrix, with which GEMM moves values; and cycles in which GEMM is stalled within an instruction.
Cycles without a GEMM instruction are split into micro-op and parameter loads of compute, ALU
alone, and waits for load or for store. The rest are latencies between instructions. ``--layers``
prints one row per layer and does not split the cycles of GEMM; a layer's cycles run from the last
STORE of the previous layer to its own last STORE, when GEMM may already work on the next layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from tables import head, row

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.trace.perfetto import Timeline
from amaranth_vta.sim.trace.timeline import Span

SHOWN = ("resnet18", "resnet50", "mobilenetv2", "yolo", "digits")


@dataclass
class Lost:
    """Cycles of a network: MACs, and lost cycles by cause."""

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


# Activity of compute in a cycle: if several lanes are active, the first in this order counts.
_GEMM, _REST = -1, 4
_ORDER = {"gemm": _GEMM, "compute loads": 0, "alu": 1, "load": 2, "store": 3}


class _Doing(Timeline):
    """Activity of compute in each cycle of all launches, as numbers of `_ORDER`: int8 (cycles,)."""

    def __init__(self) -> None:
        super().__init__()
        self.cycles = np.empty(0, np.int8)

    def add(
        self,
        config: Config,
        words: list[int],
        spans: Iterable[Span],
        cycles: int,
        estimated: bool = False,
    ) -> None:
        doing = np.full(cycles, _REST, np.int8)
        found = [(_ORDER[kind], span) for span in spans if (kind := _kind(span)) in _ORDER]
        for number, span in sorted(found, key=lambda item: -item[0]):
            doing[span.begin : span.end] = number
        self.cycles = np.concatenate([self.cycles, doing])


def _counts(doing: npt.NDArray[np.int8]) -> list[int]:
    """Count the cycles with a GEMM instruction, then the other cycles by activity of compute."""
    counts: list[int] = np.bincount(doing - _GEMM, minlength=_REST - _GEMM + 1).tolist()
    return counts


def _kind(span: Span) -> str:
    """The lane of compute that is active, or the module that compute waits for."""
    computes = span.lane in ("compute loads", "gemm", "alu", "compute")
    if span.waits_for is not None:
        return span.waits_for if computes else ""
    return span.lane if computes else ""


def _run(
    name: str, dram: str, dimensions: Mapping[str, int] | None = None
) -> tuple[Session, npt.NDArray[np.int8]]:
    """Run a network once; return its session and the activity of compute per cycle. A decoder
    keeps its caches in the machine's memory, and takes one token unless ``dimensions`` has more.
    """
    generator, timeline = NETWORKS[name], _Doing()
    with Session(
        generate(name).model,
        DEFAULT,
        "estimate",
        dram,
        dimensions=dimensions,
        context=generator.size if generator.decodes else None,
        timeline=timeline,
        timing_only=True,
    ) as session:
        session.run(random_inputs(session))
    assert timeline.cycles.size == session.cycles
    return session, timeline.cycles


def lost(name: str, dram: str) -> Lost:
    session, doing = _run(name, dram)
    products, peak = session.report()["counters"]["gemm_uops"], session.config.macs_per_cycle
    useful = round(session.macs / peak)
    busy, *idle = _counts(doing)
    return Lost(useful, products - useful, busy - products, *idle)


def layer_table(
    name: str, dram: str = "ddr", dimensions: Mapping[str, int] | None = None
) -> list[str]:
    """The Markdown table of a network's layers, as lines."""
    session, doing = _run(name, dram, dimensions)
    lines = head("layer", "cycles", "GEMM", *HEADS[5:])
    for layer in session.layers:
        if layer.cycles is not None:
            own, doing = doing[: layer.cycles], doing[layer.cycles :]
            lines.append(_row(layer.name, (layer.cycles, *_counts(own))))
    assert not doing.size
    return lines


def _row(name: str, counts: Iterable[int]) -> str:
    return row(name, *(f"{count:,}" for count in counts))


def table(names: Iterable[str] = SHOWN, dram: str = "ddr") -> list[str]:
    """The Markdown table of the networks, as lines."""
    lines = head(*HEADS)
    for name in names:
        found = lost(name, dram)
        counts = (found.cycles, *(getattr(found, item.name) for item in fields(found)))
        lines.append(_row(name, counts))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=SHOWN)
    parser.add_argument("--dram", choices=("ideal", "ddr"), default="ddr")
    parser.add_argument("--layers", action="store_true", help="one row per layer")
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="for --layers"
    )
    arguments = parser.parse_args()
    if not arguments.layers:
        print("\n".join(table(arguments.networks, arguments.dram)))
        return 0
    sizes = (item.partition("=") for item in arguments.dim)
    dimensions = {name: int(size) for name, _, size in sizes}
    for name in arguments.networks:
        print(f"{name}\n", *layer_table(name, arguments.dram, dimensions), "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
