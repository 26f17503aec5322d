"""Compare cycles of TensorFlow Lite files with Vela's estimates for Arm's Ethos-U NPUs.

    python benchmarks/against_vela.py DIR [--device estimate] [--config NAME] [--only-vela]

Prints three tables for all files DIR/*.tflite: cycles with our memory model `ddr` beside NPUs of
256 MACs per cycle, each with Vela's default system; what memory each of these systems assumes; and
our cycles with all data in a memory of the bandwidth and latency of each. Vela's numbers are its
estimates, ours are simulated by the RTL unless another --device is given. Our cycles exclude what
the host does, which the first table names.

Vela is installed from PyPI into a separate virtual environment in the cache folder.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tables import head, row

from amaranth_vta.hw.config import Config
from amaranth_vta.hw.memory_timing import MemoryTiming
from amaranth_vta.report.host_summary import summary
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.cache import cache_folder
from amaranth_vta.sim.machine.dram import TIMINGS

VELA = "5.2.0"
NPUS = {"U55": "ethos-u55-256", "U65": "ethos-u65-256", "U85": "ethos-u85-256"}
# Files of MLPerf Tiny in the order of its tasks; others follow.
ORDER = ("kws", "vww", "pretrainedResnet", "ad01", "str_ww")
# Bytes of one transfer of the AXI ports, which Vela does not print.
PORT = {"U55": 8, "U65": 16, "U85": 16}


@dataclass(frozen=True)
class Memory:
    """A memory of an NPU's system, in cycles of the NPU: bytes per cycle of all its ports, read
    latency, and the number of reads and writes in flight."""

    bandwidth: Fraction
    latency: int
    reads: int
    writes: int

    def __str__(self) -> str:
        return f"{float(self.bandwidth):g} bytes per cycle, latency {self.latency}"

    def on(self, config: Config) -> tuple[Config, MemoryTiming]:
        """A machine with a bus for this bandwidth, and the timing of the memory. A bus that is
        wider than the bandwidth pauses in a part of the cycles."""
        width = 8
        while width < self.bandwidth:
            width *= 2
        part = self.bandwidth / width
        timing = MemoryTiming(
            latency=self.latency,
            shared=True,
            reads_outstanding=self.reads,
            writes_outstanding=self.writes or self.reads,
            refresh_period=0 if part == 1 else part.denominator,
            refresh_stall=0 if part == 1 else part.denominator - part.numerator,
        )
        return replace(config, log_bus_width=(8 * width).bit_length() - 1), timing


@dataclass(frozen=True)
class Estimate:
    """Vela's numbers for a file on an NPU, and the memories that it assumes, by area."""

    cycles: int
    npu_cycles: int
    clock: float
    system: str
    mode: str
    weights: int
    encoded_weights: int
    memories: dict[str, Memory]


@dataclass(frozen=True)
class Ours:
    """Our cycles for a file, its MACs on the machine and in total, and the host's operators."""

    cycles: int
    macs: int
    share: float
    host: Counter[str]


class Vela:
    """The path of Vela in a separate environment, created at the first use."""

    def __init__(self) -> None:
        self._folder = cache_folder() / f"vela-{VELA}"
        self._vela = self._folder / "bin" / "vela"
        done = self._folder / "installed"
        if not done.exists():
            print(f"installing ethos-u-vela {VELA} in {self._folder}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", "--clear", self._folder], check=True)
            pip = [str(self._folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, f"ethos-u-vela=={VELA}"], check=True)
            done.touch()

    def estimate(self, path: Path, npu: str) -> Estimate:
        with tempfile.TemporaryDirectory() as folder:
            options = ["--accelerator-config", NPUS[npu], "--output-dir", folder]
            subprocess.run([self._vela, *options, path], check=True, capture_output=True)
            (table,) = Path(folder).glob("*_summary_*.csv")
            with table.open(encoding="utf-8") as file:
                (found,) = csv.DictReader(file)
        clock = float(found["core_clock"])
        return Estimate(
            int(found["cycles_total"]),
            int(found["cycles_npu"]),
            clock,
            found["system_config"],
            found["memory_mode"],
            int(found["total_original_weights"]),
            int(found["total_npu_encoded_weights"]),
            dict(self._memories(found["system_config"], npu)),
        )

    def _memories(self, system: str, npu: str) -> Iterator[tuple[str, Memory]]:
        """The memories at the two ports of a system configuration, from Vela's own file."""
        (path,) = self._folder.glob("lib/*/site-packages/ethosu/config_files/Arm/vela.ini")
        parser = ConfigParser()
        parser.read(path)
        items = parser[f"System_Config.{system}"]
        for port in ("axi0_port", "axi1_port"):
            area = items[port]
            ports = int(items.get(f"{area}_ports_used", "1"))
            yield (
                area,
                Memory(
                    Fraction(items[f"{area}_clock_scale"]) * PORT[npu] * ports,
                    int(items[f"{area}_read_latency"]),
                    int(items[f"{area}_max_reads"]) * ports,
                    int(items[f"{area}_max_writes"]) * ports,
                ),
            )


