"""Compare all networks of the generators with ONNX Runtime: ``python benchmarks/networks.py``.

    python benchmarks/networks.py [NAME ...] [--config NAME] [--device estimate] [--dram ddr]
                                  [--check]

Prints one row per network. Without options, writes the rows into docs/networks.md; with
``--check``, compares the page with the rows instead. Weights are random: results are meaningless,
but each layer costs as much as in a trained network. Exits with 1 if an element differs from ONNX
Runtime, or the page is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pages
from tables import row

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.measurements.networks import MeasuredNetwork, measure_network
from amaranth_vta.networks import NETWORKS
from amaranth_vta.report.host_summary import host_groups, summary
from amaranth_vta.sim.devices import RunOptions

MARKER = "<!-- made by `python benchmarks/networks.py` -->\n"
PAGE = "docs/networks.md"
# Kinds of host operators that every network has, or whose cost is negligible.
USUAL = ("conversions between floats", "packing of pixels", "operators between others")


@dataclass(frozen=True)
class Row:
    name: str
    measured: MeasuredNetwork

    @property
    def mismatches(self) -> int:
        return sum(item.mismatches for item in self.measured.measurements)

    def cells(self, peak: int) -> Iterator[str]:
        network, layers = NETWORKS[self.name], self.measured.layers
        found = summary(layers)
        launches, macs = self.measured.launches, found["macs_on_machine"]
        cycles = sum(launch.cycles or 0 for launch in launches)
        bound = sum(launch.bound_cycles for launch in launches)
        kinds: Counter[str] = Counter()
        for group in host_groups(layers):
            if not group.reason.startswith(USUAL):
                kinds += group.operators
        yield from (f"`{self.name}`", str(network.size), str(network.form))
        yield f"{macs + found['macs_on_host']:,}"
        yield f"{found['share_on_machine']:.2%}"
        yield f"{cycles:,}" if cycles else ""
        yield f"{bound / cycles:.1%}" if cycles else ""
        yield f"{macs / cycles / peak:.1%}" if cycles else ""
        yield ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())


HEADS = (
    *("network", "input", "quantized", "MACs", "of them on the machine", "cycles", "of bound"),
    *("MACs per cycle, of peak", "on the host, besides conversions and views"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--config", default=DEFAULT)
    parser.add_argument("--device", default="estimate")
    parser.add_argument("--dram", default="ddr")
    pages.add_options(parser, PAGE, writes=True)
    chosen = parser.parse_args()
    config = Config.load(chosen.config)
    lines = [row(*HEADS), "|---|--:|---|" + "--:|" * 5 + "---|"]
    print("\n".join(lines), flush=True)
    wrong = 0
    for name in chosen.names or NETWORKS:
        measured = Row(name, measure_network(name, config, RunOptions(chosen.device, chosen.dram)))
        lines.append(row(*measured.cells(config.macs_per_cycle)))
        print(lines[-1], flush=True)
        wrong += measured.mismatches
    differs = _is_default(chosen, parser) and pages.put(chosen, MARKER, lines, PAGE)
    print(f"{wrong:,} elements differ from ONNX Runtime's")
    return int(differs or wrong > 0)


def _is_default(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> bool:
    options: Sequence[str] = ("names", "config", "device", "dram")
    return all(getattr(chosen, name) == (parser.get_default(name) or []) for name in options)


if __name__ == "__main__":
    sys.exit(main())
