"""``vta bench``: printed output, files, and the report of a wrong result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amaranth_vta.cli import invoke
from amaranth_vta.cli.measurements.bench import _row
from amaranth_vta.hw.config import PRESETS
from amaranth_vta.measurements import layers, rates
from amaranth_vta.measurements.layer_data import layer_data
from amaranth_vta.measurements.resnet18 import LayerRow, rows
from amaranth_vta.networks import MLPERF_TINY, NETWORKS, generate_tiny
from amaranth_vta.sim.devices import RunOptions


@pytest.mark.parametrize("name", rates.KINDS)
@pytest.mark.parametrize("config", ["tiny", "tiny-extended", "batch2"])
def test_rates_are_measured_on_any_configuration(
    name: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["bench", name, "--config", config, "--device", "functional", "--json", str(out)]
    assert invoke(arguments) == 0
    report = json.loads(out.read_text())
    assert report["mismatches"] == 0
    assert report["cycles"] is None
    assert report["fault"] is None
    assert all(layer["operator"] == name for layer in report["layers"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(report["layers"])


def one_layer(config: str) -> LayerRow:
    return next(row for row in rows(PRESETS[config]) if row.name == "1x1 s2 64-128")


@pytest.mark.parametrize("config", [name for name in PRESETS if name != "pynq-extended"])
def test_a_layer_runs_on_any_configuration(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = one_layer(config)
    # Searching schedules for small scratchpads takes longer.
    row = replace(row, workload=replace(row.workload, height=8, width=8))
    monkeypatch.setattr(layers, "rows", lambda _: [row])
    arguments = ["bench", "resnet18-layers", "--device", "functional", "--config", config]
    assert invoke(arguments) == 0
    assert "Conv 1x1 s2 64-128" in capsys.readouterr().out
    assert invoke([*arguments, "--schedules", "by-hand"]) == 2
    assert "schedules written by hand exist only for pynq-extended" in capsys.readouterr().err


def test_a_layer_is_compared_with_numpy_and_with_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = one_layer("pynq-extended")
    monkeypatch.setattr(layers, "rows", lambda _: [row])
    assert invoke(["bench", "resnet18-layers", "--device", "functional"]) == 0
    assert "Conv 1x1 s2 64-128" in capsys.readouterr().out
    data = layer_data

    def wrong(*arguments: Any) -> Any:
        *inputs, expected = data(*arguments)
        return (*inputs, expected ^ 1)

    monkeypatch.setattr(layers, "layer_data", wrong)
    assert invoke(["bench", "resnet18-layers", "--device", "functional"]) == 1
    assert "100,352 bytes differ" in capsys.readouterr().out


def test_bounds_are_those_of_the_targets() -> None:
    config = PRESETS["pynq-extended"]
    bounds = {row.name: layers.layer_bound(row.workload, config, "ideal") for row in rows(config)}
    assert bounds["conv1 7x7 s2 3-64, im2col"] == 501_760
    assert bounds["3x3 64-64"] == 451_584
    assert bounds["1x1 s2 64-128"] == bounds["1x1 s2 256-512"] == 25_088


def test_a_measurement_knows_whether_it_reaches_its_target() -> None:
    (item,) = (
        item
        for item in rates.measure_rates("alu", PRESETS["tiny"], RunOptions())
        if item.name == "immediate"
    )
    assert item.of_bound is None
    assert item.is_reached
    assert item.bound_cycles is not None
    assert replace(item, cycles=round(item.bound_cycles / 0.94)).is_reached is False
    assert replace(item, cycles=round(item.bound_cycles / 0.96)).is_reached


def test_cycles_come_with_where_they_went_and_a_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, trace = tmp_path / "out.json", tmp_path / "trace.json"
    files = ["--json", str(out), "--trace", str(trace)]
    assert invoke(["bench", "gemm", "--config", "tiny", *files]) == 0
    assert "Where the cycles went" in capsys.readouterr().out
    layers = json.loads(out.read_text())["layers"]
    for layer in layers:
        assert layer["counters"]["cycles"] == layer["cycles"]
        assert layer["counters"]["macs"] == layer["macs"]
        assert layer["counters"]["gemm_busy"] > 0.95 * layer["cycles"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert "gemm one accumulator, 4 times" in {event["name"] for event in events}


def test_with_a_part_that_is_skipped_nothing_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--config", "tiny", "--skip", "store", "--json", str(out)]
    assert invoke(["bench", "store", *arguments]) == 0
    assert "store passed tokens without working (--skip): the results are wrong" in (
        capsys.readouterr().out
    )
    report = json.loads(out.read_text())
    assert report["mismatches"] is None
    assert report["skipped"] == "store"
    whole = next(layer for layer in report["layers"] if layer["name"] == "whole")
    assert whole["cycles"] < 0.5 * whole["bound_cycles"]


def test_rows_fit_the_terminal() -> None:
    (item, *_) = rates.measure_rates("load", PRESETS["tiny"], RunOptions())
    item = replace(item, name="accumulators in turn, 16 an instruction", macs=115_605_504)
    item = replace(item, cycles=12_345_678, bound_cycles=12_000_000)
    assert len(_row(80, item)) == 80
    assert "load accumulators in turn, 16 an instruction" in _row(200, item)
    assert "load acc…16 an instruction  115,605,504 12,345,678 12,000,000" in _row(80, item)


def test_networks_are_listed_and_an_unknown_name_is_answered_with_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert invoke(["bench", "resnet19"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    for name, network in NETWORKS.items():
        assert f"'{name}'" in said
        (line,) = (line for line in listed.splitlines() if line.split()[0] == name)
        assert all(column in line for column in network.form.columns)
        assert len(line) <= 80
    for name, tiny in MLPERF_TINY.items():
        assert f"'{name}'" in said
        (line,) = (line for line in listed.splitlines() if line.split()[0] == name)
        assert tiny.what in line


def test_a_network_is_measured_layer_by_layer_with_the_hosts_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["bench", "mlp", "--config", "tiny-extended", "--device", "estimate"]
    assert invoke([*arguments, "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "100.00% of 115,968 MACs on the machine" in said
    assert "conversions between floats and integers" in said
    report = json.loads(out.read_text())
    assert report["mismatches"] == 0
    assert report["summary"]["macs_on_machine"] == report["macs"] == 115_968
    assert len(report["layers"]) == report["summary"]["layers_on_machine"]


def test_a_network_is_saved_for_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    assert invoke(["bench", "mlp", "--save", str(path)]) == 0
    assert invoke(["run", str(path), "--config", "tiny", "--check"]) == 0
    assert "0 of 10 output elements differ" in capsys.readouterr().out
    assert invoke(["bench", "gemm", "--save", str(path)]) == 2
    assert "--save is for networks, and gemm is not one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["resnet18", "--models", "."], "--models is for mlperf-tiny and its networks"),
        (["mlperf-tiny", "--trace", "x.json"], "--trace is for one network, and mlperf-tiny has"),
        (["mlperf-tiny", "--save", "x.tflite"], "--save is for networks, and mlperf-tiny is not"),
        (["mlperf-tiny", "--clock", "0"], "0.0 is not in the range x>0"),
    ],
)
def test_options_that_do_not_fit_mlperf_tiny_are_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["bench", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_network_of_mlperf_tiny_is_saved(tmp_path: Path) -> None:
    path = tmp_path / "anomaly.tflite"
    assert invoke(["bench", "mlperf-anomaly", "--save", str(path)]) == 0
    assert path.read_bytes() == generate_tiny("mlperf-anomaly")


def test_mlperf_tiny_is_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    arguments = ["bench", "mlperf-tiny", "--device", "estimate", "--clock", "50"]
    assert invoke([*arguments, "--json", str(out)]) == 0
    said, report = capsys.readouterr().out, json.loads(out.read_text())
    assert "50 MHz" in said
    assert list(report["networks"]) == list(MLPERF_TINY)
    for name, network in report["networks"].items():
        (line,) = (line for line in said.splitlines() if line.startswith(name))
        cycles = network["cycles"]
        assert f"{cycles:,}" in line
        assert f"{cycles / 50e3:.3f}" in line
        assert network["mismatches"] == 0
        assert network["summary"]["share_on_machine"] == 1


def test_mlperf_tiny_runs_the_files_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / MLPERF_TINY["mlperf-resnet"].file
    path.write_bytes(generate_tiny("mlperf-anomaly"))
    out = tmp_path / "out.json"
    arguments = ["bench", "mlperf-resnet", "--models", str(tmp_path), "--device", "functional"]
    assert invoke([*arguments, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["macs"] == 264_192


def bench_report(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "out.json"
    estimated = ["--device", "estimate", "--config", "tiny-extended", "--json", str(out)]
    assert invoke(["bench", *arguments, *estimated]) == 0
    return json.loads(out.read_text())


def test_several_machines_run_a_network_on_images_at_once_or_share_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results are compared with ONNX Runtime; the peak and the bound are those of both machines."""
    one = bench_report(tmp_path, "digits")
    assert "machines" not in one
    capsys.readouterr()
    at_once = bench_report(tmp_path, "digits", "--machines", "2", "--memory-bus", "64")
    told = " ".join(capsys.readouterr().out.split())
    assert "2 machines on a bus of 64 bits run images at once" in told
    split = bench_report(tmp_path, "digits", "--machines", "2", "--split")
    system = [(r["machines"], r["memory_bus"], r["split"]) for r in (at_once, split)]
    assert system == [(2, 64, False), (2, 128, True)]
    assert [report["runs"] for report in (one, at_once, split)] == [1, 2, 1]
    for report, images in ((at_once, 2), (split, 1)):
        assert report["mismatches"] == 0
        assert report["macs"] == images * one["macs"]
        assert report["peak_macs_per_cycle"] == 2 * one["peak_macs_per_cycle"]
        used = report["macs"] / report["cycles"] / report["peak_macs_per_cycle"]
        assert report["utilization"] == pytest.approx(used)
        assert 0.5 < report["bound_cycles"] / report["cycles"] < 1
        assert images / 2 * one["cycles"] < report["cycles"] < images * one["cycles"]
    assert f"{at_once['cycles'] / 2:,.0f} cycles per image" in told
    assert f"{at_once['utilization']:.1%} of the peak of {16 * 2:,} MACs per cycle" in told


