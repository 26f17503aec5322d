"""Figures and measured numbers of the documentation are up to date.

``make figures-check``, a part of ``make nightly``, checks those that take longer.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import amaranth_vta as vta
from amaranth_vta.explore.evaluate import EvaluationTask, evaluate
from amaranth_vta.explore.exploration import Exploration, read_networks
from amaranth_vta.explore.machines import machine_of
from amaranth_vta.explore.search import search_of
from amaranth_vta.explore.spec import load_spec
from docs.drawing import __main__ as drawing
from docs.drawing.exploration import SPEC, described
from docs.drawing.svg import FIGURES, sources

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DIGITS = ROOT / "examples" / "digits"
# Figures that need no simulation.
QUICK = ("blocks", "bitfields", "pipeline")


@pytest.fixture
def benchmark_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that benchmarks/networks.py defines."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return runpy.run_path(str(ROOT / "benchmarks" / "networks.py"))


@pytest.mark.parametrize("name", QUICK)
def test_figures_are_as_they_are_drawn(name: str) -> None:
    drawn = [item for figure, draw in drawing.FIGURES[name]() for item in sources(figure, draw)]
    assert drawn
    for path, source in drawn:
        assert path.read_text(encoding="utf-8") == source, f"python -m docs.drawing {name}"


def test_a_stale_figure_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("docs.drawing.svg.FIGURES", tmp_path)
    assert drawing.main(["blocks"]) == 0
    assert drawing.main(["--check", "blocks"]) == 0
    path = tmp_path / "blocks-dark.svg"
    path.write_text(path.read_text().replace("GEMM", "GEMN"))
    assert drawing.main(["--check", "blocks"]) == 1
    assert "blocks-dark.svg" in capsys.readouterr().out


def test_the_figure_of_an_exploration_has_todays_areas_and_the_cycles_of_both_ends() -> None:
    """`make figures-check` compares the cycles of the machines in between."""
    text = (FIGURES / "exploration.svg").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<title>([^<]*): ([\d,]+ cycles, [\d,]+ LUTs)</title>", text))
    spec = load_spec(str(SPEC))
    exploration = Exploration(spec, read_networks(spec))
    machines = [machine_of(spec, values) for values in search_of(spec).ask(100)]
    assert {described(machine) for machine in machines} == set(shown)
    for machine in machines:
        assert machine.area is not None
        assert shown[described(machine)].endswith(f" {machine.area.lut:,.0f} LUTs")
    ((name, digest),) = exploration.digests.items()
    for end in ("4×4, 64-bit bus", "16×16, 128-bit bus"):
        (machine,) = (item for item in machines if described(item) == end)
        assert machine.config is not None
        task = EvaluationTask(digest, machine.config.to_json(), "ddr")
        cost = evaluate(task, exploration.networks[name])
        assert shown[end].startswith(f"{cost.cycles:,} cycles"), (
            "python -m docs.drawing exploration"
        )


@pytest.mark.parametrize("name", ["digits", "mlp"])
def test_networks_take_the_cycles_of_the_page(name: str, benchmark_names: dict[str, Any]) -> None:
    config = vta.PRESETS["pynq-extended"]
    measured = benchmark_names["measure_network"](name, config, vta.RunOptions("estimate", "ddr"))
    cells = benchmark_names["Row"](name, measured).cells(config.macs_per_cycle)
    page = (DOCS / "networks.md").read_text(encoding="utf-8")
    assert benchmark_names["row"](*cells) in page, "python benchmarks/networks.py"


def test_eight_images_of_the_digits_take_the_cycles_of_the_page() -> None:
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    said = re.findall(r"take ([\d,]+) cycles on `ideal`.*and ([\d,]+) with `--dram ddr`", page)
    (bound,) = re.findall(r"bound of the launch is ([\d,]+) cycles on both", page)
    with np.load(DIGITS / "images.npz") as file:
        images = file["image"][:8]
    found = []
    for dram in ("ideal", "ddr"):
        with vta.Session(DIGITS / "digits.onnx", device="rtl", images=8, dram=dram) as session:
            session.run({"image": images})
            found.append(f"{session.cycles:,}")
            assert f"{session.report()['bound_cycles']:,}" == bound
    assert said == [tuple(found)]
