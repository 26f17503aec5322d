"""Tunes the knobs of schedules with estimated cycles, layer by layer: ``vta tune``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from amaranth_vta.hw.config import Config
from amaranth_vta.session.compilation import open_network
from amaranth_vta.sim.devices import close_device, open_device
from amaranth_vta.sw.compiler.build import BuildError, Function
from amaranth_vta.sw.compiler.environment import Environment
from amaranth_vta.sw.compiler.graph.plan.placement import place
from amaranth_vta.sw.compiler.tuner.records import Record, Records, knobs_from, workload_name
from amaranth_vta.sw.compiler.tuner.workload import choose, tuned
from amaranth_vta.sw.runtime.runtime import Runtime

from .workers import Workers

_SPARE_BYTES = 1 << 20


@dataclass(frozen=True)
class TuningTask:
    """A workload to tune with its ``candidates`` most promising knobs."""

    workload: Any
    config: Config
    memory: str
    candidates: int


@dataclass(frozen=True)
class Tried:
    """The result of a `TuningTask`: cycles of the compiler's choice, of the best and of the worst
    candidate; the knobs of the best; the number of candidates tried, and of candidates refused by
    the compiler.
    """

    default_cycles: int
    cycles: int
    worst_cycles: int
    knobs: Mapping[str, int | Sequence[int]]
    tried: int
    refused: int


def workloads_of(
    model: bytes, config: Config, images: int | None, allow_rounding: bool = False
) -> list[Any]:
    """The distinct workloads of the layers on the machine, in order; the options are those of
    `compile`.
    """
    found: dict[Any, None] = {}

    def note(workload: Any, _: Config) -> None:
        found[workload] = None

    network, _ = open_network(model, images or config.batch, allow_rounding)
    with knobs_from(note):
        place(network, config)
    return list(found)


def tune_layer(layer: TuningTask, _: bytes) -> Tried:
    """Builds and estimates the candidates; raises `NoScheduleFits` if none can be built."""
    environment, refused = Environment(layer.config), 0
    cycles: list[tuple[int, Any]] = []
    for knobs in islice(choose(layer.workload, layer.config).ranked, layer.candidates):
        try:
            function = tuned(layer.workload, environment, knobs, "layer")
        except BuildError:
            refused += 1
            continue
        cycles.append((estimated(function, layer.config, layer.memory), knobs))
    if not cycles:
        # Falls back to the compiler's choice, which tries more knobs until one fits.
        function = tuned(layer.workload, environment, None, "layer")
        own = estimated(function, layer.config, layer.memory)
        return Tried(own, own, own, {}, refused, refused)
    best = min(cycles, key=lambda item: item[0])
    worst = max(number for number, _ in cycles)
    tried = len(cycles) + refused
    return Tried(cycles[0][0], best[0], worst, asdict(best[1]), tried, refused)


def estimated(function: Function, config: Config, memory: str) -> int:
    """The estimated cycles of a function with a ``memory``, for any data."""
    sizes = [function.nbytes(index) for index in range(len(function.args))]
    device = open_device(
        "estimate",
        config,
        _SPARE_BYTES + sum(size + 64 for size in sizes),
        dram=memory,
        timing_only=True,
    )
    try:
        runtime = Runtime(device)
        buffers = [runtime.allocate(size, str(n)) for n, size in enumerate(sizes)]
        function.run_on(runtime, *buffers)
        return runtime.synchronize().cycles or 0
    finally:
        close_device(device)


def tune(
    workloads: list[Any], config: Config, memory: str, candidates: int, workers: Workers
) -> Iterator[tuple[int, Tried | str]]:
    """The number of each workload and its result, or an error message, in order of completion."""
    workers.share({"nothing": b""})
    layers = [
        (TuningTask(workload, config, memory, candidates), "nothing") for workload in workloads
    ]
    for number, outcome in workers.run(tune_layer, layers):
        yield number, outcome.result or outcome.error


def records_of(
    found: Mapping[int, Tried], workloads: list[Any], config: Config, memory: str
) -> Records:
    """Records of all knobs that beat the compiler's choice."""
    records = Records()
    for number, tried in sorted(found.items()):
        if tried.cycles < tried.default_cycles:
            name = workload_name(workloads[number])
            records.add(
                Record(name, config, tried.knobs, tried.cycles, tried.default_cycles, memory)
            )
    return records