def ours(path: Path, config: Config, device: str, dram: str) -> Ours:
    with Session(path, config, device, dram) as session:
        session.run(random_inputs(session))
        layers, cycles = session.layers, session.cycles
    assert cycles is not None, f"{device} has no clock"
    found = summary(layers)
    host: Counter[str] = Counter(layer.operator for layer in layers if layer.placed_on == "host")
    share = found["share_on_machine"]
    return Ours(cycles, found["macs_on_machine"] + found["macs_on_host"], share or 0.0, host)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--device", default="rtl", help="rtl, or estimate")
    parser.add_argument("--config", default="pynq-extended")
    parser.add_argument("--only-vela", action="store_true", help="skip our own cycles")
    chosen = parser.parse_args()
    paths = sorted(chosen.folder.glob("*.tflite"), key=_place)
    if not paths:
        parser.error(f"{chosen.folder} has no files *.tflite")
    vela, config = Vela(), Config.load(chosen.config)
    estimates = {path: {npu: vela.estimate(path, npu) for npu in NPUS} for path in paths}
    found = {}
    if not chosen.only_vela:
        found = {path: ours(path, config, chosen.device, "ddr") for path in paths}
    print("\n".join(_cycles(estimates, found, chosen.config)))
    print()
    print("\n".join(_systems(estimates[paths[0]])))
    if not chosen.only_vela:
        print()
        for line in _equal_memories(estimates, config, chosen.device):
            print(line, flush=True)
    return 0


def _place(path: Path) -> tuple[int, str]:
    known = (place for place, start in enumerate(ORDER) if path.name.startswith(start))
    return next(known, len(ORDER)), path.name


def _cycles(
    estimates: dict[Path, dict[str, Estimate]], found: dict[Path, Ours], config: str
) -> Iterator[str]:
    yield from head(
        "model", "MACs", f"`{config}`, `ddr`", *NPUS, "weights, for the U55", "on the host"
    )
    for path, npus in estimates.items():
        own = found.get(path)
        cells = ["", "", ""]
        if own is not None:
            host = ", ".join(f"{kind} {count}" for kind, count in own.host.items())
            part = "" if own.share == 1 else f" ({own.share:.2%} on the machine)"
            cells = [f"{own.macs:,}", f"{own.cycles:,}{part}", host]
        cycles = (f"{npus[npu].cycles:,}" for npu in NPUS)
        first = npus["U55"]
        weights = f"{first.weights:,} bytes, encoded {first.encoded_weights:,}"
        yield row(path.stem, *cells[:2], *cycles, weights, cells[2])


def _systems(npus: dict[str, Estimate]) -> Iterator[str]:
    yield from head("NPU", "system, memory mode", "clock", "first memory", "second memory")
    for npu, item in npus.items():
        areas = (f"{area}: {memory}" for area, memory in item.memories.items())
        yield row(NPUS[npu], f"{item.system}, {item.mode}", f"{item.clock / 1e6:g} MHz", *areas)


def _equal_memories(
    estimates: dict[Path, dict[str, Estimate]], config: Config, device: str
) -> Iterator[str]:
    """Our cycles with all data in each of the NPUs' memories."""
    machines = {}
    for npu, item in next(iter(estimates.values())).items():
        for area, memory in item.memories.items():
            name = f"{npu}'s {area}"
            machine, TIMINGS[name] = memory.on(config)
            machines[name] = machine
    yield from head("our cycles with the memory", *machines)
    for path in estimates:
        cycles = (ours(path, machine, device, name).cycles for name, machine in machines.items())
        yield row(path.stem, *(f"{count:,}" for count in cycles))


if __name__ == "__main__":
    sys.exit(main())
