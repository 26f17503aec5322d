"""Measure the compile time of networks, and how it grows with their size.

    python benchmarks/compile_speed.py [--config pynq-extended] [--nodes 500 1000 2000 4000]
                                       [--networks mobilenetv2 resnet50 …]

Compiles residual networks of small layers, so that work on the graph dominates, with and without
host operators between the layers. Times are processor time of one process, measured after a small
network has been compiled to warm up. The last column is the time per node relative to the smallest
network of its kind: 1.0 in every row means linear growth. Then compiles networks of the generators,
and ResNet-18 with a cold and a warm cache, and prints the exclusive time of each compilation phase.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from amaranth_vta import compile
from amaranth_vta.networks import generate
from amaranth_vta.session import compilation
from amaranth_vta.sw.compiler.graph.plan import compiled_network
from amaranth_vta.sw.compiler.tuner import workload
from tests.support.random_networks import QuantizedNetwork

NETWORKS = ["mobilenetv2", "resnet50", "bert-tiny", "yolo", "inception"]


def network(nodes: int, on_host: bool) -> onnx.ModelProto:
    """A residual network of about ``nodes`` operators; with ``on_host``, each block contains a host
    operator."""
    result = QuantizedNetwork(1, "qdq", np.int8, (16, 8, 8))
    while len(result.nodes) < nodes:
        branch, deviation = result.dequantized(), result.deviation
        result.convolution(16, (3, 3), (1, 1), (1, 1, 1, 1), relu=True)
        result.convolution(16, (3, 3), (1, 1), (1, 1, 1, 1), relu=False)
        result.add(branch, deviation, relu=True)
        # Values would grow from block to block beyond the range of any scale.
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
            took = seconds(partial(compile, model, config))
            first = first or took / count
            growth = took / count / first
            print(f"{kind:16} {count:6} {took:8.2f} {1000 * took / count:8.2f} {growth:7.2f}")


def compile_generated(config: str, names: list[str]) -> None:
    total = 0.0
    for name in names:
        model = generate(name).model
        took = seconds(partial(compile, model, config))
        total += took
        print(f"{name}: {took:.2f} s")
    print(f"all: {total:.2f} s")


class Phases:
    """Processor time by phase, measured by wrapping the functions that begin the phases."""

    FUNCTIONS: ClassVar[dict[str, tuple[ModuleType, str]]] = {
        "load": (compilation, "load_network"),
        "canonical": (compilation, "canonical"),
        "place": (compiled_network, "place"),
        "choose": (workload, "choose"),
        "lower": (workload, "build"),
        "record": (compiled_network, "_record"),
    }

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(self.FUNCTIONS, 0.0)
        self._running: list[str] = []
        self._since = 0.0
        for phase, (module, name) in self.FUNCTIONS.items():
            setattr(module, name, self._timed(phase, getattr(module, name)))

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._account()
            self._running.append(phase)
            try:
                return function(*args, **kwargs)
            finally:
                self._account()
                self._running.pop()

        return timed

    def _account(self) -> None:
        """Adds the time since the last call to the innermost phase."""
        now = time.process_time()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def compile_resnet18(config: str, cache: Path) -> None:
    """ResNet-18 by `compile` and by ``vta run``, each with and without an entry of the cache."""
    path = cache / "resnet18.onnx"
    path.write_bytes(generate("resnet18").model.SerializeToString())
    command = [sys.executable, "-m", "amaranth_vta", "run", str(path), "--config", config]
    child_seconds(command)  # which builds the functional model
    phases = Phases()
    for what, work in (
        ("compile", lambda: seconds(lambda: compile(path, config))),
        ("vta run", lambda: child_seconds(command)),
    ):
        shutil.rmtree(cache / "networks")
        compiled, kept = work(), min(work() for _ in range(3))
        print(f"ResNet-18, {what}: {compiled:.2f} s, from the cache {kept:.3f} s")
    print("  ".join(f"{phase} {took:.2f} s" for phase, took in phases.seconds.items()))


def child_seconds(command: list[str]) -> float:
    """Processor time of a command."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def measure(config: str, nodes: list[int], names: list[str], cache: Path) -> None:
    compile(network(50, on_host=True), config)
    compile_networks(config, nodes)
    compile_generated(config, names)
    compile_resnet18(config, cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="pynq-extended")
    parser.add_argument("--nodes", type=int, nargs="*", default=[500, 1000, 2000, 4000])
    parser.add_argument("--networks", nargs="*", default=NETWORKS, metavar="NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VTA_CACHE"] = folder
        measure(options.config, options.nodes, options.networks, Path(folder))


if __name__ == "__main__":
    main()
