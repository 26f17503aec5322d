"""How an exploration scales with its workers: with real workers, and with 64 that only sleep.

    python benchmarks/exploration_scaling.py [--workers 1 2 4] [--seconds 1.0] [--resnet18]

The first table evaluates points of the handwritten digits on each number of processes, without
cached results; compare the speedup over the first row with the number of cores. In the second
table, the 64 workers of a real scheduler are threads that sleep instead of computing, which shows
the overhead of scheduler and search. A batch as large as the number of workers waits for its
slowest point; a smaller one leaves workers idle. ``ideal`` is a scheduler without overhead.
``--resnet18`` measures only the 200 points of examples/exploration/resnet18.toml, with a cold cache
and one process per core. Needs the extra ``explore``.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import distributed

from amaranth_vta.explore.evaluate import EvaluationTask, evaluate
from amaranth_vta.explore.workers import Workers
from amaranth_vta.hw.config import PRESETS, Config

EXAMPLES = Path(__file__).parent.parent / "examples"
DIGITS = EXAMPLES / "digits/digits.onnx"
RESNET18 = EXAMPLES / "exploration/resnet18.toml"
SIMULATED, POINTS = 64, 512
# Points of one network take different times: a small machine needs more instructions.
SPREAD = (0.5, 1.5)


def machines() -> list[Config]:
    """Distinct machines with about the same compile time."""
    base = PRESETS["tiny-extended"].to_dict()
    changes = [
        {"LOG_BUS_WIDTH": bus, "LOG_WGT_BUFF_SIZE": weights, "OVERLAP": overlap, "LOOKUP": 0}
        for bus in (6, 7, 8)
        for weights in (11, 12, 13, 14)
        for overlap in (0, 1)
    ]
    return [Config.from_dict({**base, **change}) for change in changes]


def computed(workers: int) -> float:
    """Points per second of ``workers`` processes, excluding their startup."""
    model, tasks = DIGITS.read_bytes(), machines()
    with tempfile.TemporaryDirectory() as cache:
        (Path(cache) / "estimate").symlink_to(_cache() / "estimate")
        os.environ["VTA_CACHE"] = cache
        try:
            with Workers(workers, None) as pool:
                pool.share({"digits": model})
                # Each worker imports the compiler first.
                list(pool.run(evaluate, [(_task(tasks[0], n), "digits") for n in range(workers)]))
                started = time.monotonic()
                list(pool.run(evaluate, [(_task(task, -1), "digits") for task in tasks[1:]]))
                return (len(tasks) - 1) / (time.monotonic() - started)
        finally:
            del os.environ["VTA_CACHE"]


def _task(config: Config, number: int) -> EvaluationTask:
    return EvaluationTask(f"digits {number}", config.to_json(), "ddr")


def _cache() -> Path:
    from amaranth_vta.sim.cache import cache_folder
    from amaranth_vta.sim.estimate.library import library

    library()
    return cache_folder()


def delays(seconds: float) -> list[float]:
    """The durations of simulated points, ``seconds`` on average."""
    dice = random.Random(0)
    return [seconds * dice.uniform(*SPREAD) for _ in range(POINTS)]


def ideal(batch: int, waits: Sequence[float]) -> float:
    """The average utilization of 64 workers if only points take time."""
    now = 0.0
    for first in range(0, len(waits), batch):
        free = [now] * SIMULATED
        for wait in waits[first : first + batch]:
            heapq.heapreplace(free, free[0] + wait)
        now = max(free)
    return sum(waits) / now / SIMULATED


def simulated(batch: int, waits: Sequence[float]) -> float:
    """The average utilization of 64 sleeping threads under a real scheduler."""
    cluster = distributed.LocalCluster(
        n_workers=SIMULATED, threads_per_worker=1, processes=False, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        client.gather(client.map(time.sleep, [0.01] * SIMULATED, pure=False))
        started = time.monotonic()
        for first in range(0, len(waits), batch):
            client.gather(client.map(time.sleep, waits[first : first + batch], pure=False))
        return sum(waits) / (time.monotonic() - started) / SIMULATED


def whole() -> None:
    """Prints how long the exploration of ResNet-18 takes, with imports and the search."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cache").mkdir()
        (Path(folder) / "cache" / "estimate").symlink_to(_cache() / "estimate")
        command = [sys.executable, "-m", "amaranth_vta", "explore", str(RESNET18), "-o", "out"]
        environment = {**os.environ, "VTA_CACHE": f"{folder}/cache"}
        started, before = time.monotonic(), os.times()
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds, after = time.monotonic() - started, os.times()
    spent = sum(after[2:4]) - sum(before[2:4])
    print(f"200 points of ResNet-18 in {seconds:.0f} s on {os.cpu_count()} cores, of which they "
          f"used {spent:.0f} s")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=1.0, help="mean of a simulated point (1)")
    parser.add_argument("--resnet18", action="store_true", help="only 200 points of ResNet-18")
    arguments = parser.parse_args()
    if arguments.resnet18:
        whole()
        return
    print(f"{'workers':>8}{'points/s':>10}{'ratio':>8}   on {os.cpu_count()} cores")
    rates = [computed(workers) for workers in arguments.workers]
    for workers, rate in zip(arguments.workers, rates, strict=True):
        print(f"{workers:>8}{rate:>10.2f}{rate / rates[0]:>8.2f}")
    print(f"\n{'batch':>8}{'busy':>8}{'ideal':>8}   of {SIMULATED} workers that sleep")
    waits = delays(arguments.seconds)
    for batch in (24, 64, 128, 512):
        print(f"{batch:>8}{simulated(batch, waits):>8.0%}{ideal(batch, waits):>8.0%}")


if __name__ == "__main__":
    main()