def test_networks_of_fixed_size_run_an_image_on_each_machine(tmp_path: Path) -> None:
    report = bench_report(tmp_path, "mlperf-anomaly", "--machines", "2")
    assert report["runs"] == 2
    assert report["mismatches"] == 0
    assert 0.3 < report["bound_cycles"] / report["cycles"] < 1


@pytest.mark.nightly
def test_mlperf_tiny_on_two_machines_is_told_per_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = bench_report(tmp_path, "mlperf-tiny", "--machines", "2")
    said = capsys.readouterr().out
    assert "numbers are per image" in " ".join(said.split())
    for network in report["networks"].values():
        assert (network["machines"], network["runs"], network["mismatches"]) == (2, 2, 0)
        assert f"{network['cycles'] / 2:,.0f}" in said
        assert network["bound_cycles"] < network["cycles"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gemm", "--machines", "2"], "--machines is for networks"),
        (["mlp", "--split"], "--split divides layers between machines: give --machines, too"),
        (["mlp", "--memory-bus", "128"], "a single machine has a memory bus of 64 bits, not 128"),
        (["mlp", "--machines", "2", "--device", "pysim"], "the device pysim is a single machine"),
        (["llama-tiny", "--machines", "2", "--device", "estimate"], "the network has variables"),
    ],
)
def test_what_several_machines_cannot_do_is_said(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["bench", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
