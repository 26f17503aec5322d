"""Tables fit a terminal, and their totals are the sums of their rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from amaranth_vta.report.cycles_table import cycles_table
from amaranth_vta.report.energy_table import energy_table
from amaranth_vta.report.layer_table import OVERLAP, layer_table
from amaranth_vta.report.text_table import counted, text_table
from amaranth_vta.session import LaunchReport, LayerReport, Session
from amaranth_vta.sim.energy.energies import Energy
from amaranth_vta.sim.energy.model import PARTS
from amaranth_vta.sim.energy.network_energy import LayerEnergy, NetworkEnergy, OpenedPages
from amaranth_vta.sim.energy.technologies import TECHNOLOGIES
from amaranth_vta.sw.runtime.counters import Spent

DIGITS = Path(__file__).parents[2] / "examples/digits"


def test_one_of_a_thing_is_singular() -> None:
    texts = [counted(count, "layer") for count in (0, 1, 1024)]
    assert texts == ["0 layers", "1 layer", "1,024 layers"]


def on_machine(name: str, cycles: int | None = 400, runs: int = 1) -> LayerReport:
    cycles = cycles and cycles * runs
    used = 1600 * runs / cycles / 16 if cycles else None
    return LayerReport(
        name, "QLinearConv", "machine", "", 1600, 1600 * runs, cycles, 300 * runs, used, 0, 0,
        runs, {},
    )  # fmt: skip


def launch(layers: int, cycles: int | None, bound: int, runs: int = 1) -> LaunchReport:
    return LaunchReport("launch", layers, runs, cycles and cycles * runs, bound * runs)


def on_host(name: str, operator: str, reason: str) -> LayerReport:
    return LayerReport(name, operator, "host", reason, 0, 0, None, 0, None, 0, 0, 1, {})


def test_columns_are_as_wide_as_they_come_without_a_limit() -> None:
    table = text_table(("name", "two\nlines"), [("a" * 90, "1"), ("b", "1,000")])
    assert [len(line) for line in table.splitlines()] == [80, 80, 80, 80, 80]
    whole = text_table(("name", "two\nlines"), [("a" * 90, "1"), ("b", "1,000")], width=None)
    assert "a" * 90 in whole
    assert whole.splitlines()[:2] == [" " * 94 + "two", "name" + " " * 88 + "lines"]


def test_text_is_cut_in_the_middle_and_numbers_never() -> None:
    rows = [("/layer1/layer1.0/conv1/Conv_quant", "1,814,073,344")]
    assert "/layer1…nv1/Conv_quant  1,814,073,344" in text_table(("", "MACs"), rows, width=37)
    assert "1,814,073,344" in text_table(("", "MACs"), rows, width=5)


def test_columns_without_room_follow_below_with_the_first_one_again() -> None:
    heads, rows = ("name", "two", "three", "four"), [("conv", "1,234,567", "2", "1,234,568")]
    total = ("all", "7", "8", "9")
    tables = text_table(heads, rows, total, width=24).split("\n\n")
    assert [[line.split() for line in table.splitlines()] for table in tables] == [
        [list(heads[:3]), ["─" * 22], ["conv", "1,234,567", "2"], ["─" * 22], ["all", "7", "8"]],
        [["name", "four"], ["─" * 15], ["conv", "1,234,568"], ["─" * 15], ["all", "9"]],
    ]
    assert max(map(len, "\n".join(tables).splitlines())) <= 24
    assert "\n\n" not in text_table(heads, rows, total, width=33)


def test_each_layer_is_a_line_of_at_most_80_columns() -> None:
    layers = [
        on_machine("/model.22/cv3.0/cv3.0.0/conv/Conv_output_0_quantized", 123_456_789),
        on_host("x" * 60, "DequantizeLinear", "a reason that is long, " * 6),
    ]
    for line in layer_table(layers, [launch(1, 123_456_789, 300)], 16, 1).splitlines():
        assert len(line) <= 80


def test_the_total_is_the_sum_of_the_rows_and_says_what_it_is_per() -> None:
    layers = [on_machine("a", 400, 3), on_machine("b", 300, 3)]
    text = layer_table(layers, [launch(1, 400, 300, 3), launch(1, 300, 300, 3)], 16, 8)
    lines = text.splitlines()
    assert lines[0] == "Per run of 8 images, on average over 3 runs"
    assert lines[-1].split() == ["all", "3,200", "700", "85.7%", "28.6%"]
    assert lines[3].split()[2:] == ["1,600", "400", "75.0%", "25.0%"]


def test_layers_that_overlap_have_no_bound_and_their_launch_has_one() -> None:
    layers = [replace(on_machine(name, cycles), bound_cycles=None) for name, cycles in
              (("a", 900), ("b", 100))]  # fmt: skip
    text = layer_table(layers, [launch(2, 1000, 800)], 16, 1)
    lines = text.splitlines()
    assert lines[3].split() == ["a", "QLinearConv", "1,600", "900", "11.1%"]
    assert lines[6].split() == ["all", "3,200", "1,000", "80.0%", "20.0%"]
    assert " ".join(lines[7:]) == OVERLAP


def test_of_a_device_that_times_launches_alone_the_total_is_known() -> None:
    layers = [replace(on_machine(name, None), bound_cycles=None) for name in "ab"]
    lines = layer_table(layers, [launch(2, 1000, 800)], 16, 1).splitlines()
    assert lines[3].split() == ["a", "QLinearConv", "1,600"]
    assert lines[6].split() == ["all", "3,200", "1,000", "80.0%", "20.0%"]


def test_without_a_clock_there_are_no_cycles() -> None:
    lines = layer_table([on_machine("a", None)], [launch(1, None, 300)], 16, 1).splitlines()
    assert lines[0] == "Per image"
    assert lines[1].split() == ["layer", "operator", "MACs"]


def test_a_long_part_on_the_host_is_one_line_with_a_count_by_reason() -> None:
    names = [f"h{number}" for number in range(5)]
    layers = [on_machine("a"), *(on_host(name, "Neg", "no Neg here") for name in names)]
    layers += [on_host("last", "Softmax", "floats")]
    launches = [launch(1, 400, 300)]
    text = layer_table(layers, launches, 16, 1)
    assert "h3" not in text
    assert "6 operators  Neg 5, Softmax 1   host" in text
    assert text.splitlines()[-3:] == [
        "On the host, with 0.0% of the MACs:",
        "    5  no Neg here",
        "    1  floats",
    ]
    explained = layer_table(layers, launches, 16, 1, explain=True)
    assert all(name in explained for name in names)


def test_where_the_cycles_went_fits_a_terminal() -> None:
    counters = dict.fromkeys(
        ("alu_busy", "compute_load_busy", "compute_waits_for_store", "store_busy"), 0
    )
    counters |= {"cycles": 12_345_678, "gemm_busy": 12_345_678, "load_busy": 99}
    counters |= {"compute_waits_for_load": 1, "load_and_gemm_busy": 33}
    lines = cycles_table([Spent("Conv " + "x" * 50, counters)] * 2, "per image").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Where the cycles went, per image"
    assert lines[4].split()[1:] == ["12,345,678", "100%", "0%", "0%", "33%"]


@pytest.mark.parametrize("images", [None, 3])
def test_numbers_of_a_session_are_per_run_of_its_images(images: int | None) -> None:
    with np.load(DIGITS / "images.npz") as file:
        x = file["image"][:6]
    with Session(DIGITS / "digits.onnx", "tiny", images=images) as session:
        session.run({"image": x})
        report, text = session.report(), session.plan_table()
    together = images or 1
    assert report["images_per_run"] == together
    assert report["runs"] == 6 // together
    (total,) = (line for line in text.splitlines() if line.startswith("all "))
    assert int(total.split()[1].replace(",", "")) * report["runs"] == report["macs"]


def test_a_machine_without_counters_says_that_they_are_missing() -> None:
    table = cycles_table([Spent("layer", {"cycles": 400})], "per run")
    assert "no counters (COUNTERS = 0)" in table
    assert "--device estimate" in table


def test_an_energy_table_has_the_same_total_by_layer_and_by_part_and_says_what_it_is() -> None:
    parts = {part: Energy(5e5, 1e6, 3e6) for part in PARTS}
    layers = tuple(LayerEnergy(name, parts, OpenedPages(1500, 4000)) for name in ("conv", "gemm"))
    text = energy_table(NetworkEnergy(TECHNOLOGIES["7nm"], 2, layers))
    assert text.startswith("Energy per run of 2 images in µJ, estimated for 7nm\n")
    lines = [line.split() for line in text.splitlines()]
    assert lines.count(["all", "16.000", "8.000", "48.000"]) == 2
    assert ["gemm", "8.000", "4.000", "24.000"] in lines
    assert ["DRAM", "2.000", "1.000", "6.000"] in lines
    assert "DRAM pages of 2 KiB opened: 3,000 to 8,000; their energy is included in" in text
    assert "excludes" in text
    assert "TPUv4i" in text
    fpga = energy_table(NetworkEnergy(TECHNOLOGIES["ecp5"], 2, layers), width=200)
    assert "their energy is charged apart from that of bytes" in fpga
    assert max(map(len, text.splitlines())) <= 80
