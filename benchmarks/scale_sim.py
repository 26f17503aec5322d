"""Compare counts of events and energies of three layers with SCALE-Sim v3, as in docs/energy.md.

    python benchmarks/scale_sim.py --python VENV/bin/python [--layers NAME ...] [--dataflow ws|os]
                                   [--fixed-bandwidth]

Prints a Markdown table of MACs, cycles, scratchpad accesses, bytes on the bus, and their energies
in 45 nm: of `pynq-extended` on the estimate with memory `ideal`, counted as for `vta run --energy`;
and of SCALE-Sim's array of the same size, with scratchpads of as many values. Weight-stationary is
closest to GEMM: both read each input vector once per block of outputs, and write a partial sum for
each BLOCK_IN products to the accumulators. By default SCALE-Sim never stalls for DRAM; with
``--fixed-bandwidth`` each of its three ports transfers as many bytes per cycle as our bus.

SCALE-Sim fails with NumPy 2.4, so it has a virtual environment of its own. A layer takes minutes:

    python -m venv VENV
    VENV/bin/pip install --no-deps scalesim==3.0.0 "numpy<2.4" tqdm
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tables import head, row

from amaranth_vta.hw.config import PRESETS
from amaranth_vta.hw.tiles import TileMemory
from amaranth_vta.networks.float_network import FloatNetwork, Value
from amaranth_vta.quantize.quantizer import Options, quantize
from amaranth_vta.session import Session, random_inputs
from amaranth_vta.sim.energy.model import energy_by_part
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES
from amaranth_vta.sw.runtime.events import Events

_CONFIG = PRESETS["pynq-extended"]
_TECHNOLOGY = "45nm"


@dataclass(frozen=True)
class Layer:
    """A convolution by square kernels with results of ``size`` pixels; a matrix product has one
    column. ``grow`` builds the layer in a float network.
    """

    size: tuple[int, int]
    kernel: int
    stride: int
    channels: int
    outputs: int
    grow: Callable[[FloatNetwork], Value]

    def topology(self, name: str) -> str:
        """The layer as a row of a topology of SCALE-Sim, which expects a comma at the end."""
        # The pixels that windows cover, padding included: SCALE-Sim also counts partial windows.
        height, width = ((side - 1) * self.stride + self.kernel for side in self.size)
        sizes = (height, width, self.kernel, self.kernel, self.channels, self.outputs, self.stride)
        return ",".join(map(str, (name, *sizes))) + ",\n"


def _conv3x3(net: FloatNetwork) -> Value:
    return net.conv(net.image(64, 56, 56), 64, 3, act="")


def _conv1x1(net: FloatNetwork) -> Value:
    return net.conv(net.image(256, 56, 56), 512, 1, 2, act="")


def _matmul(net: FloatNetwork) -> Value:
    return net.matmul(net.image(128, 768), 768)


LAYERS = {
    "conv3x3": Layer((56, 56), 3, 1, 64, 64, _conv3x3),
    "conv1x1": Layer((28, 28), 1, 2, 256, 512, _conv1x1),
    "matmul": Layer((128, 1), 1, 1, 768, 768, _matmul),
}


@dataclass(frozen=True)
class Counts:
    """Events of a layer that both count. Accesses are in values: 8-bit inputs and weights, and
    32-bit accumulators. ``acc_writes`` are of partial sums; the bus is in bytes.
    """

    macs: int
    cycles: int
    inp_reads: int
    wgt_reads: int
    acc_writes: int
    dram_reads: int
    dram_writes: int

    def energies(self) -> dict[str, float]:
        """The typical energy of the events in microjoules by part, with the energies per event of
        `vta run --energy`. There, a read and a write of a scratchpad have the same energy.
        """
        config = _CONFIG
        accesses: Events = Counter(
            load_inp=self.inp_reads // _values(config.inp),
            load_wgt=self.wgt_reads // _values(config.wgt),
            load_acc=self.acc_writes // _values(config.acc),
            bytes_read=self.dram_reads,
            bytes_written=self.dram_writes,
        )
        found = _energies(accesses)
        products = _energies(Counter(multiply=self.macs // config.macs_per_cycle))
        return {
            "MACs": products["multipliers"] + products["adders"],
            **{part: found[part] for part in ("INP", "WGT", "ACC", "DRAM")},
        }


@dataclass(frozen=True)
class OtherCounts:
    """Accesses that only our machine counts, in values, and the energies of all its events in
    microjoules by part.
    """

    inp_writes: int
    wgt_writes: int
    acc_reads: int
    acc_writes: int
    energies: dict[str, float]


def _values(tile: TileMemory) -> int:
    """Number of values in an element of a scratchpad."""
    return tile.element_bytes * 8 // tile.scalar_width


def _energies(counts: Events) -> dict[str, float]:
    parts = energy_by_part(_CONFIG, TECHNOLOGIES[_TECHNOLOGY], counts)
    return {part: energy.typical / 1e6 for part, energy in parts.items()}


def our_counts(name: str) -> tuple[Counts, OtherCounts]:
    """The events of a layer of `LAYERS` on our machine."""
    net, config = FloatNetwork(name, seed=1), _CONFIG
    model = net.model(LAYERS[name].grow(net))
    shape = [size.dim_value or 1 for size in model.graph.input[0].type.tensor_type.shape.dim]
    sample = np.random.default_rng(1).normal(0, 1, shape).astype(np.float32)
    model = quantize(model, [{"image": sample}], Options(unsigned_activations=True)).model
    with Session(model, config, "estimate", timing_only=True) as session:
        session.run(random_inputs(session))
        [(_, counts)] = session.program.layer_events
        cycles = session.cycles or 0
    inp, wgt, acc = (_values(tile) for tile in (config.inp, config.wgt, config.acc))
    operations = sum(counts[event] for event in counts if event.startswith("alu_"))
    operations -= counts["alu_source"]
    return Counts(
        counts["multiply"] * config.macs_per_cycle,
        cycles,
        counts["multiply"] * inp,
        counts["multiply"] * wgt,
        counts["multiply"] * acc,
        counts["bytes_read"],
        counts["bytes_written"],
    ), OtherCounts(
        counts["load_inp"] * inp,
        counts["load_wgt"] * wgt,
        (counts["accumulate"] + operations + counts["alu_source"] + counts["store"]) * acc,
        (counts["reset"] + operations + counts["load_acc"]) * acc,
        _energies(counts),
    )


_SETTINGS = """\
[general]
run_name = run
[architecture_presets]
ArrayHeight = {config.block_in}
ArrayWidth = {config.block_out}
IfmapSramSzkB = {sizes[0]}
FilterSramSzkB = {sizes[1]}
OfmapSramSzkB = {sizes[2]}
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = {dataflow}
Bandwidth = {config.bus_bytes}
ReadRequestBuffer = 64
WriteRequestBuffer = 64
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = {config.bus_bytes}
IfmapSRAMBankNum = 1
IfmapSRAMBankPort = 1
FilterSRAMBankBandwidth = {config.bus_bytes}
FilterSRAMBankNum = 1
FilterSRAMBankPort = 1
[sparsity]
SparsitySupport = False
[run_presets]
InterfaceBandwidth = {interface}
UseRamulatorTrace = False
"""
# Its command line always writes traces of hundreds of megabytes.
_RUN = """\
import sys
from scalesim.scale_sim import scalesim
settings, topology, layout, results = sys.argv[1:]
run = scalesim(save_disk_space=True, verbose=False, config=settings, topology=topology,
               layout=layout)
