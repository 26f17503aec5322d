from __future__ import annotations

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_vta import cli, session
from amaranth_vta.sw.runtime.device import Fault
from amaranth_vta.sw.runtime.runtime import RuntimeFault

IMAGE = np.arange(-96, 96, 3, dtype=np.int8).reshape(1, 4, 4, 4)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A quantized 1x1 convolution that doubles and saturates, followed by a negation on the
    host."""
    constants = {
        "scale": np.float32(1),
        "zero": np.int8(0),
        "weights": 2 * np.eye(4, dtype=np.int8).reshape(4, 4, 1, 1),
        "scales": np.ones(4, np.float32),
        "zeros": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node(
            "QLinearConv",
            ["x", "scale", "zero", "weights", "scale", "zero", "scale", "zero"],
            ["doubled"],
            "double",
        ),
        helper.make_node("DequantizeLinear", ["doubled", "scale", "zero"], ["real"], "dequantize"),
        helper.make_node("Neg", ["real"], ["y"], "negate"),
    ]
    graph = helper.make_graph(
        nodes,
        "doubling",
        [helper.make_tensor_value_info("x", TensorProto.INT8, ["N", 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 4, 4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "doubling.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def vta(*arguments: object) -> int:
    return cli.invoke(["run", *(str(argument) for argument in arguments), "--config", "tiny"])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, x=np.concatenate([IMAGE, -IMAGE]))
    return path


def test_a_network_runs_from_file_to_file(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, report = tmp_path / "results.npz", tmp_path / "report.json"
    assert vta(model, "--inputs", images, "--outputs", results, "--json", report) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "double" in out
    assert "On the host, with 0.0% of the MACs:" in out
    doubled = 2 * np.concatenate([IMAGE, -IMAGE]).astype(np.int32)
    with np.load(results) as arrays:
        assert arrays.files == ["y"]
        np.testing.assert_array_equal(arrays["y"], -np.clip(doubled, -128, 127))
    values = json.loads(report.read_text())
    assert values["cycles"] is None
    assert values["macs"] == 2 * 4 * 4 * 4 * 4
    assert values["peak_macs_per_cycle"] == 16
    assert values["mismatches"] is None
    assert values["fault"] is None
    layers = {layer["name"]: layer for layer in values["layers"]}
    assert layers["double"]["placed_on"] == "machine"
    assert layers["negate"]["placed_on"] == "host"
    assert layers["negate"]["reason"]


def test_check_compares_with_onnx_runtime(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model, "--check", "--json", tmp_path / "report.json") == 0
    out = capsys.readouterr().out
    assert "Inputs were random" in out
    assert "ONNX Runtime: 0 of 64 output elements differ" in out
    assert json.loads((tmp_path / "report.json").read_text())["mismatches"] == 0


def test_check_fails_on_a_difference(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = session.Session.run

    def run_wrong(self: session.Session, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = run(self, inputs)
        outputs["y"].flat[3] += 2
        return outputs

    monkeypatch.setattr(session.Session, "run", run_wrong)
    assert vta(model, "--check") == 1
    assert "ONNX Runtime: 1 of 64 output elements differ (by +2: 1)" in capsys.readouterr().out


def test_explain_prints_the_loop_nests_and_the_reasons(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model, "--explain") == 0
    out = capsys.readouterr().out
    assert "double (QLinearConv): on the machine, x [1, 4, 4, 4] to doubled" in out
    assert "push_gemm()" in out
    assert "negate (Neg): on the host: " in out


def test_a_fault_is_reported_in_a_line_and_in_the_file(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(self: session.Session, inputs: object) -> None:
        self._fault = Fault("load", 7, "bus_error")
        raise RuntimeFault(self._fault, None, "bus_error in load, instruction 7")

    monkeypatch.setattr(session.Session, "run", run)
    results, report = tmp_path / "results.npz", tmp_path / "report.json"
    assert vta(model, "--outputs", results, "--json", report) == 3
    assert capsys.readouterr() == ("", "vta: bus_error in load, instruction 7\n")
    assert json.loads(report.read_text())["fault"] == {
        "module": "load",
        "instruction": 7,
        "cause": "bus_error",
    }
    assert not results.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "images.npz cannot be read: No such file or directory"),
        (b"text", "images.npz is damaged, or not an .npz of arrays"),
        (b"PK\x03\x04", "images.npz is damaged, or not an .npz of arrays"),
        ({"y": IMAGE}, "input x is missing"),
        ({"x": IMAGE.astype(np.int16)}, "input x is int16; the network takes int8"),
        ({"x": IMAGE[:, :3]}, "input x has shape [1, 3, 4, 4]"),
    ],
    ids=["missing", "text", "cut", "name", "type", "shape"],
)
def test_wrong_inputs_are_one_line(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes | dict[str, np.ndarray] | None,
    message: str,
) -> None:
    path = tmp_path / "images.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.savez(path, **content)  # type: ignore[arg-type]
    assert vta(model, "--inputs", path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_one_array_is_not_a_file_of_inputs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "image.npy", IMAGE)
    assert vta(model, "--inputs", tmp_path / "image.npy") == 2
    assert "image.npy is one array, not an .npz of arrays" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, bytes(range(256)) * 8])
def test_a_damaged_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert vta(path) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert err.count("\n") == 1


def test_waves_need_a_clock_and_leave_nothing_without(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.vcd"
    assert vta(model, "--waves", path) == 2
    assert "the functional model has no clock" in capsys.readouterr().err
    assert not path.exists()


def test_waves_of_a_run_are_a_vcd(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.vcd"
    assert vta(model, "--device", "pysim", "--waves", path) == 0
    text = path.read_text()
    assert text.startswith(("$comment", "$date", "$timescale", "$version"))
    assert "$enddefinitions" in text
    view = (tmp_path / "run.vcd.views" / "gtkwave.gtkw").read_text()
    # The simulator writes names of operations, which need no file with names.
    assert "@28\nbench.top.vta.core.machine.compute.alu.operation\n" in view
    assert "bench.top.vta.core.machine.load.order.fault__cause[2:0]" in view


def test_waves_as_fst_need_a_compiled_machine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model, "--device", "pysim", "--waves", tmp_path / "run.fst") == 2
    assert "the pysim device writes waves as VCD only" in capsys.readouterr().err


def test_where_the_cycles_went_is_said_layer_by_layer(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, trace = tmp_path / "report.json", tmp_path / "trace.json"
    assert vta(model, "--device", "rtl", "--json", report, "--trace", trace) == 0
    out = capsys.readouterr().out
    assert "Where the cycles went" in out
    values = json.loads(report.read_text())
    assert values["skipped"] is None
    layers = {layer["name"]: layer for layer in values["layers"]}
    assert layers["double"]["counters"]["cycles"] <= layers["double"]["cycles"]
    assert layers["double"]["counters"]["load_instructions"] > 0
    assert layers["negate"]["counters"] == {}
    assert values["counters"] == layers["double"]["counters"]
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"fetch", "load", "gemm", "alu", "store"} <= lanes
    assert [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 1] == ["double"] * (
        values["layers"][0]["runs"]
    )


def test_a_model_without_a_clock_has_no_cycles_and_no_timeline(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model) == 0
    assert "Where the cycles went" not in capsys.readouterr().out
    assert vta(model, "--trace", tmp_path / "trace.json") == 2
    assert "no clock, hence no timeline" in capsys.readouterr().err
    assert list(tmp_path.glob("*trace*")) == []


def test_estimated_cycles_are_marked_and_timing_alone_has_no_results(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert vta(model, "--device", "estimate", "--check", "--json", report) == 0
    out = capsys.readouterr().out
    assert "The cycles are estimated, not counted on the design." in out
    assert "Where the cycles went, per image, estimated" in out
    values = json.loads(report.read_text())
    assert (values["estimated"], values["mismatches"]) == (True, 0)
    cycles = values["cycles"]
    assert vta(model, "--device", "estimate", "--timing-only", "--json", report) == 0
    assert "nothing was computed (--timing-only)" in capsys.readouterr().out
    assert json.loads(report.read_text())["cycles"] == cycles
    for option in (["--check"], ["--outputs", tmp_path / "y.npz"]):
        assert vta(model, "--device", "estimate", "--timing-only", *option) == 2
        assert "--timing-only computes none" in capsys.readouterr().err


def test_what_is_skipped_is_said_and_cannot_be_checked(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.npz"
    assert vta(model, "--inputs", images, "--outputs", results, "--skip", "gemm") == 0
    assert "gemm passed tokens without working (--skip): the results are wrong" in (
        capsys.readouterr().out
    )
    assert vta(model, "--skip", "gemm", "--check") == 2
    assert "--check compares results, which are wrong with --skip" in capsys.readouterr().err


def test_a_report_has_a_page_all_numbers_and_a_timeline(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    for _ in range(2):  # the second one replaces the first
        assert vta(model, "--device", "rtl", "--report", folder) == 0
        assert sorted(path.name for path in folder.iterdir()) == [
            "report.html",
            "report.json",
            "timeline.json.gz",
        ]
        (folder / "report.json").rename(folder / "left over")
    page = (folder / "report.html").read_text()
    ElementTree.fromstring(page.partition("\n")[2])
    for text in (
        f"<code>vta run {model} --device rtl --report {folder} --config tiny</code>",
        "not compared; --check compares with ONNX Runtime",
        "Where the cycles went",
        'class="bars"',
        "host: its result is not quantized to 8 bits",
        "LOG_BLOCK_IN",
    ):
        assert text in page
    assert 'href="timeline.json.gz"' in page
    assert json.loads(gzip.decompress((folder / "timeline.json.gz").read_bytes()))["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["doubling.onnx", "report"]


def test_a_trace_is_written_once_and_the_report_leads_to_it(model: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "report", tmp_path / "trace.json.gz"
    assert vta(model, "--device", "rtl", "--report", folder, "--trace", trace) == 0
    assert not list(folder.glob("timeline*"))
    assert 'href="../trace.json.gz"' in (folder / "report.html").read_text()
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_a_trace_of_many_images_has_the_first_of_them(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.concatenate([IMAGE, -IMAGE] * 5)
    np.savez(images, x=x)
    trace = tmp_path / "trace.json"
    assert vta(model, "--device", "rtl", "--inputs", images, "--trace", trace) == 0
    assert f"{trace} has the first 4 of 10 runs of the network" in capsys.readouterr().out
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events].count("double") == 4


@pytest.mark.parametrize("device", ["functional", "pysim"])
def test_json_on_standard_output_is_alone_there(
    model: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model, "--device", device, "--check", "--json", "-") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["mismatches"] == 0
    assert "double" in err
    assert "ONNX Runtime: 0 of 64 output elements differ" in err


def test_a_report_without_a_clock_has_no_chart(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    folder.mkdir()
    assert vta(model, "--report", folder, "--skip", "alu") == 0
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.json"]
    page = (folder / "report.html").read_text()
    assert 'class="bar"' not in page
    assert "the results of this run are wrong" in page


def test_a_folder_with_other_things_is_left_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vta(model, "--report", tmp_path) == 2
    assert "it holds other files and no report.html" in capsys.readouterr().err
    assert vta(model, "--report", model) == 2
    assert vta(model, "--report", model / "report") == 2
    assert vta(model, "--report", tmp_path / "report", "--inputs", tmp_path / "missing") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["doubling.onnx"]


def test_energy_is_printed_reported_and_equal_on_all_devices(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, options in enumerate(
        ((), ("--device", "estimate"), ("--launch", "layer"), ("--device", "pysim"))
    ):
        path = tmp_path / f"{number}.json"
        assert vta(model, "--energy", "45nm", "--json", path, *options) == 0
        assert "Energy per image in µJ, estimated for 45nm" in capsys.readouterr().out
        found.append(json.loads(path.read_text())["energy"])
    assert found[1:] == found[:1] * 3
    energy = found[0]
    assert (energy["technology"], energy["estimated"]) == ("45nm", True)
    (layer,) = energy["layers"]
    assert layer["name"] == "double"
    for end in ("low", "typical", "high"):
        parts = sum(part[end] for part in layer["parts"].values())
        assert layer["total"][end] == pytest.approx(parts)
        assert energy["total"][end] == pytest.approx(parts)
    pages = energy["pages_opened"]
    assert pages == layer["pages_opened"]
    # At least one of each: instructions, micro-ops, inputs, and results.
    assert 4 <= pages["least"] <= pages["most"]
    assert energy["page_bytes"] == 2048
    # 64 pixels of 4 channels are stored, and at least as many bytes loaded.
    assert energy["parts"]["DRAM"]["low"] >= 2 * 64 / 8 * 1300


def test_a_report_has_a_section_on_energy(model: Path, tmp_path: Path) -> None:
    assert vta(model, "--energy", "7nm", "--report", tmp_path / "report") == 0
    page = (tmp_path / "report/report.html").read_text()
    assert "<h2>Energy</h2>" in page
    assert "estimated for 7nm" in page
    numbers = json.loads((tmp_path / "report/report.json").read_text())
    assert numbers["energy"]["technology"] == "7nm"
    assert vta(model, "--report", tmp_path / "plain") == 0
    assert "<h2>Energy</h2>" not in (tmp_path / "plain/report.html").read_text()


def test_unknown_technologies_are_refused(model: Path) -> None:
    assert vta(model, "--energy", "3nm") == 2
    with (
        session.Session(str(model), "tiny") as opened,
        pytest.raises(ValueError, match="technology is one of 45nm, .*, ecp5, not '3nm'"),
    ):
        opened.energy("3nm")


def test_several_machines_run_images_at_once(model: Path, tmp_path: Path) -> None:
    inputs, path = tmp_path / "x.npz", tmp_path / "numbers.json"
    np.savez(inputs, x=np.concatenate([IMAGE] * 3))
    command = (model, "--allow-host", "--inputs", inputs, "--check", "--json", path)
    found = {}
    for machines in ("1", "2"):
        assert vta(*command, "--device", "estimate", "--machines", machines) == 0
        found[machines] = json.loads(path.read_text())
    assert found["2"]["machines"] == 2
    assert found["2"]["mismatches"] == 0
    # The third image runs alone.
    assert found["2"]["cycles"] == pytest.approx(found["1"]["cycles"] * 2 / 3, rel=0.15)


def test_machines_share_the_layers_of_inputs_of_one_run(model: Path, tmp_path: Path) -> None:
    """Unless asked not to; images of several runs are shared only if asked for."""
    one, two, path = (tmp_path / name for name in ("1.npz", "2.npz", "numbers.json"))
    np.savez(one, x=IMAGE)
    np.savez(two, x=np.concatenate([IMAGE] * 2))
    command = (model, "--allow-host", "--machines", 2, "--check", "--json", path, "--inputs")
    for file, options, split in (
        (one, (), True),
        (one, ("--no-split",), False),
        (two, (), False),
        (two, ("--split",), True),
    ):
        assert vta(*command, file, *options) == 0
        found = json.loads(path.read_text())
        assert (found["split"], found["mismatches"]) == (split, 0)


def test_a_compiled_network_for_several_machines(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "two.vta"
    arguments = ["--machines", "2", "--config", "tiny", "-o", str(compiled)]
    assert cli.invoke(["compile", str(model), *arguments, "--memory-bus", "96"]) == 2
    assert "a memory bus of 96 bits does not fit" in capsys.readouterr().err
    assert not compiled.exists()
    assert cli.invoke(["compile", str(model), *arguments, "--memory-bus", "64"]) == 0
    assert vta(compiled, "--allow-host", "--machines", 2) == 0
    capsys.readouterr()
    assert vta(compiled, "--machines", 3) == 2
    assert "compiled for 2 machines, which share each image; the device has 3" in (
        capsys.readouterr().err
    )
    assert vta(compiled, "--machines", 2, "--split") == 2
    assert "--split is for `vta compile`" in capsys.readouterr().err
    assert vta(model, "--split") == 2
    assert "--split divides layers between machines: give --machines" in capsys.readouterr().err
