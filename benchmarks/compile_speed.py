"""How long networks take to compile, and how that grows with their size.

    python benchmarks/compile_speed.py [--config pynq-extended] [--nodes 500 1000 2000 4000]

Residual networks of small layers, so that the graph is what takes time, without and with operators
of the host between the layers. Processor time of one process, warm: a small network is compiled
first. The last column is the time per node, relative to the smallest network of its kind: 1.0 all
the way down is linear. Then ResNet-18.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import onnx

from amaranth_vta import compile
from amaranth_vta.bench.networks import QuantizedNetwork, resnet18


def network(nodes: int, on_host: bool) -> onnx.ModelProto:
    """A residual network of about ``nodes`` operators; ``on_host`` puts one into each block that
    the machine does not have."""
    result = QuantizedNetwork(1, "qdq", np.int8, (16, 8, 8))
    while len(result.nodes) < nodes:
        branch, deviation = result.dequantized(), result.deviation
        result.convolution(16, (3, 3), (1, 1), (1, 1, 1, 1), relu=True)
        result.convolution(16, (3, 3), (1, 1), (1, 1, 1, 1), relu=False)
        result.add(branch, deviation, relu=True)
        # Values would grow from block to block beyond all scales.
        result.deviation = 1.0
        if on_host:
            result.in_float("HardSigmoid", result.dequantized(), relu=False)
    return result.model()


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def compile_networks(config: str, sizes: list[int]) -> None:
    print(f"{'kind':16} {'nodes':>6} {'seconds':>8} {'ms/node':>8} {'growth':>7}")
    for kind, on_host in (("machine alone", False), ("machine and host", True)):
        first = 0.0
        for size in sizes:
            model = network(size, on_host)
            count = len(model.graph.node)
            took = seconds(lambda model=model: compile(model, config))
            first = first or took / count
            growth = took / count / first
            print(f"{kind:16} {count:6} {took:8.2f} {1000 * took / count:8.2f} {growth:7.2f}")


def compile_resnet18(config: str) -> None:
    data = resnet18().model().SerializeToString()
    print(f"ResNet-18 compiled: {seconds(lambda: compile(data, config)):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="pynq-extended")
    parser.add_argument("--nodes", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    options = parser.parse_args()
    compile(network(50, on_host=True), options.config)
    compile_networks(options.config, options.nodes)
    compile_resnet18(options.config)


if __name__ == "__main__":
    main()
