"""``benchmarks/scale_sim.py`` counts events of both machines by the same definitions."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Writes reports in SCALE-Sim's format, with the number of filters of the topology.
SCALE_SIM = """\
from configparser import ConfigParser
from pathlib import Path

def scalesim(save_disk_space, verbose, config, topology, layout):
    return Run(config, topology)

class Run:
    def __init__(self, config, topology):
        self.settings = ConfigParser()
        self.settings.read(config)
        self.filters = Path(topology).read_text().splitlines()[1].split(",")[6]

    def run_scale(self, folder):
        folder = Path(folder) / self.settings.get("general", "run_name")
        folder.mkdir()
        array = self.settings["architecture_presets"]
        sizes = ", ".join(array[f"{name}SramSzkB"] for name in ("Ifmap", "Filter", "Ofmap"))
        (folder / "COMPUTE_REPORT.csv").write_text(
            "LayerID, Total Cycles, Overall Util %,\\n0, 8.0, 25.0,\\n"
        )
        (folder / "DETAILED_ACCESS_REPORT.csv").write_text(
            "SRAM IFMAP Reads, SRAM Filter Reads, SRAM OFMAP Writes, "
            "DRAM IFMAP Reads, DRAM Filter Reads, DRAM OFMAP Writes,\\n"
            f"{sizes}, 100, {array['Bandwidth']}, {self.filters},\\n"
        )
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scale_sim")


@pytest.mark.parametrize(
    ("name", "pixels", "depth", "outputs"),
    [("conv3x3", 56 * 56, 9 * 64, 64), ("conv1x1", 28 * 28, 256, 512), ("matmul", 128, 768, 768)],
)
def test_our_counts_of_products_equal_the_closed_form(
    benchmark: Any, name: str, pixels: int, depth: int, outputs: int
) -> None:
    counts, _ = benchmark.our_counts(name)
    assert counts.macs == counts.wgt_reads == pixels * depth * outputs
    assert counts.inp_reads == pixels * depth * outputs // 16
    assert counts.acc_writes == pixels * outputs * depth // 16
    assert 1 < counts.cycles / (counts.macs / 256) < 1.1


def test_images_for_scale_sim_have_only_whole_windows(benchmark: Any) -> None:
    rows = [layer.topology(name) for name, layer in benchmark.LAYERS.items()]
    assert rows == [
        "conv3x3,58,58,3,3,64,64,1,\n",
        "conv1x1,55,55,1,1,256,512,2,\n",
        "matmul,128,1,1,1,768,768,1,\n",
    ]


@pytest.mark.parametrize("name", ["conv3x3", "conv1x1", "matmul"])
def test_energies_of_all_accesses_add_up(benchmark: Any, name: str) -> None:
    counts, other = benchmark.our_counts(name)
    everything = benchmark.Counts(
        counts.macs,
        counts.cycles,
        counts.inp_reads + other.inp_writes,
        counts.wgt_reads + other.wgt_writes,
        counts.acc_writes + other.acc_reads + other.acc_writes,
        counts.dram_reads,
        counts.dram_writes,
    ).energies()
    parts = dict(other.energies)
    parts["MACs"] = parts["multipliers"] + parts["adders"]
    assert everything == pytest.approx({part: parts[part] for part in everything})


def test_settings_and_reports_are_those_of_scale_sim(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "scalesim"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "scale_sim.py").write_text(SCALE_SIM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    benchmark.require_scale_sim(sys.executable)
    found = benchmark.scale_sim_counts(sys.executable, "conv1x1", "ws", "USER")
    assert found == benchmark.Counts(2 * 256, 8, 32, 256, 32, 108, 512)


def test_a_missing_scale_sim_is_one_sentence(tmp_path: Path) -> None:
    call = [sys.executable, str(BENCHMARKS / "scale_sim.py"), "--python", str(tmp_path / "none")]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "install scalesim==3.0.0" in done.stderr
