"""Compare the estimated cycles with the RTL's, and the speed of both.

    python benchmarks/estimate_accuracy.py [--networks resnet18 ...] [--dram ddr] [--layers]
                                           [--record tests/golden/streams]

Runs the digits example and whole networks with random weights on the RTL, and replays the same
instruction streams on the device `estimate`. Prints the cycles of both, the error of the worst
layer of at least 10,000 cycles, and the ratio of processor times; that of the estimate is the best
of several replays of all layers on one machine, whose cached analysis of the instructions is warm.
``--layers`` prints every layer; ``--record`` writes the streams and the RTL's cycles for
`tests/sim/estimate`. ResNet-50 takes about a minute, the others less. Exits with 1 if the error
exceeds 0.5 % for a network, 2 % for one of those layers, or 5 % for digits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from amaranth_vta.hw.config import DEFAULT, Config
from amaranth_vta.networks import NETWORKS, generate
from amaranth_vta.session import Session
from amaranth_vta.sim.devices import open_device
from amaranth_vta.sim.estimate.library import Engine
from amaranth_vta.sim.estimate.recorded_stream import RecordedRun, save_streams
from amaranth_vta.sim.machine.dram import memory_timing
from amaranth_vta.sw.runtime.device import Device, RunResult

DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"
MEMORY_BYTES = 96 << 20
REPEATS = 10
# Greatest relative errors: of a whole network, of a layer of at least LONG_LAYER cycles, of digits.
TOLERANCE, LAYER_TOLERANCE, DIGITS_TOLERANCE = 0.005, 0.02, 0.05
LONG_LAYER = 10_000


class Recorder:
    """Forwards calls to ``device``; records its runs and their processor time."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.runs: list[tuple[int, int, RunResult]] = []
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def run(
        self,
        insn_addr: int,
        insn_count: int,
        time_limit: float | None = None,
        watched: Sequence[int] = (),
    ) -> RunResult:
        started = time.process_time()
        result = self.device.run(insn_addr, insn_count, time_limit, watched)
        self.seconds += time.process_time() - started
        self.runs.append((insn_addr, insn_count, result))
        return result


@dataclass(frozen=True)
class Compared:
    """A network on the RTL and on the estimate: cycles of each layer, and the total time in
    seconds.
    """

    name: str
    runs: list[RecordedRun]
    estimated: list[int]
    rtl_seconds: float
    estimate_seconds: float

    @property
    def cycles(self) -> int:
        return sum(run.cycles for run in self.runs)

    @property
    def error(self) -> float:
        return sum(self.estimated) / self.cycles - 1

    @property
    def worst(self) -> float:
        """The largest relative error of a long layer, by magnitude."""
        errors = [
            estimate / run.cycles - 1
            for run, estimate in zip(self.runs, self.estimated, strict=True)
            if run.cycles >= LONG_LAYER
        ]
        return max(errors, key=abs, default=0.0)

    @property
    def is_good(self) -> bool:
        if self.name == "digits":
            return abs(self.error) <= DIGITS_TOLERANCE
        return abs(self.error) <= TOLERANCE and abs(self.worst) <= LAYER_TOLERANCE


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usual = ("resnet18", "resnet50", "mobilenetv2", "digits")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=usual)
    parser.add_argument("--dram", choices=("ideal", "ddr"), default="ddr")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--record", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    config = Config.load(DEFAULT)
    print(_line("", "RTL", "estimate", "error", "worst layer", "RTL s", "estimate s", "ratio"))
    good = True
    for name in arguments.networks:
        compared, memory = compare(name, config, arguments.dram)
        good &= compared.is_good
        if arguments.layers:
            for run, estimate in zip(compared.runs, compared.estimated, strict=True):
                error = f"{estimate / run.cycles - 1:+.3%}"
                print(_line(f"  {run.layer}", f"{run.cycles:,}", f"{estimate:,}", error))
        print(
            _line(
                name,
                f"{compared.cycles:,}",
                f"{sum(compared.estimated):,}",
                f"{compared.error:+.4%}",
                f"{compared.worst:+.3%}",
                f"{compared.rtl_seconds:.2f}",
                f"{compared.estimate_seconds:.4f}",
                f"{compared.rtl_seconds / compared.estimate_seconds:,.0f}",
            ),
            flush=True,
        )
        if arguments.record:
            path = arguments.record / f"{name}-{arguments.dram}.npz"
            save_streams(path, config, arguments.dram, memory, compared.runs)
    return 0 if good else 1


def compare(name: str, config: Config, dram: str) -> tuple[Compared, np.ndarray]:
    """The network on the RTL and the estimate, and the memory that holds its streams."""
    recorder = Recorder(open_device("rtl", config, MEMORY_BYTES, dram=dram))
    with Session(_model(name), config, recorder, launch="layer") as session:
        session.run(_inputs(session))
        layers = [layer for layer in session.layers if layer.cycles is not None]
        memory = recorder.device.read(0, MEMORY_BYTES)
    runs = [
        RecordedRun(layer.name, address, count, result.cycles or 0)
        for layer, (address, count, result) in zip(layers, recorder.runs, strict=True)
    ]
    engine = Engine(config, memory_timing(dram))
    streams = [(run.address, run.count) for run in runs]
    seconds, estimated = [], []
    for _ in range(REPEATS):
        started = time.process_time()
        estimated = [cycles or 0 for cycles in engine.replay_all(memory, streams)]
        seconds.append(time.process_time() - started)
    return Compared(name, runs, estimated, recorder.seconds, min(seconds)), memory


def _model(name: str) -> Path | onnx.ModelProto:
    return DIGITS if name == "digits" else generate(name).model


def _inputs(session: Session) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        name: random.random([size or 1 for size in info.shape]).astype(info.dtype)
        for name, info in session.inputs.items()
    }


def _line(name: str, *columns: str) -> str:
    return f"{name:24}" + "".join(f"{column:>13}" for column in columns)


if __name__ == "__main__":
    sys.exit(main())
