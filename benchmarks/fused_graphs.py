"""Whether random graphs of fused layers equal ONNX Runtime in every element, in one launch each.

    python benchmarks/fused_graphs.py [--graphs 500] [--chains | --channels]
                                      [--config NAME] [--device NAME]

Convolutions followed by residual additions and poolings, and inverted residuals; with ``--chains``
matrix products followed by up to five element-wise operators; with ``--channels`` convolutions
between which channels are shuffled, split, selected and concatenated. Prints how many graphs have
each kind of layer, and the seeds of the graphs that differ.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta.session import Session
from tests.support.channel_graphs import channel_graph
from tests.support.fused_graphs import fused_graph
from tests.support.step_chains import step_chain


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", type=int, default=500)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--chains", dest="make", action="store_const", const=step_chain)
    kind.add_argument("--channels", dest="make", action="store_const", const=channel_graph)
    parser.add_argument("--config", default="tiny-extended")
    parser.add_argument("--device", default="functional")
    arguments = parser.parse_args()
    operators: Counter[str] = Counter()
    different: list[int] = []
    for seed in range(arguments.graphs):
        network = (arguments.make or fused_graph)(seed)
        with Session(network.model(), arguments.config, arguments.device) as session:
            report = session.check({"x": network.images(1)})
            layers = [layer for layer in session.layers if layer.placed_on == "machine"]
        operators.update({layer.operator for layer in layers})
        if report.mismatches or not report.elements:
            different.append(seed)
    for operator, count in operators.most_common():
        print(f"{count:6,}  {operator}")
    print(f"{arguments.graphs - len(different):,} of {arguments.graphs:,} graphs are equal")
    if different:
        print("different: seeds", *different)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