run.run_scale(results)
"""


def require_scale_sim(python: str) -> None:
    """Exit with a sentence if ``python`` cannot import SCALE-Sim."""
    call = [python, "-c", "import scalesim.scale_sim"]
    try:
        found = subprocess.run(call, capture_output=True, check=False).returncode == 0
    except OSError:
        found = False
    if not found:
        sys.exit(
            f"{python} has no SCALE-Sim: install scalesim==3.0.0 as --help says and give --python"
        )


def scale_sim_counts(python: str, name: str, dataflow: str, interface: str) -> Counts:
    """The events of a layer of `LAYERS` in SCALE-Sim, whose words have one value each. The
    ``interface`` to DRAM is CALC, which never stalls, or USER, with our bytes per cycle.
    """
    tiles = (_CONFIG.inp, _CONFIG.wgt, _CONFIG.acc)
    sizes = [tile.depth * _values(tile) // 1024 for tile in tiles]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        files = [folder / "settings.cfg", folder / "topology.csv", folder / "layout.csv"]
        settings = _SETTINGS.format(
            config=_CONFIG, sizes=sizes, dataflow=dataflow, interface=interface
        )
        # The first line of a topology and of a layout is skipped.
        texts = (settings, "names\n" + LAYERS[name].topology(name), "names\n")
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        subprocess.run([python, "-c", _RUN, *files, folder], check=True)
        compute, access = (
            _report(folder / "run" / f"{report}_REPORT.csv")
            for report in ("COMPUTE", "DETAILED_ACCESS")
        )
    cycles = compute["Total Cycles"]
    counts = (
        cycles * _CONFIG.macs_per_cycle * compute["Overall Util %"] / 100,
        cycles,
        access["SRAM IFMAP Reads"],
        access["SRAM Filter Reads"],
        access["SRAM OFMAP Writes"],
        access["DRAM IFMAP Reads"] + access["DRAM Filter Reads"],
        access["DRAM OFMAP Writes"],
    )
    return Counts(*map(round, counts))


def _report(file: Path) -> dict[str, float]:
    """The only row of a report of SCALE-Sim, by the heads of its columns."""
    with file.open(newline="") as lines:
        heads, values = csv.reader(lines, skipinitialspace=True)
    return {name: float(value) for name, value in zip(heads, values, strict=True) if name}


_COUNTS = {
    "MACs": "macs",
    "cycles": "cycles",
    "INP reads": "inp_reads",
    "WGT reads": "wgt_reads",
    "ACC writes of partial sums": "acc_writes",
    "DRAM bytes read": "dram_reads",
    "DRAM bytes written": "dram_writes",
}
_OTHERS = {
    "INP writes": "inp_writes",
    "WGT writes": "wgt_writes",
    "ACC reads": "acc_reads",
    "ACC other writes": "acc_writes",
}
_HEADS = ("ours", "SCALE-Sim", "ratio")


def columns(ours: Counts, other: OtherCounts, theirs: Counts) -> dict[str, tuple[str, str, str]]:
    """The cells of a layer below `_HEADS` by row: counts in thousands, energies in microjoules."""
    found = {
        title: _compared(getattr(ours, key) / 1e3, getattr(theirs, key) / 1e3)
        for title, key in _COUNTS.items()
    }
    peak = _CONFIG.macs_per_cycle
    used, used_there = (item.macs / (item.cycles * peak) for item in (ours, theirs))
    found["utilization"] = (f"{used:.1%}", f"{used_there:.1%}", f"{used / used_there:.2f}")
    for title, key in _OTHERS.items():
        found[title] = (f"{getattr(other, key) / 1e3:,.1f}", "", "")
    energies = ours.energies(), theirs.energies()
    for part in energies[0]:
        found[f"µJ, {part}"] = _compared(*(item[part] for item in energies))
    found["µJ, sum of these"] = _compared(*(sum(item.values()) for item in energies))
    found["µJ, all events"] = (f"{sum(other.energies.values()):,.1f}", "", "")
    return found


def _compared(ours: float, theirs: float) -> tuple[str, str, str]:
    return f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs:,.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=sys.executable, help="Python that has SCALE-Sim")
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=list(LAYERS))
    parser.add_argument("--dataflow", choices=("ws", "os"), default="ws")
    parser.add_argument(
        "--fixed-bandwidth",
        dest="interface",
        action="store_const",
        const="USER",
        default="CALC",
        help="the DRAM of SCALE-Sim has the bytes per cycle of our bus, and the array stalls",
    )
    chosen = parser.parse_args()
    require_scale_sim(chosen.python)
    found = {}
    for name in chosen.layers:
        theirs = scale_sim_counts(chosen.python, name, chosen.dataflow, chosen.interface)
        found[name] = columns(*our_counts(name), theirs)
    titles = (f"{name}: {title}" for name in found for title in _HEADS)
    print(*head("thousands, or µJ", *titles), sep="\n")
    for title in found[chosen.layers[0]]:
        print(row(title, *(cell for cells in found.values() for cell in cells[title])))


if __name__ == "__main__":
    main()
